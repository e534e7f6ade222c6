"""Requests drawn from distributions, the same for a seed in every process."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from corun_pd.errors import ConfigError
from corun_pd.planner.traces.report import TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["Fixed", "Lengths", "LogNormal", "Synthetic", "Uniform"]


class Lengths(Protocol):
    """A distribution of lengths in tokens; never below 1. Its repr is how it is named to people."""

    def draw(self, source: random.Random) -> int:
        """One length."""


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __post_init__(self) -> None:
        _check(self, self.tokens >= 1)

    def draw(self, source: random.Random) -> int:
        """One length."""
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """Each length from `least` to `most` alike, both included."""

    least: int
    most: int

    def __post_init__(self) -> None:
        _check(self, 1 <= self.least <= self.most)

    def draw(self, source: random.Random) -> int:
        """One length."""
        return source.randint(self.least, self.most)


@dataclass(frozen=True)
class LogNormal:
    """Half are below `median`; `sigma` is of the logarithm. Cut to `least` and `most`."""

    median: float
    sigma: float
    most: int
    least: int = 1

    def __post_init__(self) -> None:
        _check(self, 1 <= self.least <= self.most and self.median > 0 and self.sigma >= 0)

    def draw(self, source: random.Random) -> int:
        """One length."""
        return min(
            self.most, max(self.least, round(source.lognormvariate(math.log(self.median), self.sigma)))
        )


class Synthetic(Trace):
    """`count` requests; arrivals of a Poisson process of `rate_per_s`, or none with None."""

    def __init__(
        self, count: int, prompt: Lengths, output: Lengths, *, rate_per_s: float | None = None, seed: int = 0
    ) -> None:
        if count < 1 or (rate_per_s is not None and not 0 < rate_per_s < math.inf):
            raise ConfigError(f"synthetic trace: count {count} and rate {rate_per_s}/s must be positive")
        times = "no times" if rate_per_s is None else f"Poisson arrivals, {rate_per_s:g} a second"
        super().__init__(f"synthetic, seed {seed}", f"{times}; prompt {prompt}, output {output} in tokens")
        self._count = count
        self._prompt = prompt
        self._output = output
        self._rate_per_s = rate_per_s
        self._seed = seed

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        source = random.Random(self._seed)
        at_s = None if self._rate_per_s is None else 0.0
        for _ in range(self._count):
            request = TraceRequest(at_s, self._prompt.draw(source), self._output.draw(source))
            report.keep(request)
            yield request
            if self._rate_per_s is not None and at_s is not None:
                at_s += source.expovariate(self._rate_per_s)


def _check(what: object, is_right: bool) -> None:
    if not is_right:
        raise ConfigError(f"synthetic trace: {what} is no distribution of lengths of 1 token and more")
