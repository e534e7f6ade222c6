"""An instance as a process of its own: signals and exit codes."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from corun_pd.errors import ContractMismatch

CLUSTER = """
model: .
engine: {kind: fake, slots: 4, max_model_tokens: 512}
instances: [{role: colocated}]
"""


async def start(folder: Path, router: str) -> asyncio.subprocess.Process:
    file = folder / "cluster.yaml"
    file.write_text(CLUSTER)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corun_pd.cli.main", "colocated", "--config", str(file), "--router", router),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_instance_with_code_0(tmp_path: Path, number: int) -> None:
    """It leaves, drains and says nothing of it, though its router was never there."""
    process = await start(tmp_path, "127.0.0.1:1")
    assert process.stdout is not None
    assert b"serves on" in await asyncio.wait_for(process.stdout.readline(), 20)
    process.send_signal(number)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    assert b"Traceback" not in errors


async def test_another_contract_is_exit_code_2_and_one_diff(tmp_path: Path, start_fleet: Any) -> None:
    """The field, both values, and no traceback."""
    fleet = await start_fleet(ContractMismatch("another contract", {"slots": ("8", "4")}))
    process = await start(tmp_path, fleet.address)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"slots: 8 != 4" in errors
    assert b"Traceback" not in errors


async def test_an_instance_that_is_killed_is_seen_to_leave(tmp_path: Path, start_fleet: Any) -> None:
    """Membership is the call itself: no heartbeat has to run out."""
    fleet = await start_fleet()
    process = await start(tmp_path, fleet.address)
    instance_id = await asyncio.wait_for(fleet.joined.get(), 20)
    process.kill()
    assert await asyncio.wait_for(fleet.left.get(), 2) == instance_id
    await process.communicate()
