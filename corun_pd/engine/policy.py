"""What the next step takes: pure policy, without an engine.

The rules are the paper's Algorithms 1 and 2 (arXiv 2608.14376, Section IV-B) and, for `PackedPrefill`,
ours. They see queues as numbers and answer with names and token counts. The vLLM scheduler binds them
to its queues; the planner's simulator runs the same code.

Two facts hold for every answer, and the determinism contract rests on them: chunk borders depend on
the prompt's own length alone, and a prompt starts only if its whole configured sequence fits, so that
nothing is ever preempted or recomputed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = [
    "PATIENCE",
    "Candidate",
    "IsolatedPrefill",
    "PackedPrefill",
    "PrefillPolicy",
    "Share",
    "admit_in_order",
]

#: Decode steps for which a packed prefill step may be put off until it is fuller.
PATIENCE: Final = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request with work to do.

    `prompt` and `computed` are in tokens. `blocks` is how many KV blocks it still needs until its
    configured end, over all KV cache groups.
    """

    key: str
    prompt: int
    computed: int
    blocks: int

    @property
    def remaining(self) -> int:
        """Prompt tokens that are still to be computed."""
        return self.prompt - self.computed


@dataclass(frozen=True, slots=True)
class Share:
    """`tokens` of request `key` go into the step."""

    key: str
    tokens: int


class PrefillPolicy(Protocol):
    """Which prompts, and how many tokens of each, the next prefill step takes."""

    def next_step(
        self,
        partial: Candidate | None,
        waiting: Iterable[Candidate],
        slots: int,
        blocks: int,
        patience: int = 0,
    ) -> Sequence[Share]:
        """`partial` is the started prompt, `waiting` the others in order of arrival.

        `slots` and `blocks` are what is free after the started requests have all that they need until
        their ends. `patience` is how many decode steps the prompts may still be put off; it is 0 when
        nothing decodes. Empty: no prefill now.
        """

    def whole_chunks(self, prompt: int) -> int:
        """How many first tokens of a prompt of `prompt` tokens are computed in full chunks."""


@dataclass(frozen=True, slots=True)
class IsolatedPrefill:
    """One prompt a step, in chunks of at most `chunk` tokens (Algorithm 1).

    The last chunk is never one token: such a step looks like decode, and engines give it decode's
    kernels. A prompt of chunk + 1 tokens is cut into chunk - 1 and 2.
    """

    chunk: int

    def next_step(
        self,
        partial: Candidate | None,
        waiting: Iterable[Candidate],
        slots: int,
        blocks: int,
        patience: int = 0,
    ) -> Sequence[Share]:
        """The started prompt goes on before another starts; the head of the queue is never overtaken."""
        if partial is not None:
            return [Share(partial.key, self.chunk_of(partial.remaining))]
        head = next(admit_in_order(waiting, slots, blocks), None)
        return [] if head is None else [Share(head.key, self.chunk_of(head.remaining))]

    def whole_chunks(self, prompt: int) -> int:
        """Multiples of the chunk, less the one that gives a token to a last chunk of two."""
        whole = prompt - prompt % self.chunk
        return max(whole - self.chunk, 0) if prompt - whole == 1 else whole

    def chunk_of(self, remaining: int) -> int:
        """Tokens of the next chunk when `remaining` are left."""
        if remaining <= self.chunk:
            return remaining
        return self.chunk - 1 if remaining == self.chunk + 1 else self.chunk


@dataclass(frozen=True, slots=True)
class PackedPrefill:
    """Whole prompts and remainders up to `width` tokens, in a step that is padded to exactly `width`.

    A prompt longer than `width` is cut at multiples of it, so all but its last piece fill a step of
    their own. Last pieces share a step: the oldest first, then whatever of the next `window` prompts
    still fits, so that nothing starves and little is padding.

    Slots get free one by one where outputs differ in length, and a step for each would be mostly
    padding. So while prompts queue for slots or blocks, a step waits until it is `fill` full;
    `patience` bounds the wait. Prompts that all find a slot never wait.
    """

    width: int
    window: int = 64
    fill: float = 0.875

    def next_step(
        self,
        partial: Candidate | None,
        waiting: Iterable[Candidate],
        slots: int,
        blocks: int,
        patience: int = 0,
    ) -> Sequence[Share]:
        """The started prompt goes on first; then first fit in order of arrival."""
        shares: list[Share] = []
        room = self.width
        if partial is not None:
            if partial.remaining >= self.width:
                return [Share(partial.key, self.width)]
            shares.append(Share(partial.key, partial.remaining))
            room -= partial.remaining
        short_of_room = False
        width = self.width
        for place, prompt in enumerate(waiting):
            if slots == 0 or prompt.blocks > blocks:
                short_of_room = True
                break
            if place >= self.window or room == 0:
                break
            tokens = prompt.prompt - prompt.computed
            if tokens > width:
                tokens = width
            if tokens <= room:
                shares.append(Share(prompt.key, tokens))
                room -= tokens
                slots -= 1
                blocks -= prompt.blocks
        put_off = short_of_room and patience > 0 and self.width - room < self.fill * self.width
        return [] if put_off and partial is None else shares

    def whole_chunks(self, prompt: int) -> int:
        """Multiples of the width."""
        return prompt - prompt % self.width


def admit_in_order(waiting: Iterable[Candidate], slots: int, blocks: int) -> Iterator[Candidate]:
    """Those of `waiting` that may start now, strictly in order: the first that does not fit ends it."""
    for candidate in waiting:
        if slots == 0 or candidate.blocks > blocks:
            return
        slots -= 1
        blocks -= candidate.blocks
        yield candidate
