"""The engine as the services see it: tokens in, tokens out.

Who calls what, and when. A service builds the engine and awaits `start` once. It then calls
`submit`, `cancel` and `release` from the event loop in any order, and consumes `steps` in exactly one
task. `close` ends it; nothing is called afterwards.

Who frees what. The engine owns KV blocks. A leg's blocks go back when the leg finishes, fails or is
cancelled, except those of a prefill leg that finished with a handoff: they stay until a decode engine
has pulled them, `release` is called, or the lease runs out. `InstanceLoad.free_blocks` is back at
`EngineInfo.blocks` once all that is over.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from corun_pd.contract import Contract
from corun_pd.core import FinishReason, FirstToken, InstanceLoad, KvHandoff, SamplingParams, TokenLogprobs
from corun_pd.errors import CorunError

__all__ = ["Engine", "EngineInfo", "LegOutput", "LegWork"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine is. `blocks` is the pool when idle; `block_bytes` is over all layers."""

    contract: Contract
    model: str
    slots: int
    blocks: int
    block_tokens: int
    max_model_tokens: int
    prefill_tokens: int
    block_bytes: int
    max_logprobs: int
    vocabulary: int
    rng_scheme: str


@dataclass(frozen=True, slots=True)
class LegWork:
    """One sample's work on this engine.

    `leg` names it and is never used twice. With `hand_off` (prefill engines), one token is sampled and
    the KV cache stays for a decode engine. `sibling_seeds` (prefill engines) are those of further samples
    of the prompt that differ in nothing else: it is computed once, and each of them gets a first token and,
    with `hand_off`, a handoff of its own to the same blocks. With `resume` (decode engines), the KV cache
    of the prompt is pulled and decoding goes on after the first token; `sampling` is the client's, unchanged
    but for prompt logprobs, which prefill has given. Without `stream` nobody looks at tokens as they come,
    so an engine may keep them for the last output.
    """

    leg: str
    prompt: Sequence[int]
    sampling: SamplingParams
    hand_off: bool = False
    resume: tuple[FirstToken, KvHandoff] | None = None
    stream: bool = True
    sibling_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LegOutput:
    """What one step gave one leg. The last one has `finish_reason`, `handoff` or `error`.

    `token_ids` never holds the first token that `resume` gave. `stop_token_id` is set when one of the
    request's stop_token_ids ended it (an EOS that ended it is the last token and sets none).
    `kv_pulled_bytes` counts what was pulled for the leg and is set on its last output. The first output of
    a leg with `resume`, which may be empty, tells that its KV cache has been pulled. `prompt_logprobs` has an
    entry for each prompt token but the first, and comes once, with the first token, when it was asked for.
    `siblings` has what each of `sibling_seeds` gave, unless the leg failed.
    """

    leg: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    handoff: KvHandoff | None = None
    kv_pulled_bytes: int = 0
    error: CorunError | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    siblings: tuple["LegOutput", ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether the leg is over."""
        return self.finish_reason is not None or self.handoff is not None or self.error is not None

    @property
    def handoffs(self) -> list[KvHandoff]:
        """Its own and its siblings'."""
        return [output.handoff for output in (self, *self.siblings) if output.handoff is not None]


class Engine(Protocol):
    """See the module's docstring for who calls what."""

    async def start(self) -> EngineInfo:
        """Loads the model. Raises SetupError, naming what is wrong, when it cannot."""

    def submit(self, work: LegWork) -> None:
        """Queues a leg. What is wrong with it comes back as its LegOutput's error."""

    def cancel(self, leg: str) -> None:
        """Ends a leg without output. One that is over, or unknown, is ignored."""

    def release(self, handoff_id: str) -> None:
        """Frees a handoff that nobody will pull. One that is gone is ignored."""

    def steps(self) -> AsyncIterator[Sequence[LegOutput]]:
        """What each engine step gave. Ends after `close`; raises EngineFailed when the engine dies."""

    async def load(self) -> InstanceLoad:
        """What the engine is doing now."""

    async def close(self) -> None:
        """Ends every leg and frees the model."""
