"""Requests where a difference would show, and ways to send them."""

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from corun_pd.batch import run_job
from corun_pd.bench.workloads import EngineRequest
from corun_pd.client import (
    AsyncClient,
    Fleet,
    GenerationRequest,
    GenerationResult,
    Options,
    Route,
    build_request,
)
from corun_pd.client.results import FleetMember
from corun_pd.core import Role, SamplingParams

BLOCK, CHUNK, SLOTS, VOCABULARY, EOS = 32, 64, 8, 768, 0

#: Edges of blocks and chunks with their neighbours; chunk + 1 is where the last chunk would be one token.
EDGES: Final = (1, 2, 3, 31, 32, 33, 63, 64, 65, 66, 96, 127, 128, 129, 130)
LONG: Final = (95, 97, 191, 192, 193, 256, 257, 320)

SAMPLINGS: Final[tuple[Options, ...]] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 0.8, "n": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.8, "min_tokens": 5, "stop_token_ids": tuple(range(1, 768, 7))},
    {"temperature": 0.8, "logit_bias": {EOS: 6.0, 17: 3.0, 18: -100.0}},
    {"temperature": 0.8, "min_p": 0.05, "min_tokens": 3, "logit_bias": {EOS: 9.0}},
    {"temperature": 0.0, "max_tokens": 1},
    {"temperature": 0.8, "max_tokens": 2},
    {"temperature": 0.8, "stop": ("e", " th", "zz")},
    {"temperature": 1.5, "top_p": 0.95, "top_k": 100, "presence_penalty": -0.5},
)

LOGPROBS: Final = (5, 0, None, 20)


def make_prompt(length: int, seed: int) -> tuple[int, ...]:
    """Random ids of the whole vocabulary."""
    draw = random.Random(seed)
    return tuple(draw.randrange(VOCABULARY) for _ in range(length))


def make_requests(count: int, output: int = 10) -> list[GenerationRequest]:
    """`count` requests: the edges with several samplings, then any length below two blocks.

    Prompts are short, since the time of a run goes into them.
    """
    draw = random.Random(5)
    lengths = [*EDGES, *EDGES, *LONG]
    lengths += [draw.randint(1, 2 * BLOCK) for _ in range(count - len(lengths))]
    return [
        build_request(
            make_prompt(length, at),
            {
                "max_tokens": output,
                "seed": 1000 + 10 * at,
                "logprobs": LOGPROBS[at % len(LOGPROBS)],
                **SAMPLINGS[at % len(SAMPLINGS)],
            },
        )
        for at, length in enumerate(lengths[:count])
    ]


def as_engine_request(request: GenerationRequest) -> EngineRequest:
    """The same as an engine takes it, without what the router does: samples and stop strings."""
    given = {field: getattr(request, field) for field in SamplingParams.__dataclass_fields__}
    resolved = {field: value for field, value in given.items() if value is not None}
    assert isinstance(request.prompt, tuple)
    return EngineRequest(request.prompt, SamplingParams(**resolved))


async def send(
    client: AsyncClient,
    requests: Sequence[GenerationRequest],
    route: Route,
    order: Sequence[int] | None = None,
    at_once: int | None = None,
) -> list[GenerationResult]:
    """Sends them in that order (indices), at most `at_once` at a time; results are in request order."""
    gate = asyncio.Semaphore(at_once or len(requests))

    async def one(index: int) -> tuple[int, GenerationResult]:
        async with gate:
            return index, await client.run(replace(requests[index], route=route))

    places = range(len(requests)) if order is None else order
    results = dict(await asyncio.gather(*(one(index) for index in places)))
    return [results[index] for index in range(len(requests))]


async def run_file(
    client: AsyncClient, path: Path, rows: Iterable[dict[str, Any]], route: Route | None, at_once: int
) -> list[dict[str, Any]]:
    """Writes a batch file, runs it as a job, and reads the answers' lines, in the file's order."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    async with aclosing(run_job(path, client, route=route, concurrency=at_once)) as answers:
        found = {answer.index: json.loads(answer.data) async for answer in answers}
    return [found[index] for index in range(len(found))]


def member(fleet: Fleet, role: Role) -> FleetMember:
    """The one member of a role."""
    (found,) = (one for one in fleet.members if one.instance.role is role)
    return found


def grown(before: Fleet, after: Fleet, role: Role, counter: str) -> int:
    """By how much a counter of the one member of a role has grown."""
    first, last = (getattr(member(fleet, role).load, counter) for fleet in (before, after))
    return int(last - first)


async def until_idle(client: AsyncClient, within_s: float = 5.0) -> Fleet:
    """Waits until every block is back at every engine and in the router's books; returns the fleet then."""
    held: list[str] = ["not asked yet"]
    try:
        async with asyncio.timeout(within_s):
            while held:
                fleet = await client.describe()
                held = [text for one in fleet.members if (text := _held(one))]
                if held:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"after {within_s} s without work {'; '.join(held)}") from None
    return fleet


def _held(one: FleetMember) -> str:
    load, name = one.load, one.instance.instance_id
    if load is None:
        return f"{name} does not answer"
    counts = {
        "blocks": one.instance.blocks - load.free_blocks,
        "handoffs": load.open_handoffs,
        "running": load.running,
        "waiting": load.waiting,
        "legs at the router": one.legs,
        "blocks at the router": one.reserved_blocks,
    }
    held = {what: count for what, count in counts.items() if count}
    return f"{name} holds {held}" if held else ""
