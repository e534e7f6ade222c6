"""Workloads as prompt and output lengths, and the requests made of them.

The fixed ones are the paper's (arXiv 2608.14376, Fig. 8) and a short one. BurstGPT and Blazedit need
their published files; without a file a synthetic stand-in of a like length distribution takes their
place and says so in its name.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from corun_pd.core import SamplingParams

__all__ = ["FIXED", "EngineRequest", "make_engine_requests", "mixed_requests", "stand_in"]

#: (prompt tokens, output tokens) by name.
FIXED: dict[str, tuple[int, int]] = {
    "256/64": (256, 64),
    "1024/128": (1024, 128),
    "4096/128": (4096, 128),
    "1024/2048": (1024, 2048),
    "4096/2048": (4096, 2048),
}


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as an engine takes it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


def stand_in(name: str, count: int, seed: int = 0, limit: int = 8192) -> list[tuple[int, int]]:
    """Lengths drawn like the paper's Fig. 7: long-tailed for `burstgpt`, long both ways for `blazedit`.

    A log-normal of the figure's mode and tail, not the data. `limit` bounds prompt plus output.
    """
    draw = random.Random(f"{name} {seed}")
    spread = {"burstgpt": ((6.0, 1.1), (5.3, 0.9)), "blazedit": ((7.6, 0.5), (7.0, 0.6))}[name]
    lengths = []
    for _ in range(count):
        prompt, output = (max(1, round(draw.lognormvariate(*shape))) for shape in spread)
        output = min(output, limit // 2)
        lengths.append((min(prompt, limit - output), output))
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
