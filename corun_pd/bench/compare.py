"""Comparing answers bit for bit. Pure."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from corun_pd.client import Choice, GenerationResult, TokenLogprobs

__all__ = ["Comparison", "Difference", "compare", "first_difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers to request `request` part: sample, field, and the position in it, if any."""

    request: int
    sample: int
    field: str
    position: int | None
    expected: str
    found: str

    def __str__(self) -> str:
        at = "" if self.position is None else f"[{self.position}]"
        return (
            f"request {self.request}, sample {self.sample}: {self.field}{at} {self.found} != {self.expected}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run against the reference: how many requests, and where each that differs parts first."""

    name: str
    count: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> int:
        """Requests whose answers are equal in every bit."""
        return self.count - len(self.differences)

    @property
    def is_identical(self) -> bool:
        """Whether all are."""
        return not self.differences


def compare(name: str, expected: Sequence[GenerationResult], found: Sequence[GenerationResult]) -> Comparison:
    """Compares run `name` with the reference, request by request."""
    pairs = enumerate(zip(expected, found, strict=True))
    differences = (first_difference(at, one, other) for at, (one, other) in pairs)
    return Comparison(name, len(expected), tuple(one for one in differences if one is not None))


def first_difference(request: int, expected: GenerationResult, found: GenerationResult) -> Difference | None:
    """Where two answers part, or None. Logprobs are compared as float32 bits, so -0.0 is not 0.0."""
    facts = (
        ("system_fingerprint", expected.system_fingerprint, found.system_fingerprint),
        ("seed", expected.seed, found.seed),
        ("usage", expected.usage, found.usage),
        ("choices", len(expected.choices), len(found.choices)),
    )
    for field, one, other in facts:
        if one != other:
            return Difference(request, 0, field, None, str(one), str(other))
    for one_choice, other_choice in zip(expected.choices, found.choices, strict=True):
        rows = zip(_bits(one_choice), _bits(other_choice), strict=False)
        for (field, position, one_bits), (_, _, other_bits) in rows:
            if one_bits != other_bits:
                return Difference(request, one_choice.index, field, position, one_bits, other_bits)
    for position, (one_bits, other_bits) in enumerate(
        zip_longest(_prompt_bits(expected), _prompt_bits(found))
    ):
        if one_bits != other_bits:
            return Difference(request, 0, "prompt", position, str(one_bits), str(other_bits))
    return None


def _prompt_bits(result: GenerationResult) -> Iterator[str]:
    if result.prompt is not None:
        yield f"{len(result.prompt.token_ids)} tokens: {result.prompt.token_ids}"
        yield from map(_logprob_bits, result.prompt.logprobs)


def _bits(choice: Choice) -> Iterator[tuple[str, int | None, str]]:
    """A sample as (field, position, value) in an order in which the first difference says most."""
    for position, token in enumerate(choice.token_ids):
        yield "token_ids", position, str(token)
    yield "token_ids", None, f"{len(choice.token_ids)} tokens"
    yield "finish_reason", None, str(choice.finish_reason)
    yield "stop_reason", None, repr(choice.stop_reason)
    yield "seed", None, str(choice.seed)
    yield "text", None, repr(choice.text)
    if choice.logprobs is None:
        yield "logprobs", None, "none"
        return
    yield "logprobs", None, f"{len(choice.logprobs)} entries"
    for position, entry in enumerate(choice.logprobs):
        yield "logprobs", position, _logprob_bits(entry)


def _logprob_bits(entry: TokenLogprobs) -> str:
    top = " ".join(f"{token}:{_float32(value)}" for token, value in entry.top)
    return f"{_float32(entry.sampled)} rank {entry.rank} top [{top}]"


def _float32(value: float) -> str:
    """A float32's bits in hex; a NaN equals itself."""
    return struct.pack(">f", value).hex()
