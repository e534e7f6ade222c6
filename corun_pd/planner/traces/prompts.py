"""Prompts for the requests of a trace: token ids from a hash, the same in every process and machine."""

import hashlib
import struct

from corun_pd.planner.traces.request import TraceRequest

__all__ = ["prompt_ids"]


def prompt_ids(
    request: TraceRequest, index: int, *, vocabulary: int, block_tokens: int, seed: int = 0
) -> list[int]:
    """`request.prompt_tokens` token ids below `vocabulary`.

    Equal prefix names give equal blocks of `block_tokens`, whatever stands around them. Without a prefix
    the ids depend on the request's `index` in the trace.
    """
    if request.prefix is None:
        return _ids(f"request {seed} {index}", request.prompt_tokens, vocabulary)
    ids: list[int] = []
    for name in request.prefix:
        ids += _ids(f"block {seed} {name}", min(block_tokens, request.prompt_tokens - len(ids)), vocabulary)
    return ids


def _ids(name: str, count: int, vocabulary: int) -> list[int]:
    words = hashlib.shake_128(name.encode()).digest(4 * count)
    return [(word * vocabulary) >> 32 for word in struct.unpack(f"<{count}I", words)]
