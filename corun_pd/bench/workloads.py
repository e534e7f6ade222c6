"""Workloads as prompt and output lengths, and the requests made of them.

The fixed ones are the paper's (arXiv 2608.14376, Fig. 8) and a short one. BurstGPT and Blazedit need
their published files; without a file a synthetic stand-in of a like length distribution takes their
place and says so in its name.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corun_pd.core import SamplingParams
from corun_pd.errors import ConfigError

__all__ = [
    "FIXED",
    "EngineRequest",
    "Workload",
    "make_engine_requests",
    "mixed_requests",
    "parse_workloads",
    "stand_in",
]

#: (prompt tokens, output tokens) by name.
FIXED: dict[str, tuple[int, int]] = {
    "256/64": (256, 64),
    "1024/128": (1024, 128),
    "4096/128": (4096, 128),
    "1024/2048": (1024, 2048),
    "4096/2048": (4096, 2048),
}

#: Of prompt and output: (mean, deviation) of the length's logarithm.
SPREADS = {"burstgpt": ((6.0, 1.1), (5.3, 0.9)), "blazedit": ((7.6, 0.5), (7.0, 0.6))}


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as an engine takes it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """A name in tables, and (prompt tokens, output tokens) of each request."""

    name: str
    lengths: tuple[tuple[int, int], ...]


def parse_workloads(
    text: str, count: int, limit: int, files: Mapping[str, Sequence[tuple[int, int]]] | None = None
) -> list[Workload]:
    """Workloads from `NAME[:COUNT],...`, of `count` requests where no count is given.

    Names are those of `FIXED`, any PROMPT/OUTPUT, and `burstgpt` and `blazedit`: `files` has the lengths of
    those whose data are at hand; of others the stand-in is taken, and named as such. Sequences above `limit`
    tokens are cut to it. Raises ConfigError for what is no workload.
    """
    found = []
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        if number and not (number.isdecimal() and int(number)):
            raise ConfigError(f"workload {part.strip()!r}: {number!r} is not a number of requests")
        found.append(_workload(name, int(number) if number else count, limit, files or {}))
    return found


def _workload(name: str, count: int, limit: int, files: Mapping[str, Sequence[tuple[int, int]]]) -> Workload:
    plain = name.removesuffix("-stand-in")
    if plain in SPREADS:
        if plain == name and name in files:
            lengths = list(files[name])[:count]
            if len(lengths) < count:
                raise ConfigError(f"workload {name!r}: {count} requests of {len(lengths)} in the file")
            return Workload(name, tuple(_within(prompt, output, limit) for prompt, output in lengths))
        return Workload(f"{plain}-stand-in", tuple(stand_in(plain, count, limit=limit)))
    prompt, slash, output = name.partition("/")
    if not (slash and prompt.isdecimal() and output.isdecimal() and int(prompt) and int(output)):
        raise ConfigError(f"workload {name!r}: not {', '.join(SPREADS)} or PROMPT/OUTPUT in tokens")
    if int(prompt) + int(output) > limit:
        raise ConfigError(f"workload {name!r}: more than {limit} tokens a sequence")
    return Workload(name, ((int(prompt), int(output)),) * count)


def _within(prompt: int, output: int, limit: int) -> tuple[int, int]:
    """The lengths, cut so that their sum is at most `limit`."""
    output = min(output, limit // 2)
    return min(prompt, limit - output), output


def stand_in(name: str, count: int, seed: int = 0, limit: int = 8192) -> list[tuple[int, int]]:
    """Lengths drawn like the paper's Fig. 7: long-tailed for `burstgpt`, long both ways for `blazedit`.

    A log-normal of the figure's mode and tail, not the data. `limit` bounds prompt plus output.
    """
    draw = random.Random(f"{name} {seed}")
    lengths = []
    for _ in range(count):
        prompt, output = (max(1, round(draw.lognormvariate(*shape))) for shape in SPREADS[name])
        lengths.append(_within(prompt, output, limit))
    return lengths


def make_engine_requests(
    lengths: Sequence[tuple[int, int]], vocabulary: int, seed: int = 1
) -> list[EngineRequest]:
    """Random prompts of those lengths at temperature 0.6, each run to its full output length."""
    draw = random.Random(seed)
    return [
        EngineRequest(
            prompt=tuple(draw.randrange(vocabulary) for _ in range(prompt)),
            sampling=SamplingParams(max_tokens=output, seed=index, temperature=0.6, ignore_eos=True),
        )
        for index, (prompt, output) in enumerate(lengths)
    ]


def mixed_requests(
    count: int, chunk: int, block: int, vocabulary: int, longest: int, output: int, seed: int = 7
) -> list[EngineRequest]:
    """Requests where a difference would show: edges of blocks and chunks first, then any length.

    Temperatures 0, 0.6 and 1; with and without top-p and top-k; logprobs of the sampled token.
    """
    draw = random.Random(seed)
    edges = [1, 2, 3, block - 1, block, block + 1, chunk - 1, chunk, chunk + 1, chunk + 2, 2 * chunk + 1]
    lengths = [n for n in edges if n <= longest][:count]
    lengths += [round(longest ** draw.random()) for _ in range(count - len(lengths))]
    return [
        EngineRequest(
            prompt=tuple(draw.randrange(vocabulary) for _ in range(length)),
            sampling=SamplingParams(
                max_tokens=output,
                seed=1000 + index,
                temperature=(0.0, 0.6, 1.0)[index % 3],
                top_p=(1.0, 0.9)[index % 2],
                top_k=(0, 50)[index // 2 % 2],
                ignore_eos=True,
                logprobs=(0, 5)[index % 7 == 0],
            ),
        )
        for index, length in enumerate(lengths)
    ]
