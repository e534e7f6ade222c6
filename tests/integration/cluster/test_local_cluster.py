"""Whole clusters of fake engines: one process per role, as `corun-pd up` starts them."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from click.testing import CliRunner

from corun_pd.cli.main import cli
from corun_pd.client import AsyncClient, Route
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig
from corun_pd.errors import SetupError

COMMAND = [sys.executable, "-m", "corun_pd.cli.main"]


@dataclass(frozen=True)
class Up:
    """A cluster that `corun-pd up` runs."""

    process: subprocess.Popen[str]
    file: str
    router: str


@pytest.fixture(scope="module")
def file(config: ClusterConfig) -> str:
    """The configuration as a cluster file."""
    path = config.log_dir.with_name("cluster.yaml")
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(path)


@pytest.fixture(scope="module")
def up(file: str) -> Iterator[Up]:
    """Started once, since that takes seconds."""
    process = subprocess.Popen([*COMMAND, "up", "--config", file], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    starting, ready = process.stdout.readline(), process.stdout.readline()
    assert starting.startswith("starting; logs are in ")
    match = re.fullmatch(r"ready: router at (127\.0\.0\.1:\d+), 3 instances\n", ready)
    assert match is not None, ready
    yield Up(process, file, match[1])
    process.kill()
    process.wait()
    process.stdout.close()


def test_describe_shows_instances_contract_and_load(up: Up) -> None:
    """For people, and as JSON."""
    shown = CliRunner().invoke(cli, ["describe", "--router", up.router], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert all(
        text in shown.output for text in ("prefill", "decode", "colocated", "prefill_mode", "isolated")
    )
    fleet = json.loads(CliRunner().invoke(cli, ["describe", "--router", up.router, "--json"]).stdout)
    assert fleet["fingerprint"][:16] in shown.output
    assert {member["instance"]["role"] for member in fleet["members"]} == {"prefill", "decode", "colocated"}
    assert all(member["load"]["free_blocks"] == member["instance"]["blocks"] for member in fleet["members"])


def test_verify_finds_the_contract_held_and_the_control_different(up: Up, tmp_path: Path) -> None:
    """Exit code 0; the outcome is in the file, every run of both routes in it."""
    outcome = tmp_path / "outcome.json"
    options = ["--router", up.router, "--config", up.file, "--prompts", "16", "--max-tokens", "4"]
    result = CliRunner().invoke(cli, ["verify", *options, "--json", str(outcome)])
    assert result.exit_code == 0, result.output
    found = json.loads(outcome.read_text())
    assert found["check"]["identical"] is True
    assert found["check"]["leaks"] == []
    assert [run["name"] for run in found["check"]["runs"]] == [
        *(f"colocated, {mode}" for mode in ("batched", "reversed", "crowded")),
        *(f"disaggregated, {mode}" for mode in ("alone", "batched", "reversed", "crowded")),
    ]
    assert found["control"]["identical"] is False


def test_one_interrupt_ends_everything(up: Up) -> None:
    """Exit code 0, since it was asked to, and no process is left. The last test that needs `up`."""
    family = psutil.Process(up.process.pid).children(recursive=True)
    assert len(family) >= 4
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=30) == 0
    assert psutil.wait_procs(family, timeout=1)[1] == []


async def test_cluster_serves_until_a_role_is_lost(config: ClusterConfig) -> None:
    """A role that ends after the start is named too, and the rest ends with it."""
    with pytest.raises(SetupError, match=r"decode-0 was killed by SIGKILL; the last lines of .*log:"):  # noqa: PT012
        async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address) as client:
            pids = cluster.pids
            assert list(pids) == ["router", "prefill-0", "decode-0", "colocated-0"]
            apart, whole = [
                await client.generate("The river", max_tokens=8, temperature=0.8, seed=7, route=route)
                for route in (Route.DISAGGREGATED, Route.COLOCATED)
            ]
            assert apart == whole
            assert apart.choices[0].placement.kv_moved_bytes > 0
            os.kill(pids["decode-0"], signal.SIGKILL)
            async with asyncio.timeout(10):
                await cluster.wait_for_failure()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_up_on_a_busy_port_fails_at_once(file: str) -> None:
    """Exit code 2 and one line that names role, port and host, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = time.monotonic()
        command = [*COMMAND, "up", "--config", file, "--port", str(port)]
        failed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - started < 20
    assert failed.returncode == 2
    assert (
        failed.stderr == f"error: router: port {port} of 127.0.0.1 cannot be bound: Address already in use\n"
    )
