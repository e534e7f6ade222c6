"""Which instances run a sample: filter, score, pick. Pure; the planner's simulator runs the same code.

Decode comes first: a slot and the KV room for the whole sample are reserved before its prompt is computed,
so that KV never waits for room. Then prefill: the instance with the least prompt work, among those whose
pool holds the prompt beside everything that is still to be pulled from it.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from corun_pd.core import InstanceInfo

__all__ = [
    "Demand",
    "Ledger",
    "Route",
    "ever_fits",
    "most_together",
    "pick_decode",
    "pick_prefill",
    "room_for",
    "slot_limit",
]


class Route(enum.StrEnum):
    """Prefill and decode apart, or a whole generation on one instance."""

    DISAGGREGATED = "disaggregated"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sample needs room for, in tokens."""

    prompt_tokens: int
    max_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and the longest answer."""
        return self.prompt_tokens + self.max_tokens


@dataclass(slots=True, eq=False)
class Ledger:
    """What the router has given an instance and not got back.

    `legs` are samples that hold one of its slots or are next in line. `blocks` are KV blocks: on a decode
    or colocated instance those of prompt and longest answer until the sample ends; on a prefill instance
    those of the prompt, from the start of its computation until its handoff is pulled or released.
    `prompt_tokens` are in prompts sent and not yet computed.
    """

    info: InstanceInfo
    legs: int = 0
    blocks: int = 0
    prompt_tokens: int = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that are not spoken for."""
        return self.info.blocks - self.blocks


L = TypeVar("L", bound=Ledger)

#: So many samples of one prompt may wait for room together, however small the fleet is.
_FEW: Final = 8


def slot_limit(slots: int, lookahead: int | None) -> int:
    """How many samples may be reserved on an instance: its slots and a few in line, by default a quarter."""
    return slots + (-(-slots // 4) if lookahead is None else lookahead)


def pick_decode(ledgers: Iterable[L], demand: Demand, lookahead: int | None) -> L | None:
    """The decode (or colocated) instance with the most free slots, then the most free KV; None: wait."""

    tokens = demand.total_tokens

    def score(ledger: L) -> tuple[float, float] | None:
        info, legs = ledger.info, ledger.legs
        limit, free = slot_limit(info.slots, lookahead), ledger.free_blocks
        if legs >= limit or info.blocks_for(tokens) > free:
            return None
        return (1 - legs / limit, free / info.blocks)

    return _pick(ledgers, score)


def pick_prefill(ledgers: Iterable[L], demand: Demand) -> L | None:
    """The prefill instance with the least outstanding prompt tokens; None: wait.

    Finished prompts pin their blocks until they are pulled. Counting them with those of running prompts
    keeps an instance from filling up with KV that nobody has come for.
    """

    tokens = demand.prompt_tokens

    def score(ledger: L) -> tuple[float, float] | None:
        info, free = ledger.info, ledger.free_blocks
        if info.blocks_for(tokens) > free:
            return None
        return (1 / (1 + ledger.prompt_tokens), free / info.blocks)

    return _pick(ledgers, score)


def room_for(ledgers: Iterable[L], demand: Demand) -> int:
    """How many like samples the free KV of these decode instances holds."""
    return sum(
        max(0, ledger.free_blocks) // ledger.info.blocks_for(demand.total_tokens) for ledger in ledgers
    )


def most_together(ledgers: Iterable[L], demand: Demand) -> int:
    """How many samples of one prompt are reserved for together on these decode instances; at least 1.

    Their KV room must be free at once, so if they were as many as run at once, they would wait until nothing
    else runs. A quarter of that costs three computations of the prompt more, and eight are always few.
    """
    infos = [ledger.info for ledger in ledgers]
    at_once = sum(min(i.slots, i.blocks // i.blocks_for(demand.total_tokens)) for i in infos)
    return max(1, min(at_once, max(_FEW, at_once // 4)))


def ever_fits(infos: Iterable[InstanceInfo], tokens: int) -> bool:
    """Whether an idle instance among these has KV blocks for `tokens` tokens."""
    return any(info.blocks_for(tokens) <= info.blocks for info in infos)


def _pick(ledgers: Iterable[L], score: Callable[[L], tuple[float, float] | None]) -> L | None:
    """Filter (a score of None is out), score in [0, 1], pick: the first of the best."""
    best: L | None = None
    most = (-1.0, -1.0)
    for ledger in ledgers:
        found = score(ledger)
        if found is not None and found > most:
            best, most = ledger, found
    return best
