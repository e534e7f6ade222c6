"""`run-batch` and `generate` as users run them, against a router of the test's own (C15 to C18)."""

import asyncio
import gzip
import hashlib
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from corun_pd.errors import InvalidRequest
from tests.integration.batch.test_on_a_cluster import finished
from tests.integration.client.fake_router import CONTRACT, serve_router
from tests.unit.batch.make import make_line, write_lines


async def start(*arguments: object) -> asyncio.subprocess.Process:
    """The command, begun."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corun_pd.cli.main", *map(str, arguments),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def finish(process: asyncio.subprocess.Process, stdin: str = "") -> tuple[int, str, str]:
    """Its exit code, output and errors."""
    out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
    """The command, run to its end."""
    return await finish(await start(*arguments), stdin)


def rows(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_every_line_is_answered_once_in_order_and_the_same_on_every_run(tmp_path: Path) -> None:
    """Good, bad, refused by the router, long and odd ids; two runs give the same bytes."""
    long_id, emoji = "x" * 10_000, "👩‍👩‍👧"
    path = write_lines(
        tmp_path / "in.jsonl",
        make_line("first", temperature=0),
        make_line("first"),
        make_line(long_id, chat=True, messages=[{"role": "user", "content": "hi"}], logprobs=True),
        make_line("too-long", prompt="refused by the router"),
        make_line(emoji, prompt="slow", n=2, seed=7),
        make_line("surrogate", prompt="a\ud800"),
        make_line("nul", prompt="a\0b"),
        make_line("huge", prompt="y" * 30_000_000),
        make_line("last", prompt=[1, 2, 3]),
    )
    async with serve_router() as router:
        router.errors["refused by the router"] = InvalidRequest("text", "is 9 tokens; the limit is 8")
        command = ("run-batch", "-i", path, "--router", router.address)
        summary = tmp_path / "summary.json"
        code, _, err = await run(*command, "-o", tmp_path / "out.jsonl", "--summary", summary)
        assert code == 1, err
        again = tmp_path / "again.jsonl"
        assert (await run(*command, "-o", again, "--concurrency", 1))[0] == 1
        other = tmp_path / "other.jsonl"
        assert (await run(*command, "-o", other, "--seed", 5))[0] == 1
    out, errors = rows(tmp_path / "out.jsonl"), rows(tmp_path / "out.errors.jsonl")
    assert [row["custom_id"] for row in out] == ["first", long_id, emoji, "nul", "last"]
    assert [row["custom_id"] for row in errors] == ["first", "too-long", "surrogate", "huge"]
    assert {row["response"]["status_code"] for row in out} == {200}
    assert [row["response"]["status_code"] for row in errors] == [400] * 4
    assert [row["response"]["body"]["error"]["param"] for row in errors] == [
        "custom_id", "prompt", "prompt", "line",
    ]  # fmt: skip
    assert {row["response"]["body"]["system_fingerprint"] for row in out} == {CONTRACT.fingerprint}
    assert [choice["index"] for choice in out[2]["response"]["body"]["choices"]] == [0, 1]
    assert out[3]["response"]["body"]["choices"][0]["text"] == "a\0b"

    assert again.read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert (tmp_path / "again.errors.jsonl").read_bytes() == (tmp_path / "out.errors.jsonl").read_bytes()
    seeds = [[row["response"]["body"]["seed"] for row in rows(file)] for file in (again, other)]
    assert [first == second for first, second in zip(*seeds, strict=True)] == [
        False, False, True, False, False,
    ]  # fmt: skip

    for number, whose in ((2, "first"), (6, "surrogate"), (8, "huge")):
        assert f"refused: line {number} (custom_id {whose!r})" in err
    assert "3 of 9 lines are refused" in err
    counts = json.loads(summary.read_text())
    assert counts["line_count"] == 9 == counts["completed_count"] + counts["failed_count"]
    assert (counts["refused_count"], counts["failed_count"], counts["unanswered_count"]) == (3, 4, 0)
    assert counts["completion_token_count"] == sum(
        row["response"]["body"]["usage"]["completion_tokens"] for row in out
    )
    assert counts["kv_moved_byte_count"] == 10 * 6
    assert counts["output_sha256"] == hashlib.sha256((tmp_path / "out.jsonl").read_bytes()).hexdigest()
    assert counts["output_sha256"] in err
    assert counts["inputs"][0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_windows_file_runs_whole(tmp_path: Path) -> None:
    """Byte order mark, CRLF, a blank line in the middle, no newline at the end: 4 in, 4 out, exit 0."""
    texts = [json.dumps(make_line(f"id-{i}")) for i in range(4)]
    path = tmp_path / "in.jsonl"
    path.write_bytes("\ufeff".encode() + "\r\n".join([*texts[:2], "", *texts[2:]]).encode())
    async with serve_router() as router:
        code, _, err = await run("run-batch", "-i", path, "-o", tmp_path / "out", "--router", router.address)
    assert code == 0, err
    assert [row["custom_id"] for row in rows(tmp_path / "out")] == [f"id-{i}" for i in range(4)]
    assert (tmp_path / "out.errors.jsonl").read_bytes() == b""


async def test_nothing_is_sent_before_every_line_is_checked(tmp_path: Path) -> None:
    """The refusals are on stderr when the first request is on its way."""
    lines = [make_line(f"id-{i}", prompt="hang") for i in range(20)]
    lines[-1]["method"] = "GET"
    path = write_lines(tmp_path / "in.jsonl", *lines)
    async with serve_router() as router:
        process = await start("run-batch", "-i", path, "-o", tmp_path / "out", "--router", router.address)
        assert process.stderr is not None
        assert b"line 20" in await process.stderr.readline()
        await router.until(lambda: router.running > 0)
        process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_a_second_one_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """Exit 130; what was answered is counted and kept, behind the line that hangs too; calls end."""
    lines = [make_line(f"id-{i}", prompt="hang" if i == 30 else "quick") for i in range(100)]
    path = write_lines(tmp_path / "in.jsonl", *lines)
    summary, part = tmp_path / "summary.json", tmp_path / "out.jsonl.part"
    async with serve_router() as router:
        command = (
            "run-batch", "-i", path, "-o", tmp_path / "out.jsonl", "--router", router.address,
            "--concurrency", 4, "--summary", summary,
        )  # fmt: skip
        process = await start(*command)
        await router.until(lambda: finished(tmp_path / "out.jsonl.journal") == 99)
        assert part.read_bytes().count(b"\n") == 30
        process.send_signal(number)
        assert process.stderr is not None
        assert b"stopping" in await process.stderr.readline()
        assert router.running == 1  # it drains
        process.send_signal(number)
        code, _, err = await finish(process)
        await router.until(lambda: router.running == 0)
        assert code == 130
        assert "Traceback" not in err
        counts = json.loads(summary.read_text())
        assert (counts["completed_count"], counts["failed_count"], counts["unanswered_count"]) == (99, 0, 1)
        assert [row["custom_id"] for row in rows(part)] == [f"id-{i}" for i in range(30)]
        assert not (tmp_path / "out.jsonl").exists()
        router.texts["hang"] = "quick"
        assert (await run(*command))[0] == 0
        assert len(router.requests) == 101
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == [f"id-{i}" for i in range(100)]


async def test_a_drained_job_goes_on(tmp_path: Path) -> None:
    """One signal: lines under way are ended and kept, and no others are begun."""
    path = write_lines(tmp_path / "in.jsonl", *(make_line(f"id-{i}", prompt="slow") for i in range(40)))
    async with serve_router() as router:
        out = tmp_path / "out.jsonl"
        command = ("run-batch", "-i", path, "-o", out, "--router", router.address, "--concurrency", 4)
        process = await start(*command)
        await router.until(lambda: len(router.requests) >= 6)
        process.send_signal(signal.SIGINT)
        code, _, err = await finish(process)
        assert code == 130
        sent = len(router.requests)
        assert sent < 40
        assert f"completed_count             {sent}" in err
        assert (await run(*command))[0] == 0
        assert len(router.requests) == 40


async def test_kill_9_loses_no_finished_line(tmp_path: Path) -> None:
    """Killed at 60 % while the slowest line runs: what is finished is not run again, and no byte differs."""
    lines = [make_line(f"id-{i}", prompt="hang" if i == 49 else f"p{i}") for i in range(100)]
    lines[2]["method"] = "GET"
    path = write_lines(tmp_path / "in.jsonl", *lines)
    async with serve_router() as router:
        router.delay_s = 0.01

        def command(out: str) -> tuple[object, ...]:
            return (
                "run-batch",
                "-i",
                path,
                "-o",
                tmp_path / out,
                "--router",
                router.address,
                "--concurrency",
                4,
            )

        process = await start(*command("out.jsonl"))
        await router.until(lambda: len(router.requests) >= 60)
        process.kill()
        await finish(process)
        await router.until(lambda: router.running == 0)
        sent = len(router.requests)
        router.texts["hang"] = "p49"
        assert (await run(*command("out.jsonl")))[0] == 1
        assert len(router.requests) <= 99 + 4 + (sent > 60) * 4
        assert (await run(*command("whole.jsonl")))[0] == 1
    for suffix in ("", ".errors"):
        assert (tmp_path / f"out{suffix}.jsonl").read_bytes() == (
            tmp_path / f"whole{suffix}.jsonl"
        ).read_bytes()
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == [
        f"id-{i}" for i in range(100) if i != 2
    ]


async def test_standard_input_several_files_and_packed_ones(tmp_path: Path) -> None:
    """All of them one job; a restart takes what standard input was from its copy."""
    first = write_lines(tmp_path / "a.jsonl", make_line("a"), make_line("fails"))
    second = tmp_path / "b.jsonl.gz"
    second.write_bytes(gzip.compress(json.dumps(make_line("b")).encode()))
    out = tmp_path / "out.jsonl"
    async with serve_router() as router:
        command = ("run-batch", "-i", first, "-i", "-", "-i", second, "-o", out, "--router", router.address)
        stdin = json.dumps(make_line("stdin", prompt="hang")) + "\n"
        process = await start(*command)
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        part = tmp_path / "out.jsonl.part"
        await router.until(lambda: part.exists() and part.read_bytes().count(b"\n") == 2)
        process.kill()
        await process.wait()
        router.texts["hang"] = "quick"
        code, _, err = await run(*command)
        assert code == 0, err
        assert re.search("going on: [23] of 4 lines are finished", err)
    assert [row["custom_id"] for row in rows(out)] == ["a", "fails", "stdin", "b"]
    assert not (tmp_path / "out.jsonl.stdin").exists()


async def test_what_keeps_a_job_from_starting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """A wrong encoding, an empty file, the same file for input and output."""
    utf16 = tmp_path / "utf16.jsonl"
    utf16.write_text(json.dumps(make_line()), encoding="utf-16")
    empty = write_lines(tmp_path / "empty.jsonl")
    async with serve_router() as router:
        cases = [
            (utf16, tmp_path / "out", "is UTF-16"),
            (empty, tmp_path / "out", "no lines"),
            (utf16, utf16, "a file of its own"),
        ]
        for source, out, message in cases:
            code, _, err = await run("run-batch", "-i", source, "-o", out, "--router", router.address)
            assert code == 2
            assert message in err
            assert len(err.splitlines()) == 1
        assert router.requests == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.jsonl", "utf16.jsonl"]


async def test_generate_prints_text_streams_and_json(tmp_path: Path) -> None:
    """From an argument, standard input or a chat; 0 is sent, and what is not given is not."""
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "hi"}]')
    async with serve_router() as router:
        where = ("--router", router.address)
        assert await run("generate", "héy", "--temperature", 0, *where) == (0, "héy\n", "")
        assert router.requests[-1].sampling.HasField("temperature")
        assert not router.requests[-1].sampling.HasField("seed")
        assert await run("generate", "--stream", *where, stdin="from stdin") == (0, "from stdin\n", "")
        code, out, _ = await run("generate", "--messages", chat, "--json", "-n", 2, *where)
        assert code == 0
        assert [choice["index"] for choice in json.loads(out)["choices"]] == [0, 1]
        assert router.requests[-1].chat.messages[0].content == "hi"
        code, _, err = await run("generate", "x", "--seed", -1, *where)
        assert (code, err) == (2, f"error: sampling.seed: must be from 0 to {2**63 - 1}, not -1\n")
