"""The vocabulary: what exists.

A generation is one prompt with one or more samples. The router expands it into samples; each sample
is run as legs, one leg on one instance:

    queued ─► prefill ─► handed_off ─► decode ─► finished
                  │                      ▲
                  └── finished           └── first step is decode-shaped
       any of them ─► cancelled | failed
       any of them ─► replayed ─► prefill     an instance failed: from the prompt again

The edge names are the names in logs, metrics and the planner's simulator (`Edge`).
"""

import enum
import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

__all__ = [
    "MAX_MESSAGE_BYTES",
    "SEED_LIMIT",
    "Edge",
    "FinishReason",
    "FirstToken",
    "InstanceInfo",
    "InstanceLoad",
    "KvHandoff",
    "RngState",
    "Role",
    "SamplingParams",
    "StructuredOutput",
    "Syntax",
    "TokenLogprobs",
    "prompt_digest",
]

#: Seeds are below this: they fit a signed 64-bit integer, which is what engines store.
SEED_LIMIT: Final = 1 << 63

#: The largest gRPC message on every channel and server, both ways. A prompt of 5 MiB of text is at
#: most as many tokens of up to 5 wire bytes, and its answer carries no prompt.
MAX_MESSAGE_BYTES: Final = 64 << 20


class Role(enum.StrEnum):
    """What an instance does."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"
    STANDARD = "standard"


class Edge(enum.StrEnum):
    """The edges of a sample's life, in order."""

    QUEUED = "queued"
    PREFILL = "prefill"
    HANDED_OFF = "handed_off"
    DECODE = "decode"
    REPLAYED = "replayed"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"


class Syntax(enum.StrEnum):
    """How a constraint on the text is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICES = "choices"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the text must look like. `spec` is in the syntax; for choices it is a JSON list of texts."""

    syntax: Syntax
    spec: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sample's tokens are drawn; resolved, so every field has a value.

    `seed` is this sample's own. `logprobs` is None for none, 0 for the sampled token's alone, k for
    the k likeliest beside it; `prompt_logprobs` is the same of prompt tokens. `top_k` 0 keeps all tokens,
    and so do no `allowed_token_ids`. `bad_words` are token sequences. Ranges are the router's to check
    (`router.validate`).
    """

    max_tokens: int
    seed: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    structured_output: StructuredOutput | None = None
    prompt_logprobs: int | None = None

    def for_sibling(self, seed: int) -> "SamplingParams":
        """Those of a further sample of the same prompt.

        The prompt is the same for all, so the first one alone asks for its logprobs.
        """
        return replace(self, seed=seed, prompt_logprobs=None)

    def for_decode(self) -> "SamplingParams":
        """What a decode leg gets: the same, but for prompt logprobs, which prefill gives."""
        return self if self.prompt_logprobs is None else replace(self, prompt_logprobs=None)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The logprobs at one position: natural logs, float32 values as the engine computed them.

    `top` holds (token id, logprob), likeliest first, as many as were asked for.
    """

    sampled: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RngState:
    """The random state that travels with a request: a counter-based scheme, a seed and a step."""

    scheme: str
    seed: int
    step: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What prefill sampled, and the state from which decode goes on."""

    token_id: int
    rng: RngState
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class KvHandoff:
    """A single-use ticket for the KV cache of one prompt on one prefill engine.

    `block_groups` has one tuple of block ids per KV cache group (models with sliding-window layers
    have several). `lease_s` is what is left of the lease, in seconds, when the ticket is passed on.
    """

    handoff_id: str
    engine_id: str
    host: str
    port: int
    block_groups: tuple[tuple[int, ...], ...]
    token_count: int
    prompt_digest: bytes
    fingerprint: str
    lease_s: float
    tensor_parallel_size: int = 1

    @property
    def block_count(self) -> int:
        """Blocks over all groups."""
        return sum(len(group) for group in self.block_groups)


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """What an instance is and how much it can hold. `block_bytes` is over all layers of a group."""

    instance_id: str
    role: Role
    address: str
    fingerprint: str
    settings: Mapping[str, str]
    model: str
    slots: int
    blocks: int
    block_tokens: int
    max_model_tokens: int
    prefill_tokens: int
    block_bytes: int
    max_logprobs: int
    vocabulary: int

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """What an instance is doing. Counters run from its start."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    open_handoffs: int = 0
    prefilled_tokens: int = 0
    sampled_tokens: int = 0
    kv_pulled_bytes: int = 0
    steps: int = 0
    padding_rows: int = 0
    rows: int = 0
    reused_tokens: int = 0


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """SHA-256 of the ids as little-endian uint32: what ties a handoff to its prompt."""
    words = array("I", token_ids)
    if words.itemsize != 4:  # pragma: no cover - no supported platform
        raise RuntimeError("array('I') is not 32 bits wide here")
    return hashlib.sha256(words.tobytes()).digest()
