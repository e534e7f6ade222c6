"""What a whole fleet takes for a workload, behind its router, as its clients see it."""

import asyncio
import time
from collections.abc import Sequence

from corun_pd.bench.workloads import EngineRequest
from corun_pd.client import AsyncClient, GenerationResult

__all__ = ["run_fleet"]

Row = dict[str, object]


async def run_fleet(
    client: AsyncClient, requests: Sequence[EngineRequest], in_flight: int | None = None
) -> Row:
    """Sends all requests, at most `in_flight` at a time, over one call; times are in seconds.

    TTFT is the router's, from its receipt of a request; the wait for a turn here is no part of it.
    """
    gate = asyncio.Semaphore(in_flight or len(requests))

    async with client.shared() as shared:

        async def one(request: EngineRequest) -> GenerationResult:
            async with gate:
                return await shared.generate(
                    list(request.prompt),
                    max_tokens=request.sampling.max_tokens,
                    temperature=request.sampling.temperature,
                    seed=request.sampling.seed,
                    ignore_eos=True,
                    tokens_only=True,
                )

        began_s = time.perf_counter()
        results = await asyncio.gather(*(one(request) for request in requests))
        wall_s = time.perf_counter() - began_s
    output = sum(result.usage.completion_tokens for result in results)
    prompt = sum(result.usage.prompt_tokens for result in results)
    ttft = sorted(result.timings.first_token_s for result in results)
    return {
        "requests": len(results),
        "wall_s": wall_s,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "output_tokens_per_s": output / wall_s,
        "total_tokens_per_s": (output + prompt) / wall_s,
        "ttft_p50_s": ttft[len(ttft) // 2],
        "ttft_p95_s": ttft[min(len(ttft) - 1, round(0.95 * len(ttft)))],
        "kv_moved_bytes": sum(c.placement.kv_moved_bytes for result in results for c in result.choices),
    }
