"""What comes back: frozen values of the client's own, no wire types.

Equality of results is equality of the deterministic answer: names, timings and placements, which may
differ between two runs of one request, are not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from corun_pd.core import FinishReason, InstanceInfo, InstanceLoad, TokenLogprobs

__all__ = [
    "Choice",
    "Delta",
    "Fleet",
    "FleetMember",
    "GenerationResult",
    "Placement",
    "ScoredPrompt",
    "StreamEnd",
    "StreamEvent",
    "StreamStart",
    "Timings",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sample ran. `decode` is empty when the first token was the last.

    `replays` is how often it was run again because an instance had failed; the rest is of the last run.
    """

    prefill: str = ""
    decode: str = ""
    kv_moved_bytes: int = 0
    replays: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. The prompt counts once; first tokens count as completion."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations at the router from the request's arrival, in seconds."""

    queue_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One sample, whole.

    `token_ids` holds the token that stopped it. `logprobs` has one entry per token when they were
    asked for. `stop_reason` is the stop string or the stop token id that ended it, if one did.
    `seed` is the one it was drawn with.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    stop_reason: str | int | None = None
    placement: Placement = field(default=Placement(), compare=False)


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """The prompt and the logprobs of all its tokens but the first, before which there is nothing."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The whole answer. `choices` are by index; `seed` is the one given, or the one the router minted.

    `prompt` is there when the prompt's logprobs were asked for.
    """

    generation_id: str = field(compare=False)
    choices: tuple[Choice, ...]
    usage: Usage
    system_fingerprint: str
    seed: int
    timings: Timings = field(default=Timings(), compare=False)
    prompt: ScoredPrompt | None = None

    @property
    def text(self) -> str:
        """The first sample's text."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Opens a stream."""

    generation_id: str = field(compare=False)
    system_fingerprint: str
    seed: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What came of one sample since its last delta. Its last one has `finish_reason` and what follows."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    seed: int | None = None
    placement: Placement | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Closes a stream."""

    usage: Usage
    timings: Timings = field(default=Timings(), compare=False)
    prompt: ScoredPrompt | None = None


StreamEvent = StreamStart | Delta | StreamEnd


@dataclass(frozen=True, slots=True)
class FleetMember:
    """An instance as the router sees it. `load` is None when it did not answer in time."""

    instance: InstanceInfo
    load: InstanceLoad | None
    legs: int
    reserved_blocks: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet. `fingerprint` is None, and `settings` empty, while no instance has joined."""

    fingerprint: str | None
    settings: Mapping[str, str]
    members: tuple[FleetMember, ...]
    running: int
    waiting: int
    max_message_bytes: int
