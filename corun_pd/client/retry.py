"""When a call is tried again: the router refused it for now, and nothing of it has been seen."""

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from corun_pd.errors import InvalidRequest, Overloaded, Unavailable

__all__ = ["DEFAULT_RETRY", "Attempts", "RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Unavailable and Overloaded are tried again, up to `max_attempts` calls and within the deadline.

    The wait doubles from `first_wait_s` to `max_wait_s`, and a random half of it is taken off, so that
    clients that were refused together do not come back together. When the router says how long to
    wait, the wait is that long and up to half as much again.
    """

    max_attempts: int = 8
    first_wait_s: float = 0.1
    max_wait_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or not 0 <= self.first_wait_s <= self.max_wait_s:
            raise InvalidRequest("retry", f"must try at least once and wait a time that can grow: {self}")

    def wait_s(self, failures: int, error: Unavailable | Overloaded) -> float:
        """How long to wait after that many failures, in seconds."""
        jitter = random.random() / 2
        if isinstance(error, Overloaded):
            return error.retry_delay_s * (1 + jitter)
        longest: float = min(self.max_wait_s, self.first_wait_s * 2 ** min(failures - 1, 60))
        return longest * (1 - jitter)


DEFAULT_RETRY: Final = RetryPolicy()


class Attempts:
    """The attempts of one call. Made when it starts, in its event loop."""

    def __init__(self, policy: RetryPolicy, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequest("timeout_s", f"must be above 0, not {timeout_s}")
        self._policy = policy
        self._now = asyncio.get_running_loop().time
        self._deadline = None if timeout_s is None else self._now() + timeout_s
        self._failures = 0

    @property
    def remaining_s(self) -> float | None:
        """The time that is left, in seconds; None is no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._now())

    async def pause(self, error: Unavailable | Overloaded) -> None:
        """Waits for the next attempt, or raises `error` when no attempt or no time is left for one."""
        self._failures += 1
        wait_s = self._policy.wait_s(self._failures, error)
        remaining_s = self.remaining_s
        if self._failures >= self._policy.max_attempts or (remaining_s is not None and wait_s >= remaining_s):
            raise error
        await asyncio.sleep(wait_s)
