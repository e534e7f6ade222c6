"""The workload of the contract check: prompts and sampling where a difference would show.

Made from a seed and the fleet's shape alone, so that every process and machine gets the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from corun_pd.client import Options

__all__ = ["FleetShape", "Request", "make_crowd", "make_requests", "prompt_lengths"]

#: Greedy and sampled, with and without truncation of the distribution, and two samples of one prompt.
SAMPLINGS: Final[tuple[Options, ...]] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 0.8, "n": 2},
)

#: How many of the likeliest tokens are compared beside the sampled one.
LOGPROBS: Final = 5


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The sizes that a prompt's length can straddle; of instances of one contract, the least of each."""

    block_tokens: int
    prefill_tokens: int
    max_model_tokens: int
    max_logprobs: int
    vocabulary: int
    slots: int


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in token ids and everything else that decides the answer."""

    prompt: tuple[int, ...]
    options: Options

    def describe(self) -> str:
        """The request in a few words."""
        shown = ("temperature", "top_p", "top_k", "n")
        sampling = ", ".join(f"{name} {value}" for name, value in self.options.items() if name in shown)
        return f"{len(self.prompt)} prompt tokens, {sampling}"


def prompt_lengths(shape: FleetShape, count: int, max_tokens: int) -> list[int]:
    """`count` prompt lengths in tokens: block and chunk borders with their neighbours, then any.

    None leaves less room than `max_tokens` below the model's limit.
    """
    block, chunk = shape.block_tokens, shape.prefill_tokens
    longest = shape.max_model_tokens - max_tokens
    borders = [1, 2, 3, *_around(block), *_around(chunk), *_around(2 * chunk), *_around(2 * block), 3 * chunk]
    lengths = [length for length in dict.fromkeys(borders) if 1 <= length <= longest]
    draw = random.Random(0)
    while len(lengths) < count:
        lengths.append(draw.randint(1, max(1, min(longest, 3 * chunk))))
    return lengths[:count]


def make_requests(shape: FleetShape, count: int, max_tokens: int) -> list[Request]:
    """The requests of the check, `max_tokens` output tokens each (no end-of-sequence token ends one)."""
    lengths = prompt_lengths(shape, count, max_tokens)
    return _requests(shape, lengths, max_tokens, seed=1)


def make_crowd(shape: FleetShape, max_tokens: int) -> list[Request]:
    """Other requests to run beside those of the check: three times the slots, of any length."""
    draw = random.Random(2)
    longest = max(1, min(shape.max_model_tokens - max_tokens, 2 * shape.prefill_tokens))
    lengths = [draw.randint(1, longest) for _ in range(3 * shape.slots)]
    return _requests(shape, lengths, max_tokens, seed=3)


def _requests(shape: FleetShape, lengths: Sequence[int], max_tokens: int, seed: int) -> list[Request]:
    draw = random.Random(seed)
    common: Options = {
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "logprobs": min(LOGPROBS, shape.max_logprobs),
        "tokens_only": True,
    }
    return [
        Request(
            tuple(draw.randrange(shape.vocabulary) for _ in range(length)),
            {**common, **SAMPLINGS[at % len(SAMPLINGS)], "seed": 1000 * seed + at},
        )
        for at, length in enumerate(lengths)
    ]


def _around(border: int) -> tuple[int, int, int]:
    return border - 1, border, border + 1
