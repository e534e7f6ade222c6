"""Who goes next: first come, first served, with a bounded queue and room reserved before work starts.

A sample is admitted when the policy finds it a place, and then holds a Reservation until it is over. Every
room that is given back, and every instance that joins, wakes those who wait in the order in which they
came. The head of a queue is never overtaken, so a long sample is not starved by short ones. The two routes
queue apart, since they wait for different instances.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from corun_pd.config import RouterConfig
from corun_pd.core import Role
from corun_pd.errors import CorunError, InvalidRequest, Overloaded, Unavailable
from corun_pd.router.policy import (
    Demand,
    L,
    Route,
    ever_fits,
    most_together,
    pick_decode,
    pick_prefill,
    room_for,
)

__all__ = ["Admission", "Reservation"]

#: The completion rate is taken over this many samples.
_RATE_SAMPLES: Final = 256

#: Stands for a line of any length before an instance's slots.
_ANY_LINE: Final = 1 << 30

#: Bounds on what an overloaded router tells a client to wait, in seconds.
_RETRY_DELAY_S: Final = (0.1, 60.0)


class _PromptRoom(Generic[L]):
    """Room for one prompt on a prefill instance; `samples` go on from it, and each pulls it."""

    def __init__(self, admission: "Admission[L]", prefill: L, tokens: int, samples: int) -> None:
        self._admission = admission
        self._prefill = prefill
        self._tokens = tokens
        self._blocks = prefill.info.blocks_for(tokens)
        self._samples = samples
        prefill.legs += 1
        prefill.blocks += self._blocks
        prefill.prompt_tokens += tokens

    def computed(self) -> None:
        """The prompt is no work any more. Said again, nothing happens."""
        if self._tokens:
            self._prefill.prompt_tokens -= self._tokens
            self._prefill.legs -= 1
            self._tokens = 0

    def left(self) -> None:
        """A sample needs the blocks no more; with the last one they are back in the instance's pool."""
        self._samples -= 1
        if not self._samples:
            self.computed()
            self._prefill.blocks -= self._blocks
            self._admission.wake()


class Reservation(Generic[L]):
    """A sample's room. A context manager; what is not given back before is given back at its end.

    `prefill` is the instance for the prompt, None on the colocated route. `decode` is the instance for the
    rest (colocated: for all), None when the first token is known to be the last.
    """

    def __init__(
        self,
        admission: "Admission[L]",
        demand: Demand,
        prompt: "_PromptRoom[L] | None",
        prefill: L | None,
        decode: L | None,
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self._admission = admission
        self._prompt = prompt
        self._decode_blocks = 0
        if decode is not None:
            self._decode_blocks = decode.info.blocks_for(demand.total_tokens)
            decode.legs += 1
            decode.blocks += self._decode_blocks

    def prompt_computed(self) -> None:
        """The prompt is no work any more; its blocks stay until `prompt_pulled`."""
        if self._prompt is not None:
            self._prompt.computed()

    def prompt_pulled(self) -> None:
        """This sample needs the prompt's blocks on the prefill instance no more."""
        prompt, self._prompt = self._prompt, None
        if prompt is not None:
            prompt.left()

    def close(self) -> None:
        """Gives everything back. Doing it again does nothing."""
        self.prompt_pulled()
        if self.decode is not None and self._decode_blocks:
            self.decode.legs -= 1
            self.decode.blocks -= self._decode_blocks
            self._decode_blocks = 0
            self._admission.completed()

    def __enter__(self) -> "Reservation[L]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class _Waiter(Generic[L]):
    demand: Demand
    samples: int
    turn: "asyncio.Future[Sequence[Reservation[L]]]"


class Admission(Generic[L]):
    """Queues samples and reserves room for them. `join` and `leave` keep it in step with the fleet."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._pools: Mapping[Role, list[L]] = {role: [] for role in Role}
        self._queues: Mapping[Route, OrderedDict[_Waiter[L], None]] = {r: OrderedDict() for r in Route}
        self._completions: deque[float] = deque(maxlen=_RATE_SAMPLES)
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Samples in the queues."""
        return self._waiting

    def join(self, ledger: L) -> None:
        """An instance takes samples from now on."""
        self._pools[ledger.info.role].append(ledger)
        self.wake()

    def leave(self, ledger: L) -> None:
        """An instance takes no more; samples that only it could run fail."""
        self._pools[ledger.info.role].remove(ledger)
        for route, queue in self._queues.items():
            for waiter in list(queue):
                fault = self._fault(route, waiter.demand)
                if fault is not None:
                    self._forget(queue, waiter)
                    if not waiter.turn.done():
                        waiter.turn.set_exception(fault)
        self.wake()

    def route(self, wanted: Route | None) -> Route:
        """The route that a request takes: the wanted one, else apart when both pools are there."""
        if wanted is not None:
            return wanted
        apart = self._pools[Role.PREFILL] and self._pools[Role.DECODE]
        whole = self._colocated()
        return Route.DISAGGREGATED if apart or not whole else Route.COLOCATED

    async def admit(self, route: Route, demand: Demand) -> Reservation[L]:
        """A place for one sample; see `admit_siblings`."""
        (place,) = await self.admit_siblings(route, demand, 1)
        return place

    async def admit_siblings(self, route: Route, demand: Demand, samples: int) -> Sequence[Reservation[L]]:
        """Places for samples of one prompt, now or when it is their turn. Close them.

        There are `samples` of them, or as many as are reserved for together (`policy.most_together`); then
        the others are to be admitted after these.

        Raises Unavailable when no instance of a needed role has joined, InvalidRequest when no instance
        could ever hold one sample, Overloaded when the queue is full.
        """
        fault = self._fault(route, demand)
        if fault is not None:
            raise fault
        queue = self._queues[route]
        if not queue:
            places = self._place(route, demand, samples)
            if places is not None:
                return places
        if self.waiting >= self._config.max_waiting:
            raise Overloaded(f"{self.waiting} samples wait already, the most allowed", self._retry_delay_s())
        waiter = _Waiter[L](demand, samples, asyncio.get_running_loop().create_future())
        queue[waiter] = None
        self._waiting += samples
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter in queue:
                self._forget(queue, waiter)
            elif not waiter.turn.cancelled() and waiter.turn.exception() is None:
                for place in waiter.turn.result():
                    place.close()  # the turn came in the moment of the cancellation
            self.wake()
            raise

    def wake(self) -> None:
        """Places those at the heads of the queues, as long as there is room."""
        for route, queue in self._queues.items():
            while queue:
                waiter = next(iter(queue))
                places = None
                if not waiter.turn.done():
                    places = self._place(route, waiter.demand, waiter.samples)
                    if places is None:
                        break
                self._forget(queue, waiter)
                if places is not None:
                    waiter.turn.set_result(places)

    def completed(self) -> None:
        """A sample is over; counts for the rate from which clients are told when to come back."""
        self._completions.append(time.monotonic())
        self.wake()

    def _forget(self, queue: "OrderedDict[_Waiter[L], None]", waiter: _Waiter[L]) -> None:
        del queue[waiter]
        self._waiting -= waiter.samples

    def _place(self, route: Route, demand: Demand, samples: int) -> Sequence[Reservation[L]] | None:
        lookahead = self._config.decode_lookahead
        if route is Route.COLOCATED:
            whole = pick_decode(self._colocated(), demand, lookahead)
            return None if whole is None else [Reservation(self, demand, None, None, whole)]
        pool = self._pools[Role.DECODE]
        decode = None
        if demand.max_tokens > 1:
            decode = pick_decode(pool, demand, lookahead)
            if decode is None:
                return None
            if samples > 1:
                samples = min(samples, most_together(pool, demand))
                if room_for(pool, demand) < samples:
                    return None
        prefill = pick_prefill(self._pools[Role.PREFILL], demand)
        if prefill is None:
            return None
        prompt = _PromptRoom(self, prefill, demand.prompt_tokens, samples)
        places = [Reservation(self, demand, prompt, prefill, decode)]
        while len(places) < samples:
            # Siblings of a sample that has found a slot may stand in line there, however long that is. They
            # hold the prompt's blocks on the prefill instance meanwhile, which are counted.
            decode = None if decode is None else pick_decode(pool, demand, _ANY_LINE)
            places.append(Reservation(self, demand, prompt, prefill, decode))
        return places

    def _fault(self, route: Route, demand: Demand) -> CorunError | None:
        """Why the sample can never be placed in the present fleet; None when it can."""
        needs: Sequence[tuple[str, Sequence[L], str, int]] = (
            [("colocated", self._colocated(), "sampling.max_tokens", demand.total_tokens)]
            if route is Route.COLOCATED
            else [
                ("decode", self._pools[Role.DECODE], "sampling.max_tokens", demand.total_tokens),
                ("prefill", self._pools[Role.PREFILL], "prompt", demand.prompt_tokens),
            ]
        )
        for role, pool, field, tokens in needs:
            if not pool:
                return Unavailable(f"no {role} instance has joined", role=role)
            infos = [ledger.info for ledger in pool]
            if not ever_fits(infos, tokens):
                most = max(info.blocks * info.block_tokens for info in infos)
                return InvalidRequest(
                    field,
                    f"the sample takes {tokens} tokens of KV cache on a {role} instance; "
                    f"the largest has {most}",
                )
        return None

    def _colocated(self) -> list[L]:
        return self._pools[Role.COLOCATED] + self._pools[Role.STANDARD]

    def _retry_delay_s(self) -> float:
        """When the queue should have room for a newcomer, from the rate of recent completions."""
        least, most = _RETRY_DELAY_S
        if len(self._completions) < 2:
            return 1.0
        span = max(time.monotonic() - self._completions[0], 1e-3)
        return min(most, max(least, self.waiting * span / len(self._completions)))
