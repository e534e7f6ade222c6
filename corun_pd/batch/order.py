"""Which line next: the one that is expected to take longest, among those that are looked ahead at.

A slot that ends up alone with a long line pads every step until that line is done. So long lines go
first, and the short ones fill the end. How long a line takes is known for sure only when it ignores the
end of sequence; for the others the job learns, from the answers it has seen, what lines with a like
limit and a like prompt came to. Until one such has been seen, its limit counts. Pure: nothing here waits.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from corun_pd.batch.line import Refusal
from corun_pd.batch.source import Work
from corun_pd.client import GenerationRequest

__all__ = ["LookAhead", "Order"]

#: Lines and bytes of lines that are held to choose among. The first is raised to the concurrency.
LOOK_AHEAD_LINES: Final = 4096
LOOK_AHEAD_BYTES: Final = 64 << 20

#: About so many prompt tokens are computed in the time of one decode step.
PROMPT_TOKENS_PER_STEP: Final = 256

#: A token's text is about that long.
CHARACTERS_PER_TOKEN: Final = 4

#: Stands for the limit of a line that has none: the room that is left.
NO_LIMIT: Final = 1 << 20

#: Lines without a limit get this many tokens from the router when they are completions.
COMPLETION_DEFAULT: Final = 16


class Order(StrEnum):
    """In which order lines are started. Answers are in the order of the input whatever it is."""

    LONGEST_FIRST = "longest-first"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class _Length:
    """What is known of a line's length before it runs, in decode steps but for the prompt's tokens."""

    least: int
    most: int
    prompt_tokens: int

    @classmethod
    def of(cls, request: GenerationRequest) -> Self:
        unset = NO_LIMIT if request.prompt is None else COMPLETION_DEFAULT
        most = unset if request.max_tokens is None else request.max_tokens
        least = most if request.ignore_eos and not request.stop else request.min_tokens or 0
        return cls(min(least, most), most, _prompt_tokens(request))

    @property
    def group(self) -> tuple[int, int, int]:
        """Lines of one group have like limits and prompts, to a factor of two."""
        return self.least.bit_length(), self.most.bit_length(), self.prompt_tokens.bit_length()

    def rank(self, mean_tokens: float) -> int:
        """Of the expected steps, where lines like it came to that many tokens; 9 % apart.

        Lines that hardly differ have the same rank, and so keep the order of the input.
        """
        output = max(self.least, min(self.most, mean_tokens))
        return round(8 * math.log2(1 + output + self.prompt_tokens / PROMPT_TOKENS_PER_STEP))


@dataclass(slots=True)
class _Family:
    """Lines of one prompt and one length, in the order of the input."""

    key: object
    length: _Length
    works: list[Work]


@dataclass(slots=True)
class _Group:
    """Families that are expected to be alike, longest first, and what such lines came to."""

    heap: list[tuple[int, int, _Family]] = field(default_factory=list)
    answers: int = 0
    tokens: float = 0.0
    first: tuple[float, int] = (-1, 0)

    def push(self, rank: int, family: _Family) -> None:
        """Adds a family with its first line."""
        heapq.heappush(self.heap, (-rank, family.works[0].line.index, family))
        self._look()

    def pop(self) -> _Family:
        """Takes the first family."""
        family = heapq.heappop(self.heap)[-1]
        self._look()
        return family

    def learn(self, tokens: float) -> None:
        """Takes account of an answer."""
        self.answers += 1
        self.tokens += tokens
        self._look()

    def _look(self) -> None:
        """`first` is the rank and place of the first line, below all others when there is none.

        Until an answer has been seen, the limit counts.
        """
        if self.heap:
            _, index, family = self.heap[0]
            rank = family.length.rank(self.tokens / self.answers if self.answers else NO_LIMIT)
            self.first = (rank, -index)
        else:
            self.first = (-1, 0)


class LookAhead:
    """The lines to run, refilled from `items` as they are taken.

    Lines of one prompt and one length are taken together, as far as they are held and `most` allows: their
    prompt is then computed once.
    """

    def __init__(
        self, items: Iterator[Work | Refusal], order: Order, concurrency: int, most: int = 1
    ) -> None:
        self._items = items
        self._order = order
        self._lines = max(LOOK_AHEAD_LINES, concurrency) if order is Order.LONGEST_FIRST else 1
        self._most = most
        self._refusals: list[Refusal] = []
        self._groups: dict[tuple[int, int, int], _Group] = {}
        self._families: dict[object, _Family] = {}  # those that have room for one more
        self._last: _Family | None = None
        self._held = 0
        self._held_bytes = 0

    def take(self) -> Sequence[Work | Refusal]:
        """The next lines, or the next bad one; empty when there are none left."""
        while self._held < self._lines and self._held_bytes < LOOK_AHEAD_BYTES and self._read():
            pass
        if self._refusals:
            return [self._refusals.pop()]
        if not self._held:
            return []
        family = max(self._groups.values(), key=lambda group: group.first).pop()
        while family is self._last and len(family.works) < self._most and self._read():
            pass  # the rest of a family that the look-ahead ended in
        if self._families.get(family.key) is family:
            del self._families[family.key]
        if self._last is family:
            self._last = None
        self._held -= len(family.works)
        self._held_bytes -= sum(work.line.size for work in family.works)
        return family.works

    def learn(self, work: Work, tokens_per_sample: float) -> None:
        """Takes account of a line's answer."""
        group = self._groups.get(_Length.of(work.request).group)
        if group is not None:
            group.learn(tokens_per_sample)

    def _read(self) -> bool:
        """Takes in one more line; False when that was a bad one, or there is none."""
        item = next(self._items, None)
        if item is None:
            self._last = None
            return False
        if isinstance(item, Refusal):
            self._refusals.append(item)
            return False
        self._held += 1
        self._held_bytes += item.line.size
        request = item.request
        length = _Length.of(request)
        key = (request.prompt, request.messages, length)
        family = self._last if self._order is Order.INPUT else self._families.get(key)
        if family is not None and family.key == key and len(family.works) < self._most:
            family.works.append(item)
        else:
            family = _Family(key, length, [item])
            if self._most > 1:
                self._families[key] = family
            group, rank = length.group, length.rank(NO_LIMIT)
            if self._order is Order.INPUT:
                group, rank = (0, 0, 0), 0
            self._groups.setdefault(group, _Group()).push(rank, family)
        self._last = family
        return True


def _prompt_tokens(request: GenerationRequest) -> int:
    """Counted when they are ids, guessed from the text's length otherwise."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt)
    texts = [request.prompt or "", *(message.content for message in request.messages or ())]
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN
