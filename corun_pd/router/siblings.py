"""Samples of one prompt: admitted together, their prompt computed once, each decoded on its own.

    sample 0 ─► admission ─► prefill ─┬► start 0
                                      ├► start 1
                                      └► ...

The first of them that comes asks for room for all and has the prompt computed. Where the fleet cannot hold
so many, the first of those that are left over does the same for these.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from corun_pd.core import Edge, SamplingParams
from corun_pd.router.admission import Admission, Reservation
from corun_pd.router.fleet import Member
from corun_pd.router.legs import Prefilled
from corun_pd.router.policy import Demand, Route
from corun_pd.router.ticket import Ticket

__all__ = ["Siblings", "Start"]


class Sample(Protocol):
    """A sample as it is seen here. Siblings have one prompt, and differ in their seeds alone."""

    generation_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    admitted_at: float


S = TypeVar("S", bound=Sample)


@dataclass(frozen=True, slots=True)
class Start:
    """A sample's first token, its room and its ticket. A context manager; both end with it."""

    first: Prefilled
    room: Reservation[Member]
    ticket: Ticket
    prefill: Member

    @property
    def decode(self) -> Member | None:
        """Where it goes on; None when the first token was known to be the last."""
        return self.room.decode

    def close(self) -> None:
        """Releases a ticket that was not pulled and gives the room back."""
        self.ticket.close()
        self.room.close()

    def __enter__(self) -> "Start":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Siblings(Generic[S]):
    """Call `start` once for each sample, and `leave` when it is done, whether it took a start or not.

    When a `start` raises or is cancelled, the next sample asks for the rest.
    """

    def __init__(self, admission: Admission[Member], samples: Sequence[S], edge: Callable[..., None]) -> None:
        """`edge` is told of the edges of samples' lives, as `edge(Edge.PREFILL, sample, ...)`."""
        self._admission = admission
        self._samples = samples
        self._edge = edge
        loop = asyncio.get_running_loop()
        self._waiting: set[int] = set()
        self._left = set(range(len(samples)))  # for whom nobody asks; whoever of them comes asks for all
        # What a sample waits for: its start, or its turn to ask for those samples, of which it is one.
        self._turns: list[asyncio.Future[Start | Sequence[int]]] = [loop.create_future() for _ in samples]

    async def start(self, at: int) -> Start:
        """The start of sample `at`; close it. Raises what its admission or the prefill leg raises."""
        if at in self._left:
            left, self._left = sorted(self._left), set()
            return await self._prefill(at, left)
        waiting = self._turns[at]
        self._waiting.add(at)
        try:
            turn = await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and not isinstance(turn := waiting.result(), Start):
                self._pass_on([n for n in turn if n != at])  # it came in the moment of the cancellation
            raise
        finally:
            self._waiting.discard(at)
        self._turns[at] = asyncio.get_running_loop().create_future()
        return turn if isinstance(turn, Start) else await self._prefill(at, turn)

    def leave(self, at: int) -> None:
        """Sample `at` comes no more. A start that it has not taken is closed, now or when it is there."""
        turn = self._turns[at]
        self._left.discard(at)
        if not turn.done():
            turn.cancel()
        elif not turn.cancelled() and isinstance(start := turn.result(), Start):
            start.close()

    async def _prefill(self, at: int, numbers: Sequence[int]) -> Start:
        """Has the prompt computed for as many of these samples as there is room for, `at` among them."""
        numbers = [at, *(n for n in numbers if n != at and not self._turns[n].cancelled())]
        sample = self._samples[min(numbers)]
        demand = Demand(len(sample.prompt), sample.sampling.max_tokens)
        rooms: Sequence[Reservation[Member]] = ()
        try:
            rooms = await self._admission.admit_siblings(Route.DISAGGREGATED, demand, len(numbers))
            if len(rooms) < len(numbers):
                numbers, others = numbers[: len(rooms)], numbers[len(rooms) :]
                self._pass_on(others)
            prefill = rooms[0].prefill
            assert prefill is not None
            # The first of all asks for the prompt's logprobs, if any does.
            samples = [self._samples[n] for n in sorted(numbers)]
            admitted_at = time.monotonic()
            for sibling in samples:
                sibling.admitted_at = sibling.admitted_at or admitted_at
                self._edge(Edge.PREFILL, sibling, instance=prefill.info.instance_id)
            firsts = await prefill.prefill.prefill(
                sample.prompt,
                samples[0].sampling,
                samples[0].generation_id,
                hand_off=rooms[0].decode is not None,
                sibling_seeds=[sibling.sampling.seed for sibling in samples[1:]],
            )
        except BaseException:
            for room in rooms:
                room.close()
            self._pass_on([n for n in numbers if n != at])
            raise
        rooms[0].prompt_computed()
        starts = {
            number: self._start_of(self._samples[number], first, room, prefill)
            for number, first, room in zip(sorted(numbers), firsts, rooms, strict=True)
        }
        own = starts.pop(at)
        for number, start in starts.items():
            self._tell(number, start)
        return own

    def _start_of(self, sample: S, first: Prefilled, room: Reservation[Member], prefill: Member) -> Start:
        def pulled() -> None:
            self._edge(Edge.DECODE, sample)

        return Start(first, room, Ticket(first.handoff, prefill, room, pulled), prefill)

    def _pass_on(self, numbers: Sequence[int]) -> None:
        """Has one of these samples that waits ask for all of them, or else the first of them that comes."""
        waiting = next((n for n in numbers if n in self._waiting and not self._turns[n].done()), None)
        if waiting is None:
            self._left.update(n for n in numbers if not self._turns[n].cancelled())
        else:
            self._turns[waiting].set_result(numbers)

    def _tell(self, at: int, start: Start) -> None:
        turn = self._turns[at]
        if turn.done():  # its sample was cancelled meanwhile
            start.close()
        else:
            turn.set_result(start)
