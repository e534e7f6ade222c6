"""Jobs over a mock: order, bounds, outages (C16, C17, C18)."""

import asyncio
import json
import random
import tracemalloc
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import Answer, BatchSource, Tally, run_job
from corun_pd.batch.output import OutputFiles, errors_path
from corun_pd.client import (
    AsyncClient,
    GenerationRequest,
    GenerationResult,
    MockTransport,
    RetryPolicy,
    make_result,
)
from corun_pd.errors import (
    ContractMismatch,
    CorunError,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    SetupError,
    Unavailable,
)
from tests.unit.batch.make import SERVED, make_line, write_lines

ONE_TRY = RetryPolicy(max_attempts=1)


def answer(request: GenerationRequest) -> GenerationResult:
    """The prompt again, under the fleet's fingerprint."""
    result = make_result(str(request.prompt), seed=request.seed or 0)
    return GenerationResult("g", result.choices, result.usage, SERVED.fingerprint, result.seed)


class Forgets(MockTransport):
    """A mock that keeps no requests, for tests of memory and of many lines."""

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        result = await super().generate(request, timeout_s)
        self.requests.clear()
        return result


CANNED = answer(GenerationRequest(prompt="x"))


async def run(path: Path, mock: MockTransport, **options: Any) -> list[Answer]:
    """All answers to a file."""
    client = AsyncClient(mock, retry=ONE_TRY)
    options = {"concurrency": 8} | options
    async with aclosing(run_job(BatchSource(path, SERVED), client, SERVED, **options)) as answers:
        return [item async for item in answers]


@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_answers_come_in_the_order_of_the_file(tmp_path: Path, concurrency: int) -> None:
    """However long each takes; a refused line and the slowest one keep their places."""
    lines: list[dict[str, Any]] = [make_line(f"id-{i}", prompt=f"p{i}") for i in range(100)]
    lines[2]["method"] = "GET"
    chance = random.Random(5)

    async def slow(request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(0.15 if request.prompt == "p49" else chance.random() / 500)
        return answer(request)

    path = write_lines(tmp_path / "in", *lines)
    answers = await run(path, MockTransport(slow), concurrency=concurrency)
    assert [item.number for item in answers] == list(range(1, 101))
    assert [item.custom_id for item in answers] == [f"id-{i}" for i in range(100)]
    assert [item.number for item in answers if item.failed] == [3]
    texts = [
        json.loads(item.data)["response"]["body"]["choices"][0]["text"] for item in answers if not item.failed
    ]
    assert texts == [f"p{i}" for i in range(100) if i != 2]


async def test_concurrency_and_window_bound_what_is_under_way(tmp_path: Path) -> None:
    """Never more at once than asked for, and never further ahead of the oldest than the window."""
    running = most = 0
    started: list[int] = []
    release = asyncio.Event()

    async def watch(request: GenerationRequest) -> GenerationResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        started.append(int(str(request.prompt)))
        await (release.wait() if request.prompt == "0" else asyncio.sleep(0))
        running -= 1
        return answer(request)

    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(50)))
    job = asyncio.create_task(run(path, MockTransport(watch), concurrency=4, window=10))
    await asyncio.sleep(0.1)
    assert sorted(started) == list(range(10))
    release.set()
    assert len(await job) == 50
    assert most == 4


async def test_a_failed_line_is_an_answer_and_the_others_run(tmp_path: Path) -> None:
    """The router's refusals and failures are told under the line's own names."""
    errors: dict[str, CorunError] = {
        "1": InvalidRequest("token_ids", "is over the limit of 8 tokens"),
        "2": EngineFailed("died"),
        "3": DeadlineExceeded("late"),
    }
    mock = MockTransport(lambda request: errors.get(str(request.prompt)) or answer(request))
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(5)))
    answers = await run(path, mock)
    assert [item.failed for item in answers] == [False, True, True, True, False]
    bodies = [json.loads(item.data)["response"] for item in answers]
    assert [body["status_code"] for body in bodies] == [200, 400, 500, 504, 200]
    assert bodies[1]["body"]["error"]["param"] == "prompt"


@pytest.mark.parametrize("concurrency", [1, 2, 16])
async def test_an_outage_ends_the_job_and_is_no_answer(tmp_path: Path, concurrency: int) -> None:
    """Lines must not be marked failed because the fleet was away; those before it are there."""
    mock = MockTransport(lambda request: Unavailable("gone") if request.prompt == "3" else answer(request))
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(5)))
    seen: list[int] = []
    job = run_job(
        BatchSource(path, SERVED), AsyncClient(mock, retry=ONE_TRY), SERVED, concurrency=concurrency
    )

    async def consume() -> None:
        async for item in job:
            seen.append(item.number)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(Unavailable, match="gone"):
        await consume()
    assert seen == [1, 2, 3]


async def test_another_contract_in_the_middle_ends_the_job(tmp_path: Path) -> None:
    """One output file has the answers of one contract."""
    with pytest.raises(ContractMismatch, match="fingerprint"):
        await run(write_lines(tmp_path / "in", make_line()), MockTransport(make_result("x")))


async def test_closing_a_job_cancels_what_runs(tmp_path: Path) -> None:
    """No call is left behind."""

    async def hang(request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(0 if request.prompt == "0" else 3600)
        return answer(request)

    mock = MockTransport(hang)
    path = write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(9)))
    async with aclosing(
        run_job(BatchSource(path, SERVED), AsyncClient(mock), SERVED, concurrency=4)
    ) as answers:
        assert (await anext(answers)).number == 1
    assert mock.cancelled == len(mock.requests) - 1 >= 3


async def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    """Beside what tells a custom_id that comes again, a few hundred bytes a line."""
    count = 1500
    path = write_lines(tmp_path / "in", *(make_line(f"id-{i}", prompt="x" * 4000) for i in range(count)))
    client, tally = AsyncClient(Forgets(answer)), Tally(count, 0)
    tracemalloc.start()
    try:
        async for item in run_job(BatchSource(path, SERVED), client, SERVED, concurrency=4):
            tally.add(item)
            if tally.answered == count // 2:
                early = tracemalloc.get_traced_memory()[0]
        late = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert tally.completed == count
    assert late < early + 300 * count // 2


async def test_fifty_thousand_and_one_lines_are_answered(tmp_path: Path) -> None:
    """There is no limit on lines."""
    count = 50_001
    lines = (json.dumps(make_line(f"id-{i}", prompt=[i])) for i in range(count))
    path = write_lines(tmp_path / "in", *lines)
    client, tally = AsyncClient(Forgets(CANNED)), Tally(count, 0)
    async for item in run_job(BatchSource(path, SERVED), client, SERVED, concurrency=64):
        tally.add(item)
    assert (tally.completed, tally.failed, tally.unanswered) == (count, 0, 0)


def test_output_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """A stopped job leaves .part files; answers and failures go to one file each."""
    files = OutputFiles(tmp_path / "out.jsonl")
    good, bad = Answer(1, "a", b"good\n", failed=False), Answer(2, "b", b"bad\n", failed=True)
    with files:
        files.write(good)
        files.write(bad)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.errors.jsonl.part", "out.jsonl.part"]
    with files:
        files.write(good)
        files.finish()
    assert (tmp_path / "out.jsonl").read_bytes() == b"good\n"
    assert errors_path(tmp_path / "out.jsonl").read_bytes() == b""
    with pytest.raises(SetupError, match="absent"), OutputFiles(tmp_path / "absent" / "out.jsonl"):
        pass


def test_counts_add_up() -> None:
    """Total is completed, failed and unanswered; refused lines are among the failed once answered."""
    tally = Tally(total=5, refused=1)
    tally.add(Answer(1, "a", b"", failed=True))
    tally.add(Answer(2, "b", b"", failed=False, kv_moved_bytes=7))
    counts = tally.as_json()
    assert counts["line_count"] == 5
    assert (counts["completed_count"], counts["failed_count"], counts["unanswered_count"]) == (1, 1, 3)
    assert counts["kv_moved_byte_count"] == 7
