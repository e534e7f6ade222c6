"""Generations of one prompt that were sent together. Each is one of its own but for the prompt.

    the prompt, tokenized once ─► each is resolved ─► all are here, or gone ─► those drawn alike are siblings

Drawn alike: the same route and sampling, seeds aside. What is the router's alone, such as stop strings, may
differ. One that wants the prompt's logprobs has it computed for itself, for a prefill gives them once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from corun_pd.router.pipeline import Sample
from corun_pd.router.policy import Route
from corun_pd.router.siblings import Siblings
from corun_pd.v1 import router_pb2
from corun_pd.wire.convert import sampling_to_pb

__all__ = ["Company", "Seat"]

Gather = Callable[[Sequence[Sample]], Siblings[Sample]]

#: A prompt's token ids, and the field that they came from.
Prompt = tuple[Sequence[int], str]


class Company:
    """Give each of the generations a seat. It is taken, or left when its generation ends without."""

    def __init__(self, first: router_pb2.Generation, members: int, gather: Gather) -> None:
        """`first` has the prompt; `gather` makes siblings of samples."""
        self.first = first
        self._gather = gather
        self._absent = members
        self._all_here = asyncio.Event()
        self._prompt: asyncio.Future[Prompt] | None = None
        self._lots: dict[bytes, tuple[list[Sample], list[Siblings[Sample]]]] = {}

    async def prompt(self, find: Callable[[router_pb2.Generation], Awaitable[Prompt]]) -> Prompt:
        """What `find` makes of the first generation; done once, whichever member is cancelled meanwhile."""
        if self._prompt is None:
            self._prompt = asyncio.ensure_future(find(self.first))
        return await asyncio.shield(self._prompt)

    def arrived(self) -> None:
        """One more has taken or left its seat."""
        self._absent -= 1
        if not self._absent:
            self._all_here.set()

    async def siblings(self, samples: Sequence[Sample], route: Route) -> tuple[Siblings[Sample], int]:
        """The siblings among which a generation's samples are, and the place of their first."""
        first = samples[0]
        if first.sampling.prompt_logprobs is not None:
            self.arrived()
            return self._gather(samples), 0
        alike = sampling_to_pb(replace(first.sampling, seed=0)).SerializeToString(deterministic=True)
        lot, found = self._lots.setdefault(route.encode() + alike, ([], []))
        at = len(lot)
        lot += samples
        self.arrived()
        await self._all_here.wait()
        if not found:
            found.append(self._gather(lot))
        return found[0], at


class Seat:
    """A generation's place in its company."""

    def __init__(self, company: Company) -> None:
        self.company = company
        self._is_waited_for = True

    async def take(self, samples: Sequence[Sample], route: Route) -> tuple[Siblings[Sample], int]:
        """`Company.siblings`, once all others have taken or left their seats."""
        self._is_waited_for = False
        return await self.company.siblings(samples, route)

    def leave(self, _: object) -> None:
        """The generation's task is over; nobody waits for it."""
        if self._is_waited_for:
            self._is_waited_for = False
            self.company.arrived()
