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
from pathlib import Path

import psutil
import pytest
import yaml
from click.testing import CliRunner

from corun_pd.cli.main import cli
from corun_pd.client import AsyncClient, Route
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig
from corun_pd.core import Role
from corun_pd.errors import SetupError

COMMAND = [sys.executable, "-m", "corun_pd.cli.main"]


def write(config: ClusterConfig, folder: Path) -> str:
    """The configuration as a cluster file."""
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(file)


async def test_cluster_serves_on_both_routes_until_a_role_is_lost(config: ClusterConfig) -> None:
    """Ready means that every instance is a member; a role that ends is named and takes the rest with it."""
    with pytest.raises(SetupError, match=r"decode-0 was killed by SIGKILL; the last lines of .*log:"):  # noqa: PT012
        async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address) as client:
            pids = cluster.pids
            assert list(pids) == ["router", "prefill-0", "decode-0", "colocated-0"]
            roles = {member.instance.role for member in (await client.describe()).members}
            assert roles == {Role.PREFILL, Role.DECODE, Role.COLOCATED}
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


def test_up_ends_everything_on_one_interrupt(config: ClusterConfig, tmp_path: Path) -> None:
    """Exit code 0, since it was asked to, and no process is left."""
    up = subprocess.Popen(
        [*COMMAND, "up", "--config", write(config, tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert up.stdout is not None
    lines = [up.stdout.readline() for _ in range(2)]
    assert re.fullmatch(r"ready: router at 127\.0\.0\.1:\d+, 3 instances\n", lines[1])
    family = psutil.Process(up.pid).children(recursive=True)
    assert len(family) >= 4
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=20) == 0
    assert psutil.wait_procs(family, timeout=1)[1] == []


def test_up_on_a_busy_port_fails_at_once(config: ClusterConfig, tmp_path: Path) -> None:
    """Exit code 2 and one line that names role, port and host, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*COMMAND, "up", "--config", write(config, tmp_path), "--port", str(port)]
        started = time.monotonic()
        up = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert time.monotonic() - started < 10
    assert up.returncode == 2
    assert up.stderr == f"error: router: port {port} of 127.0.0.1 cannot be bound: Address already in use\n"


def test_verify_finds_the_contract_held_and_the_control_different(
    config: ClusterConfig, tmp_path: Path
) -> None:
    """Exit code 0; the outcome is in the file, every run of both routes in it."""
    outcome = tmp_path / "outcome.json"
    arguments = ["--prompts", "16", "--max-tokens", "4", "--json", str(outcome)]
    result = CliRunner().invoke(cli, ["verify", "--config", write(config, tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(outcome.read_text())
    assert found["check"]["identical"] is True
    assert found["check"]["leaks"] == []
    assert [run["name"] for run in found["check"]["runs"]] == [
        *(f"colocated, {mode}" for mode in ("batched", "reversed", "crowded")),
        *(f"disaggregated, {mode}" for mode in ("alone", "batched", "reversed", "crowded")),
    ]
    assert found["control"]["identical"] is False
