"""How requests come: all at once, so many at a time, or when the trace says."""

from dataclasses import dataclass

from corun_pd.errors import ConfigError

__all__ = ["ClosedLoop", "Load", "Offline", "Online"]


@dataclass(frozen=True, slots=True)
class Offline:
    """All are there at time zero, in the trace's order."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`in_flight` at a time: one that ends lets the next come."""

    in_flight: int

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ConfigError(f"load: {self.in_flight} in flight; it takes one at least")


@dataclass(frozen=True, slots=True)
class Online:
    """At the trace's times; with `speed` 2 at twice its rate."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ConfigError(f"load: speed {self.speed} must be positive")


Load = Offline | ClosedLoop | Online
