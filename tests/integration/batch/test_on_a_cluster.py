"""SDK and batch file through a real router and fake engines: one answer on every path (C17, C19, C21)."""

import asyncio
import hashlib
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import Answer, FileJob, InputFiles, OutputFiles, run_job
from corun_pd.batch.frames import scan
from corun_pd.batch.journal import Kind
from corun_pd.client import AsyncClient, GenerationResult, Options, Route
from corun_pd.errors import DeadlineExceeded, InvalidRequest
from tests.integration.conftest import Cluster, MakeCluster
from tests.unit.batch.make import make_line, write_lines

BODIES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_k": 0, "presence_penalty": 0, "frequency_penalty": 0, "min_p": 0, "min_tokens": 0},
    {"top_k": -1, "logprobs": 3, "max_tokens": 1},
    {"temperature": 0.8, "n": 3, "stop": ["e", "zz"], "logit_bias": {"101": 2.0}},
    {"ignore_eos": True, "max_tokens": 40, "repetition_penalty": 1.2, "logprobs": 0},
]


async def run_file(
    client: AsyncClient, path: Path, *, route: Route | None = None, concurrency: int = 16
) -> list[Answer]:
    """A job's answers, in the file's order."""
    async with aclosing(run_job(path, client, route=route, concurrency=concurrency)) as answers:
        return sorted([answer async for answer in answers], key=lambda answer: answer.index)


def model_of(cluster: Cluster) -> str:
    """The name of what it serves."""
    return Path(cluster.nodes[0].info.model).name


async def test_one_file_gives_the_same_bytes_on_every_route_and_at_every_concurrency(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Apart and colocated, alone and in a crowd: the output file does not tell."""
    async with (
        make_cluster(prefill=2, decode=2, colocated=1) as cluster,
        AsyncClient(cluster.address) as client,
    ):
        model = model_of(cluster)
        lines = [
            make_line(f"{chat}-{i}", chat=chat, model=model, **body)
            for chat in (False, True)
            for i, body in enumerate(BODIES)
            if not (chat and "logprobs" in body)
        ]
        lines += [make_line(f"more-{i}", model=model, prompt=f"prompt {i}", max_tokens=5) for i in range(60)]
        path = write_lines(tmp_path / "in", *lines)
        runs = [
            await run_file(client, path, route=route, concurrency=concurrency)
            for route, concurrency in ((Route.DISAGGREGATED, 16), (Route.COLOCATED, 1), (None, 5))
        ]
        await cluster.until_idle()
    assert all(answer.error is None for answer in runs[0]), [a.error for a in runs[0] if a.error]
    for other in runs[1:]:
        assert [answer.data for answer in other] == [answer.data for answer in runs[0]]
    assert sum(answer.measure.kv_moved_bytes for answer in runs[0]) > 0
    assert sum(answer.measure.kv_moved_bytes for answer in runs[1]) == 0


@pytest.mark.parametrize("body", BODIES, ids=str)
async def test_sdk_stream_and_file_give_the_same_tokens(
    make_cluster: MakeCluster, tmp_path: Path, body: dict[str, Any]
) -> None:
    """Zero is zero and unset is the same default on all three paths."""
    body = body | {"seed": 11}
    options: Options = {**body}  # type: ignore[typeddict-item]
    if "logit_bias" in body:
        options["logit_bias"] = {int(key): value for key, value in body["logit_bias"].items()}
    async with make_cluster() as cluster, AsyncClient(cluster.address) as client:
        whole: GenerationResult = await client.generate("hi", **options)
        stream = client.stream("hi", **options)
        _ = [delta async for delta in stream]
        line = make_line(model=model_of(cluster), return_token_ids=True, **body)
        (answer,) = await run_file(client, write_lines(tmp_path / "in", line))
    assert stream.result == whole
    row = json.loads(answer.data)["response"]["body"]
    assert [tuple(choice["token_ids"]) for choice in row["choices"]] == [c.token_ids for c in whole.choices]
    assert [choice["text"] for choice in row["choices"]] == [choice.text for choice in whole.choices]
    assert row["usage"]["completion_tokens"] == whole.usage.completion_tokens
    assert row["seed"] == 11


async def test_the_routers_refusals_have_the_files_names(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What only the router can tell fails its line alone, under the name that the file has for it."""
    async with make_cluster() as cluster, AsyncClient(cluster.address) as client:
        model = model_of(cluster)
        lines = [
            make_line("good", model=model),
            make_line("long", model=model, prompt="x" * 5000),
            make_line("room", model=model, max_tokens=5000),
            make_line("ids", model=model, prompt=[1, 4000]),
            make_line("top_p", model=model, top_p=0),
            make_line("chat", model=model, chat=True, top_logprobs=4000, logprobs=True),
            make_line("limit", model=model, chat=True, max_completion_tokens=0),
        ]
        answers = await run_file(client, write_lines(tmp_path / "in", *lines))
        await cluster.until_idle()
    rows = [json.loads(answer.data) for answer in answers]
    assert [row["response"]["status_code"] for row in rows] == [200] + [400] * 6
    params = [row["response"]["body"]["error"]["param"] for row in rows[1:]]
    assert params == ["prompt", "max_tokens", "prompt", "top_p", "top_logprobs", "max_completion_tokens"]


async def test_a_lone_surrogate_and_a_long_prompt_leave_others_alone(make_cluster: MakeCluster) -> None:
    """A prompt of 5 MiB crosses, and is refused for its tokens by a limit that the error states."""
    async with make_cluster() as cluster, AsyncClient(cluster.address) as client:
        beside = asyncio.create_task(client.generate("beside", seed=1, max_tokens=8))
        with pytest.raises(InvalidRequest, match="surrogate"):
            await client.generate("\ud800")
        with pytest.raises(InvalidRequest, match="2048"):
            await client.generate([7] * (5 << 20))
        assert await client.generate("beside", seed=1, max_tokens=8) == await beside


@pytest.mark.parametrize("where", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
async def test_a_call_given_up_by_the_client_frees_everything(
    make_cluster: MakeCluster, where: str, how: str
) -> None:
    """By task, by deadline and by closing the stream; others are not touched."""
    slow = {
        "prefill": {"prefill_s_per_token": 0.05},
        "decode": {"decode_step_s": 0.05},
        "queued": {"decode_step_s": 0.01},
    }
    options: Options = {"max_tokens": 400, "ignore_eos": True, "seed": 3}
    slots = 1 if where == "queued" else 4
    cluster_of_one = make_cluster(slots=slots, **slow[where])
    async with cluster_of_one as cluster, AsyncClient(cluster.address) as client:
        crowd = 6 if where == "queued" else 0
        others = [asyncio.create_task(client.generate("o", max_tokens=5, seed=1)) for _ in range(crowd)]
        await asyncio.sleep(0.02)
        if how == "close":
            stream = client.stream("given up", **options)
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.15 if where == "decode" else 0.03)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        elif how == "deadline":
            with pytest.raises(DeadlineExceeded):
                await client.generate("given up", timeout_s=0.2, **options)
        else:
            task = asyncio.create_task(client.generate("given up", **options))
            await asyncio.sleep(0.15 if where == "decode" else 0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len({(await other).text for other in others}) <= 1
        await cluster.until_idle(within_s=2.0)


async def test_the_output_does_not_tell_the_deployment_nor_how_often_the_job_was_killed(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """1 + 1, 2 + 1 and colocated, and killed -9 three times on the way: one SHA-256, nothing left."""
    digests: set[object] = set()
    for at, (prefill, decode, colocated) in enumerate(((1, 1, 0), (2, 1, 0), (0, 0, 1))):
        async with make_cluster(prefill=prefill, decode=decode, colocated=colocated) as cluster:
            path = write_job(tmp_path / "in", model_of(cluster))
            async with AsyncClient(cluster.address) as client:
                with OutputFiles(tmp_path / f"out-{at}") as files:
                    async with FileJob(InputFiles(path), files, client) as job:
                        assert len([answer async for answer in job.answers()]) == 90
                        digests.add((await job.summary())["output_sha256"])
    async with make_cluster(decode_step_s=0.004) as cluster:
        out = tmp_path / "killed"
        for kill_at in (20, 45, 70):
            process = await start_job(cluster, path, out)
            while finished(tmp_path / "killed.journal") < kill_at:
                await asyncio.sleep(0.002)
            process.kill()
            assert await process.wait() == -9
            await cluster.until_idle(within_s=2.0)
        process = await start_job(cluster, path, out)
        assert await process.wait() == 0
    assert {hashlib.sha256(out.read_bytes()).hexdigest()} == digests
    assert (tmp_path / "killed.errors.jsonl").read_bytes() == b""


def write_job(path: Path, model: str) -> Path:
    """Ninety lines of every kind: prompts of their own, groups that share one, and chats."""
    bodies = [BODIES[i % len(BODIES)] for i in range(70)]
    lines = [
        make_line(f"{i}", model=model, prompt=f"prompt {i % 40}", **body) for i, body in enumerate(bodies)
    ]
    lines += [make_line(f"chat-{i}", model=model, chat=True, temperature=0.7, seed=i) for i in range(20)]
    return write_lines(path, *lines)


async def start_job(cluster: Cluster, path: Path, out: Path) -> asyncio.subprocess.Process:
    """`run-batch`, begun."""
    command = (sys.executable, "-m", "corun_pd.cli.main", "run-batch", "--router", cluster.address)
    return await asyncio.create_subprocess_exec(
        *command, "-i", str(path), "-o", str(out), stderr=asyncio.subprocess.DEVNULL
    )


def finished(journal: Path) -> int:
    """How many answers it holds."""
    if not journal.exists():
        return 0
    with journal.open("rb") as file:
        return sum(frame.kind == Kind.ANSWER for frame in scan(file))


async def test_the_documents_example_runs(make_cluster: MakeCluster) -> None:
    """As it is written, but for the address and the model's name."""
    text = (Path(__file__).parents[3] / "docs" / "batch.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    async with make_cluster() as cluster:
        code = code.replace("127.0.0.1:50051", cluster.address).replace("qwen3-wide", model_of(cluster))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert {
        line.split()[0] for line in out.decode("utf-8", "replace").splitlines() if line.startswith("q-")
    } == {f"q-{number}" for number in range(100)}
