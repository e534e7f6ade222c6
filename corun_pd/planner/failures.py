"""Instances that fail: at random times, at a rate, each on its own."""

import random
from dataclasses import dataclass
from typing import Final

from corun_pd.errors import ConfigError

__all__ = ["PAUSE_S", "Failures"]

#: Between a sample's loss and its standing in line again, in seconds, as the router has it.
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Failures:
    """An instance runs for `mean_s` seconds in the mean (a Poisson process) and is back `restart_s` later.

    Equal seeds give equal failures. Raises ConfigError for a mean that is not positive.
    """

    mean_s: float
    restart_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.mean_s < float("inf") and 0 <= self.restart_s < float("inf")):
            raise ConfigError(
                f"failures: a mean of {self.mean_s} s and a restart of {self.restart_s} s; the mean must be "
                "positive and the restart not negative"
            )

    def draws(self, instance: int) -> random.Random:
        """Where the lives of the instance of that number are drawn from."""
        return random.Random(f"{self.seed} {instance}")
