"""What a simulation found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["PERCENTILES", "Outcome", "Percentiles", "PoolUse"]

#: Those that are kept.
PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of latencies in seconds, by nearest rank; all 0 when there are none."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Of these."""
        ranked = sorted(values)
        count = len(ranked)
        if not count:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ranks = [ranked[-(-count * percent // 100) - 1] for percent in (*PERCENTILES, 100)]
        return cls(count, sum(ranked) / count, *ranks)

    def at(self, percentile: int) -> float:
        """One of `PERCENTILES`."""
        return (self.p50, self.p90, self.p95, self.p99)[PERCENTILES.index(percentile)]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What the instances of a pool did, as shares of the makespan.

    `steps` is over all of them. `busy_ratio` is the time in steps. `padding_ratio` is what of the computed
    rows or tokens was padding.
    `use_over_time` has a ratio for every `bin_s` seconds: of prefill the time in steps, of decode the slots
    that held a row in a step; `use_ratio` is its mean.
    """

    instances: int
    steps: int
    busy_ratio: float
    padding_ratio: float
    use_ratio: float
    bin_s: float
    use_over_time: Sequence[float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`makespan_s` is from the first request's coming to the last token; start-up comes before.

    `refused` requests can never fit an instance, and count nowhere else. TTFT is from a request's coming
    to its first token, TPOT the mean of the gaps after it, of requests with two tokens or more. On
    colocated instances `prefill` and `decode` are their two kinds of steps. `failures` of instances cost
    `replays` of samples from their prompts.
    """

    requests: int
    refused: int
    prompt_tokens: int
    output_tokens: int
    makespan_s: float
    start_up_s: float
    ttft: Percentiles
    tpot: Percentiles
    prefill: PoolUse
    decode: PoolUse
    failures: int = 0
    replays: int = 0

    @property
    def output_tokens_per_s(self) -> float:
        """Of the whole cluster, start-up left out; 0 when nothing ran."""
        return self.output_tokens / self.makespan_s if self.makespan_s else 0.0
