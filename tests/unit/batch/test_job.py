"""Jobs over a mock: bounds, outages, failures (C16, C17, C18)."""

import asyncio
import json
import tracemalloc
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import Answer, Order, run_job
from corun_pd.client import AsyncClient, GenerationRequest, GenerationResult, MockTransport, make_result
from corun_pd.errors import (
    ContractMismatch,
    CorunError,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Unavailable,
)
from tests.unit.batch.make import Reply, echo, make_client, make_fleet, make_line, write_lines

CANNED = echo(GenerationRequest(prompt="x"))


class Forgets(MockTransport):
    """A mock that keeps no requests, for tests of memory and of many lines."""

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        result = await super().generate(request, timeout_s)
        self.requests.clear()
        return result


async def run(path: Path, reply: Reply = echo, **options: Any) -> list[Answer]:
    """All answers to a file, in its order."""
    client, _ = make_client(reply)
    options = {"concurrency": 8, "order": Order.INPUT} | options
    async with aclosing(run_job(path, client, **options)) as answers:
        return sorted([item async for item in answers], key=lambda item: item.index)


async def test_answers_come_as_they_are_ready(tmp_path: Path) -> None:
    """A slow line holds up nobody, and every answer tells whose it is."""
    release = asyncio.Event()

    async def slow(request: GenerationRequest) -> GenerationResult:
        await (release.wait() if request.prompt == "p3" else asyncio.sleep(0))
        return echo(request)

    lines = [make_line(f"id-{i}", prompt=f"p{i}") for i in range(20)]
    client, _ = make_client(slow)
    answers = []
    async with aclosing(run_job(iter(lines), client, concurrency=4)) as job:
        async for answer in job:
            answers.append(answer)
            if len(answers) == 19:
                release.set()
    assert [answer.index for answer in answers].index(3) == 19
    assert sorted(answer.index for answer in answers) == list(range(20))
    for answer in answers:
        assert answer.result is not None
        assert (answer.custom_id, answer.result.text) == (f"id-{answer.index}", f"p{answer.index}")


async def test_never_more_at_once_than_asked_for(tmp_path: Path) -> None:
    """Neither calls, nor answers that nobody has taken."""
    running = most = 0

    async def watch(request: GenerationRequest) -> GenerationResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return echo(request)

    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(50)))
    client, mock = make_client(watch)
    async with aclosing(run_job(path, client, concurrency=4)) as answers:
        await anext(answers)
        await asyncio.sleep(0.05)
        assert len(mock.requests) <= 9
        assert len([item async for item in answers]) == 49
    assert most == 4


async def test_a_stopped_job_ends_what_runs_and_begins_no_more(tmp_path: Path) -> None:
    """What is under way is answered; the rest is not sent."""
    stop, release = asyncio.Event(), asyncio.Event()

    async def wait(request: GenerationRequest) -> GenerationResult:
        await release.wait()
        return echo(request)

    client, mock = make_client(wait)
    lines = (make_line(f"{i}") for i in range(50))

    async def consume() -> list[Answer]:
        return [item async for item in run_job(lines, client, concurrency=4, stop=stop)]

    job = asyncio.create_task(consume())
    await asyncio.sleep(0.02)
    stop.set()
    release.set()
    assert len(await job) == 4 == len(mock.requests)


async def test_a_failed_line_is_an_answer_and_the_others_run(tmp_path: Path) -> None:
    """The router's refusals and failures are told under the line's own names."""
    errors: dict[str, CorunError] = {
        "1": InvalidRequest("token_ids", "is over the limit of 8 tokens"),
        "2": EngineFailed("died"),
        "3": DeadlineExceeded("late"),
    }
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(5)))
    answers = await run(path, lambda request: errors.get(str(request.prompt)) or echo(request))
    assert [item.measure.is_failure for item in answers] == [False, True, True, True, False]
    assert [item.measure.is_accident for item in answers] == [False, False, True, True, False]
    bodies = [json.loads(item.data)["response"] for item in answers]
    assert [body["status_code"] for body in bodies] == [200, 400, 500, 504, 200]
    assert bodies[1]["body"]["error"]["param"] == "prompt"


@pytest.mark.parametrize("concurrency", [1, 2, 16])
async def test_an_outage_ends_the_job_and_is_no_answer(tmp_path: Path, concurrency: int) -> None:
    """Lines must not be marked failed because the fleet was away; those before it are there."""
    client, _ = make_client(lambda request: Unavailable("gone") if request.prompt == "3" else echo(request))
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(5)))
    seen: list[int] = []
    job = run_job(path, client, concurrency=concurrency, order=Order.INPUT)

    async def consume() -> None:
        async for item in job:
            seen.append(item.number)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(Unavailable, match="gone"):
        await consume()
    assert seen[:3] == [1, 2, 3]
    assert 4 not in seen


async def test_another_contract_in_the_middle_ends_the_job(tmp_path: Path) -> None:
    """One output file has the answers of one contract."""
    with pytest.raises(ContractMismatch, match="fingerprint"):
        await run(write_lines(tmp_path / "in", make_line()), lambda request: make_result("x"))


async def test_closing_a_job_cancels_what_runs(tmp_path: Path) -> None:
    """No call is left behind."""

    async def hang(request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(0 if request.prompt == "0" else 3600)
        return echo(request)

    client, mock = make_client(hang)
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(9)))
    async with aclosing(run_job(path, client, concurrency=4, order=Order.INPUT)) as answers:
        assert (await anext(answers)).number == 1
    assert mock.cancelled == len(mock.requests) - 1 >= 3


@pytest.mark.parametrize("order", list(Order))
async def test_memory_does_not_grow_with_the_number_of_lines(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what tells a custom_id that comes again, a few hundred bytes a line, and the look-ahead."""
    monkeypatch.setattr("corun_pd.batch.order.LOOK_AHEAD_BYTES", 2 << 20)
    count = 300
    path = write_lines(tmp_path / "in", *(make_line(f"id-{i}", prompt="x" * 100_000) for i in range(count)))
    client = AsyncClient(Forgets(lambda request: CANNED, make_fleet()))
    seen = 0
    tracemalloc.start()
    try:
        async for _ in run_job(path, client, concurrency=4, order=order):
            seen += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == count
    assert peak < (3 << 20) + (0 if order is Order.INPUT else 2 << 20)  # the file has 30 MB
