"""Offline jobs on real engines: one file, wherever its lines ran and however often the job was killed."""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from corun_pd.client import AsyncClient, Route
from corun_pd.cluster.local import LocalCluster
from corun_pd.core import Role
from tests.engine.workload import grown, make_prompt, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROUPS, SIZE = 6, 4


def write_job(path: Path, model: str) -> Path:
    """Groups of lines with one prompt: edges of blocks and chunks, logprobs, stops, a chat."""
    rows = []
    for number, length in enumerate((1, 33, 64, 65, 130, 0)):
        url = "/v1/completions" if length else "/v1/chat/completions"
        body: dict[str, Any] = {"model": model, "max_tokens": 8 + number, "temperature": 0.9}
        if length:
            body |= {"prompt": make_prompt(length, number), "logprobs": 2}
        else:
            body |= {"messages": [{"role": "user", "content": "Why?"}], "stop": ["e"]}
        for at in range(SIZE):
            row = {"custom_id": f"{number}-{at}", "method": "POST", "url": url, "body": body}
            rows.append(row)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


async def start(cluster: LocalCluster, path: Path, out: Path, *options: str) -> asyncio.subprocess.Process:
    """`run-batch`, begun."""
    command = (sys.executable, "-m", "corun_pd.cli.main", "run-batch", "--router", cluster.router_address)
    return await asyncio.create_subprocess_exec(*command, "-i", path, "-o", out, *options)


async def test_the_file_does_not_tell_the_deployment_nor_how_often_the_job_was_killed(
    cluster: LocalCluster, client: AsyncClient, model: Path, tmp_path: Path
) -> None:
    """Apart, with the prompts of groups computed once; colocated; and killed -9 three times on the way."""
    path = write_job(tmp_path / "in.jsonl", str(model))
    before = await until_idle(client)
    for route in (Route.DISAGGREGATED, Route.COLOCATED):
        process = await start(cluster, path, tmp_path / route, "--route", route)
        assert await process.wait() == 0
    after = await until_idle(client)
    rows = [json.loads(line) for line in (tmp_path / Route.COLOCATED).read_bytes().splitlines()]
    tokens = [row["response"]["body"]["usage"]["prompt_tokens"] for row in rows]
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == sum(tokens) // SIZE
    assert grown(before, after, Role.COLOCATED, "prefilled_tokens") == sum(tokens)
    texts = {json.dumps(row["response"]["body"]["choices"]) for row in rows}
    assert len(texts) > 2 * GROUPS  # the control: lines of a group differ
    out = tmp_path / "killed"
    for answers in (2, 8, 14):
        process = await start(cluster, path, out, "--concurrency", "4")
        part = tmp_path / "killed.journal"
        while not part.exists() or part.read_bytes().count(b"batch_req_") < answers:
            assert process.returncode is None
            await asyncio.sleep(0.005)
        process.kill()
        assert await process.wait() == -9
    assert await (await start(cluster, path, out)).wait() == 0
    files = (tmp_path / Route.DISAGGREGATED, tmp_path / Route.COLOCATED, out)
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    await until_idle(client)
