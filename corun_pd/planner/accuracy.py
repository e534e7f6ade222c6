"""How far predictions are from measurements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Self

from corun_pd.planner.outcome import Outcome, Percentiles

__all__ = ["METRICS", "Comparison", "Figures", "Summary"]

#: What is compared, in the order of tables.
METRICS: Final = ("makespan", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave, by the names of `METRICS`, in seconds."""

    seconds: Mapping[str, float]

    @classmethod
    def of(cls, makespan_s: float, ttft: Percentiles, tpot: Percentiles) -> Self:
        """Of a run's latencies."""
        values = (makespan_s, ttft.p50, ttft.p95, tpot.p50, tpot.p95)
        return cls(dict(zip(METRICS, values, strict=True)))

    @classmethod
    def predicted(cls, outcome: Outcome) -> Self:
        """Of a simulation."""
        return cls.of(outcome.makespan_s, outcome.ttft, outcome.tpot)

    @classmethod
    def median_of(cls, runs: Sequence["Figures"]) -> Self:
        """The median of several runs, figure by figure."""
        return cls({name: median(run.seconds[name] for run in runs) for name in METRICS})

    @classmethod
    def spread_of(cls, runs: Sequence["Figures"]) -> Self:
        """How far apart the runs are: their range, figure by figure, as a share of the median; 0 of 0."""
        return cls({name: _spread([run.seconds[name] for run in runs]) for name in METRICS})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on one layout. `spread` is how far apart the measured runs are, as a share.

    `foreign_cores` is what others used of the machine meanwhile, at most; `slowness` is how many times as
    long as in the profile prefill and decode steps took then, which the prediction has taken in.
    """

    workload: str
    layout: str
    engine: str
    measured: Figures
    predicted: Figures
    spread: Figures = Figures(dict.fromkeys(METRICS, 0.0))
    foreign_cores: float = 0.0
    slowness: tuple[float, float] = (1.0, 1.0)

    def error(self, metric: str) -> float:
        """Of the prediction, as a share of the measurement; above 0: too long. 0 when both are 0."""
        measured, predicted = self.measured.seconds[metric], self.predicted.seconds[metric]
        return predicted / measured - 1 if measured else float(predicted > 0)


@dataclass(frozen=True, slots=True)
class Summary:
    """Absolute errors over all comparisons, as shares."""

    metric: str
    median: float
    worst: float

    @classmethod
    def of(cls, rows: Iterable[Comparison]) -> list[Self]:
        """One for each metric."""
        rows = list(rows)
        return [
            cls(
                metric,
                median(abs(row.error(metric)) for row in rows),
                max(abs(r.error(metric)) for r in rows),
            )
            for metric in METRICS
        ]


def _spread(seconds: Sequence[float]) -> float:
    middle = median(seconds)
    return (max(seconds) - min(seconds)) / middle if middle else 0.0
