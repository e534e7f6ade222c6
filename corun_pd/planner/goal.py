"""What a plan is to reach."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from corun_pd.errors import ConfigError
from corun_pd.planner.outcome import PERCENTILES, Outcome

__all__ = ["Bound", "Goal", "Objective"]

_HOUR_S: Final = 3600.0


class Objective(enum.StrEnum):
    """What is best.

    GPU time is the makespan times the GPUs: the least of it is the most tokens per GPU. Cost is GPU hours
    times what one costs, which differs between the machines of profiles.
    """

    MAKESPAN = "makespan"
    GPU_TIME = "gpu-time"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `seconds` for the percentile of a latency. Raises ConfigError for what cannot be one."""

    metric: Literal["TTFT", "TPOT"]
    percentile: int
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"goal: a {self.metric} of {self.seconds} s is not positive")
        if self.percentile not in PERCENTILES:
            known = ", ".join(map(str, PERCENTILES))
            raise ConfigError(f"goal: percentile {self.percentile} of {self.metric} is none of {known}")

    def found(self, outcome: Outcome) -> float:
        """What it is in a simulation, in seconds."""
        return (outcome.ttft if self.metric == "TTFT" else outcome.tpot).at(self.percentile)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is best, among what meets all of `targets`."""

    objective: Objective = Objective.MAKESPAN
    targets: tuple[Bound, ...] = ()

    @property
    def ttft(self) -> Iterator[Bound]:
        """Targets of the first token."""
        return (bound for bound in self.targets if bound.metric == "TTFT")

    @property
    def tpot(self) -> Iterator[Bound]:
        """Targets of further tokens."""
        return (bound for bound in self.targets if bound.metric == "TPOT")

    def cost(self, makespan_s: float, gpus: int, price: float = 1.0) -> float:
        """What is to be small: seconds, GPU seconds, or GPU hours times their `price`."""
        match self.objective:
            case Objective.MAKESPAN:
                return makespan_s
            case Objective.GPU_TIME:
                return makespan_s * gpus
            case Objective.COST:
                return makespan_s * gpus * price / _HOUR_S

    def makespan_s(self, cost: float, gpus: int, price: float = 1.0) -> float:
        """The makespan that has this cost."""
        return cost / self.cost(1.0, gpus, price)

    def is_met(self, outcome: Outcome) -> bool:
        """Whether no target is passed."""
        return all(bound.found(outcome) <= bound.seconds for bound in self.targets)

    def bounds(self, outcome: Outcome) -> list[tuple[Bound, float]]:
        """Each target with what was found, in seconds."""
        return [(bound, bound.found(outcome)) for bound in self.targets]
