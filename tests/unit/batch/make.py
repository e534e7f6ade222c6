"""Batch lines, files and fleets for tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from corun_pd.batch import (
    Answer,
    BatchSource,
    FileJob,
    InputFiles,
    JobOptions,
    OutputFiles,
    Refusal,
    Served,
    Work,
)
from corun_pd.client import (
    AsyncClient,
    Fleet,
    FleetMember,
    GenerationRequest,
    GenerationResult,
    MockTransport,
    RetryPolicy,
    make_result,
)
from corun_pd.core import InstanceInfo, InstanceLoad, Role
from corun_pd.errors import CorunError

SERVED = Served("f" * 64, ("tiny", "models/tiny"), slots=4)
NO_LOAD = InstanceLoad()
OPTIONS = JobOptions()
ONE_TRY = RetryPolicy(max_attempts=1)

Reply = Callable[
    [GenerationRequest], GenerationResult | CorunError | Awaitable[GenerationResult | CorunError]
]


def make_line(custom_id: object = "a", *, chat: bool = False, **body: Any) -> dict[str, Any]:
    """A good line; `body` adds to its body or replaces what is there."""
    base: dict[str, Any] = {"model": "tiny"}
    base |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": base | body}


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    """A file of lines; text is written as it is."""
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def read_items(path: Path, *lines: dict[str, Any] | str, seed: int = 0) -> list[Work | Refusal]:
    """What a source makes of them."""
    return list(BatchSource(write_lines(path, *lines), SERVED, seed=seed))


def make_fleet(fingerprint: str = SERVED.fingerprint, load: InstanceLoad = NO_LOAD, **settings: str) -> Fleet:
    """One colocated instance of 4 slots that serves "tiny"."""
    info = InstanceInfo(
        "c-1", Role.COLOCATED, "here:1", fingerprint, settings, "models/tiny", slots=4, blocks=8,
        block_tokens=16, max_model_tokens=64, prefill_tokens=64, block_bytes=1, max_logprobs=5,
        vocabulary=300,
    )  # fmt: skip
    return Fleet(fingerprint, settings, (FleetMember(info, load, 0, 0),), 0, 0, 1)


def echo(request: GenerationRequest) -> GenerationResult:
    """The prompt again, under the fleet's fingerprint."""
    result = make_result(str(request.prompt), seed=request.seed or 0)
    return replace(result, system_fingerprint=SERVED.fingerprint)


def make_client(reply: Reply = echo, fleet: Fleet | None = None) -> tuple[AsyncClient, MockTransport]:
    """A client of a mock fleet, which tries once."""
    mock = MockTransport(reply, fleet or make_fleet())
    return AsyncClient(mock, retry=ONE_TRY), mock


async def run_files(
    folder: Path,
    reply: Reply = echo,
    *,
    options: JobOptions = OPTIONS,
    fleet: Fleet | None = None,
    stop_after: int | None = None,
    said: list[str] | None = None,
    inputs: InputFiles | None = None,
) -> FileJob:
    """The job from folder/in to folder/out, whole, or stopped once that many answers have come."""
    client, mock = make_client(reply, fleet)
    stop = asyncio.Event()
    say = (said if said is not None else []).append
    with OutputFiles(folder / "out.jsonl") as files:
        job = FileJob(inputs or InputFiles(folder / "in"), files, client, options, stop=stop, say=say)
        answers: list[Answer] = []
        async with job:
            async for answer in job.answers():
                answers.append(answer)
                if len(answers) == stop_after:
                    stop.set()
    assert len(mock.requests) >= len(answers)
    return job
