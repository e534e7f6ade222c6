"""What a plan is to reach."""

import enum
from dataclasses import dataclass

from corun_pd.errors import ConfigError
from corun_pd.planner.outcome import Outcome

__all__ = ["Goal", "Objective"]


class Objective(enum.StrEnum):
    """What is best. GPU time is the makespan times the GPUs: the least of it is the most tokens per GPU."""

    MAKESPAN = "makespan"
    GPU_TIME = "gpu-time"


@dataclass(frozen=True, slots=True)
class Goal:
    """What must be met; None is no bound. Raises ConfigError for a bound that is not positive."""

    objective: Objective = Objective.MAKESPAN
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None

    def __post_init__(self) -> None:
        for name, bound in (("TTFT", self.ttft_p95_s), ("TPOT", self.tpot_p95_s)):
            if bound is not None and not 0 < bound < float("inf"):
                raise ConfigError(f"goal: a {name} of {bound} s is not positive")

    def cost(self, makespan_s: float, gpus: int) -> float:
        """What is to be small."""
        return makespan_s * gpus if self.objective is Objective.GPU_TIME else makespan_s

    def is_met(self, outcome: Outcome) -> bool:
        """Whether no bound is passed."""
        return all(found <= bound for _, found, bound in self.bounds(outcome))

    def bounds(self, outcome: Outcome) -> list[tuple[str, float, float]]:
        """Each bound with its name and what was found, in seconds."""
        rows = (
            ("TTFT", outcome.ttft.p95, self.ttft_p95_s),
            ("TPOT", outcome.tpot.p95, self.tpot_p95_s),
        )
        return [(name, found, bound) for name, found, bound in rows if bound is not None]
