"""What the client needs of a router.

The client calls everything from one event loop; `close` comes last. It retries, so a transport does
not. Cancelling the task that awaits `generate`, or closing the generator of `stream`, cancels the call
at the router. `timeout_s` is the time that is left, in seconds; past it DeadlineExceeded is raised.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from corun_pd.client.request import GenerationRequest
from corun_pd.client.results import Fleet, GenerationResult, StreamEvent

__all__ = ["Transport"]


class Transport(Protocol):
    """See the module's docstring for who calls what. Every method raises CorunError classes alone."""

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        """The whole answer."""

    def stream(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[StreamEvent, None]:
        """One StreamStart, any number of deltas, one StreamEnd."""

    def shared(self) -> "Transport":
        """One that sends generations with less work for each, for a caller that has many under way.

        Whoever asks for it closes it, which cancels what runs over it, before the one that it is of.
        """

    async def describe(self, timeout_s: float | None) -> Fleet:
        """The fleet."""

    async def close(self) -> None:
        """Cancels what runs and lets go of the router."""
