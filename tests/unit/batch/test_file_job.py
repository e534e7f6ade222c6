"""Jobs that write files: order, restarts, refusals, counts (C16, C17)."""

import asyncio
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import FileJob, InputFiles, JobOptions, Order, OutputFiles, disk
from corun_pd.batch.table import summary_table
from corun_pd.client import GenerationRequest, GenerationResult, Timings
from corun_pd.core import InstanceLoad
from corun_pd.errors import Cancelled, ContractMismatch, CorunError, EngineFailed, SetupError, Unavailable
from tests.unit.batch.make import echo, make_client, make_fleet, make_line, run_files, write_lines


def write_input(folder: Path, count: int = 40) -> None:
    """Good lines of odd lengths, a bad one, and one that the fleet refuses."""
    lines = [
        make_line(f"id-{i}", prompt=f"p{i}" * (1 + i % 7), max_tokens=1 + i * 7 % 50) for i in range(count)
    ]
    lines[2]["method"] = "GET"
    write_lines(folder / "in", *lines)


def outputs(folder: Path) -> list[str]:
    """Digests of both files."""
    return [hashlib.sha256((folder / f"out{x}.jsonl").read_bytes()).hexdigest() for x in ("", ".errors")]


async def reference(folder: Path) -> list[str]:
    """Those of a job that nothing happened to."""
    folder.mkdir()
    write_input(folder)
    job = await run_files(folder, options=JobOptions(concurrency=1, order=Order.INPUT))
    assert (job.tally.completed, job.tally.failed, job.tally.unanswered) == (39, 1, 0)
    return outputs(folder)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_answers_are_in_the_order_of_the_input(tmp_path: Path, concurrency: int, order: Order) -> None:
    """However long each takes, and in whatever order they are run: the bytes are the same."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)
    chance = random.Random(5)

    async def slow(request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(chance.random() / 500)
        return echo(request)

    await run_files(tmp_path, slow, options=JobOptions(concurrency=concurrency, order=order))
    assert outputs(tmp_path) == expected
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "in", "out.errors.jsonl", "out.jsonl", "out.jsonl.journal",
    ]  # fmt: skip


async def test_a_stopped_job_runs_only_what_is_missing(tmp_path: Path) -> None:
    """Every line is sent once over all runs, counts add up in each, and the bytes do not tell."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)
    seen: list[object] = []

    def remember(request: GenerationRequest) -> GenerationResult:
        seen.append(request.prompt)
        return echo(request)

    options = JobOptions(concurrency=3)
    for run in range(3):
        said: list[str] = []
        job = await run_files(tmp_path, remember, options=options, stop_after=8, said=said)
        tally = job.tally
        assert tally.completed + tally.failed + tally.unanswered == 40 == tally.total
        assert tally.completed == len(seen)
        assert tally.failed == tally.refused == 1
        if run:
            assert said == [f"going on: {tally.resumed} of 40 lines are finished"]
        assert not (tmp_path / "out.jsonl").exists()
    job = await run_files(tmp_path, remember, options=options)
    assert len(seen) == len(set(seen)) == 39
    assert (job.tally.completed, job.tally.failed, job.tally.unanswered) == (39, 1, 0)
    assert job.tally.completion_tokens == sum(len(str(prompt)) for prompt in seen)
    assert job.tally.run_tokens < job.tally.completion_tokens
    assert outputs(tmp_path) == expected


async def test_answers_behind_an_unfinished_line_are_not_lost(tmp_path: Path) -> None:
    """The first line hangs; the other 99 are finished, and a next run sends that one alone."""
    write_lines(tmp_path / "in", *(make_line(f"{i}", prompt=f"{i}") for i in range(100)))

    async def hang(request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(3600 if request.prompt == "0" else 0)
        return echo(request)

    client, _ = make_client(hang)
    with OutputFiles(tmp_path / "out.jsonl") as files:
        async with FileJob(InputFiles(tmp_path / "in"), files, client) as job:
            answers = job.answers()
            for _ in range(99):
                await anext(answers)
            await answers.aclose()
            assert (job.tally.completed, job.tally.unanswered) == (99, 1)
    sent: list[object] = []
    await run_files(tmp_path, lambda request: (sent.append(request.prompt), echo(request))[1])
    assert sent == ["0"]


@pytest.mark.parametrize("outage", [Unavailable("gone"), EngineFailed("died")])
async def test_accidents_and_outages_are_tried_again_by_the_same_command(
    tmp_path: Path, outage: CorunError
) -> None:
    """What the fleet failed on is no function of the request; the second run repairs it."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)

    def fail(request: GenerationRequest) -> GenerationResult | CorunError:
        return outage if request.prompt == "p30p30p30" else echo(request)

    if isinstance(outage, Unavailable):
        with pytest.raises(Unavailable):
            await run_files(tmp_path, fail)
    else:
        job = await run_files(tmp_path, fail)
        assert (job.tally.completed, job.tally.failed, job.tally.unanswered) == (38, 2, 0)
        assert b"engine_failed" in (tmp_path / "out.errors.jsonl").read_bytes()
    job = await run_files(tmp_path)
    assert (job.tally.completed, job.tally.failed, job.tally.unanswered) == (39, 1, 0)
    assert outputs(tmp_path) == expected


async def test_a_job_that_has_ended_runs_nothing_again(tmp_path: Path) -> None:
    """Its counts are told again; output that was lost is made anew, and one that was changed is kept."""
    write_input(tmp_path)
    first = await run_files(tmp_path)
    expected, said = outputs(tmp_path), list[str]()

    def never(request: GenerationRequest) -> CorunError:
        return Unavailable("nothing should be sent")

    again = await run_files(tmp_path, never, said=said)
    assert again.tally.counts() == first.tally.counts()
    assert said == [f"{tmp_path}/out.jsonl: the job has ended; nothing is left to do"]
    summary = await again.summary()
    assert [summary["output_sha256"], summary["errors_sha256"]] == expected

    (tmp_path / "out.jsonl").unlink()
    await run_files(tmp_path, said=said)
    assert "starting over" in said[-2] + said[-3]
    assert outputs(tmp_path) == expected

    (tmp_path / "out.jsonl").write_text("edited")
    with pytest.raises(SetupError, match="not what its job wrote"):
        await run_files(tmp_path, never)
    assert (tmp_path / "out.jsonl").read_text() == "edited"


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("change", "field"),
    [("input", "inputs"), ("seed", "seed"), ("route", "route"), ("contract", "contract.slots")],
)
async def test_another_job_on_the_same_output_is_refused(
    tmp_path: Path, change: str, field: str, is_whole: bool
) -> None:
    """By what differs, with nothing sent and nothing touched; with the flag it starts over."""
    write_input(tmp_path)
    await run_files(tmp_path, fleet=make_fleet(slots="8"), stop_after=None if is_whole else 8)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".part"}
    options: dict[str, Any] = {"seed": {"seed": 3}, "route": {"route": "colocated"}}.get(change, {})
    if change == "input":
        with (tmp_path / "in").open("a") as file:
            file.write("\n")
    fleet = make_fleet(slots="16" if change == "contract" else "8")
    with pytest.raises(ContractMismatch, match="journal of another job") as caught:
        await run_files(tmp_path, fleet=fleet, options=JobOptions(**options))
    assert list(caught.value.differences) == [field]
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".part"}
    assert {name: data for name, data in after.items() if name != "in"} == {
        name: data for name, data in before.items() if name != "in"
    }
    said: list[str] = []
    options |= {"accept_new_contract": True}
    job = await run_files(tmp_path, fleet=fleet, options=JobOptions(**options), said=said)
    assert any(f"{field}: " in text for text in said)
    assert (job.tally.completed, job.tally.resumed) == (39, 0)


async def test_a_torn_end_is_told_and_repaired(tmp_path: Path) -> None:
    """A machine that went down in the middle of a write."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)
    await run_files(tmp_path, stop_after=20)
    journal = tmp_path / "out.jsonl.journal"
    os.truncate(journal, journal.stat().st_size - 5)
    said: list[str] = []
    await run_files(tmp_path, said=said)
    assert "repaired; a stop had torn" in said[0]
    assert outputs(tmp_path) == expected


async def test_one_process_writes_an_output(tmp_path: Path) -> None:
    """The second is told which process is the first, and touches nothing."""
    code = (
        "import sys; from pathlib import Path; from corun_pd.batch import OutputFiles\n"
        "with OutputFiles(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    out = tmp_path / "out.jsonl"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(SetupError, match=f"is being written by process {holder.pid} on "), OutputFiles(out):
        pass
    holder.kill()  # the system lets go of the lock of whoever is gone
    holder.communicate()
    with OutputFiles(out):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_files_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    """Named by path."""
    with pytest.raises(SetupError, match="absent"), OutputFiles(tmp_path / "absent" / "out.jsonl"):
        pass
    write_input(tmp_path)
    (tmp_path / "out.jsonl.part").mkdir()
    with pytest.raises(SetupError, match=r"out\.jsonl\.part: Is a directory"):
        await run_files(tmp_path)


@pytest.mark.parametrize("where", ["output.sync_folder", "journal.replace_file"])
async def test_a_stop_while_files_get_their_names_is_repaired(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two names, and between them and the receipt: the next run sends nothing and ends it."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)
    with monkeypatch.context() as patch:
        calls = iter(range(9))

        def fail(*args: object) -> None:
            if where.startswith("output") or next(calls):  # a journal is made by its first call
                raise OSError(errno.EIO, "gone")
            disk.replace_file(*args)  # type: ignore[arg-type]

        patch.setattr(f"corun_pd.batch.{where}", fail)
        with pytest.raises(SetupError, match="gone"):
            await run_files(tmp_path)
    job = await run_files(tmp_path, lambda request: Unavailable("nothing should be sent"))
    assert (job.tally.completed, job.tally.resumed) == (39, 40)
    assert outputs(tmp_path) == expected


async def test_a_full_disk_ends_a_job_that_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of error; what fitted is kept, the half that did not is cut off."""
    expected = await reference(tmp_path / "reference")
    write_input(tmp_path)
    size = 0

    def write(fd: int, data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > 6000:
            os.write(fd, data[:40])
            raise OSError(errno.ENOSPC, "No space left on device")
        os.write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("corun_pd.batch.journal.write_all", write)
        with pytest.raises(SetupError, match=r"out\.jsonl: No space left on device"):
            await run_files(tmp_path)
    said: list[str] = []
    job = await run_files(tmp_path, said=said)
    assert "had torn its last 40 bytes" in said[0]
    assert 5 < job.tally.resumed < 20
    assert outputs(tmp_path) == expected


async def test_a_stop_is_heard_while_lines_are_checked(tmp_path: Path) -> None:
    """A million lines take their time; nothing has been sent, and the next run begins anew."""
    write_lines(tmp_path / "in", *(make_line(f"{i}") for i in range(600)))
    client, mock = make_client()
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Cancelled), OutputFiles(tmp_path / "out.jsonl") as files:
        async with FileJob(InputFiles(tmp_path / "in"), files, client, stop=stop):
            pass
    assert mock.requests == []
    assert (await run_files(tmp_path)).tally.completed == 600


async def test_there_is_no_limit_on_lines(tmp_path: Path) -> None:
    """One more than OpenAI takes."""
    line = json.dumps(make_line("ID"))
    (tmp_path / "in").write_text("\n".join(line.replace("ID", str(i)) for i in range(50_001)))
    job = await run_files(tmp_path, stop_after=1)
    assert job.tally.total == 50_001
    assert job.tally.refused == 0


async def test_the_summary_tells_times_loads_and_digests(tmp_path: Path) -> None:
    """Percentiles by nearest rank; padding of decode steps; work between the two descriptions."""
    write_lines(tmp_path / "in", *(make_line(f"{i}", prompt="abcde") for i in range(100)))
    client, mock = make_client(fleet=make_fleet(load=InstanceLoad(steps=5, rows=20, padding_rows=20)))
    began = iter(range(1, 101))

    def timed(request: GenerationRequest) -> GenerationResult:
        first_s = next(began) / 1000
        return replace(echo(request), timings=Timings(0.0, first_s, first_s + 0.4))

    mock._answer = timed
    with OutputFiles(tmp_path / "out.jsonl") as files:
        async with FileJob(InputFiles(tmp_path / "in"), files, client) as job:
            mock._fleet = make_fleet(load=InstanceLoad(steps=15, rows=60, padding_rows=30, sampled_tokens=9))
            assert len([answer async for answer in job.answers()]) == 100
            summary = await job.summary()
    assert summary["ttft_s"] == {"p50": 0.05, "p90": 0.09, "p99": 0.099}
    assert summary["tpot_s"] == {"p50": 0.1, "p90": 0.1, "p99": 0.1}
    assert summary["padding_ratio"] == 0.25
    assert isinstance(summary["instances"], list)
    assert summary["instances"][0] == {
        "instance_id": "c-1", "role": "colocated", "step_count": 10, "row_count": 40, "padding_ratio": 0.25,
        "prefilled_token_count": 0, "reused_token_count": 0, "sampled_token_count": 9,
        "kv_pulled_byte_count": 0,
    }  # fmt: skip
    assert summary["completion_token_count"] == 500 == summary["run_completion_token_count"]
    table = summary_table(summary)
    assert str(summary["output_sha256"]) in table
    assert "p50 0.05, p90 0.09" in table
