"""A cluster that cannot start, or loses a role, says why and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from corun_pd.cluster import supervisor as supervision
from corun_pd.cluster.local import LocalCluster
from corun_pd.cluster.process import RoleProcess
from corun_pd.cluster.watcher import Watcher
from corun_pd.config import ClusterConfig, InstanceConfig
from corun_pd.core import Role
from corun_pd.errors import SetupError

SLEEP = "import time; time.sleep(600)"


def make_config(folder: Path, ready_timeout_s: float = 20.0) -> ClusterConfig:
    """A cluster of one prefill and two decode instances; its model is an empty one."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return ClusterConfig.model_validate(
        {
            "model": model,
            "engine": {"kind": "fake"},
            "router": {"port": 0},
            "instances": [{"role": "prefill"}, {"role": "decode", "count": 2}],
            "ready_timeout_s": ready_timeout_s,
            "log_dir": folder / "logs",
        }
    )


def scripts(**by_role: str) -> "Scripts":
    """Roles that are Python scripts; those not named sleep."""
    return Scripts(by_role)


class Scripts:
    """A command for LocalCluster that remembers nothing and starts scripts."""

    def __init__(self, by_role: dict[str, str]) -> None:
        self.by_role = by_role

    def __call__(self, role: str, instance: InstanceConfig | None, file: Path, router: str) -> Sequence[str]:
        return [sys.executable, "-c", self.by_role.get(role, SLEEP)]


def children() -> set[int]:
    """Everything that this process has started and that still runs."""
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    }


async def failure_of(config: ClusterConfig, command: Scripts) -> SetupError:
    """Enters the cluster, which must fail; checks that nothing new runs afterwards."""
    before = children()
    with pytest.raises(SetupError) as caught:
        async with LocalCluster(config, command=command):
            pytest.fail("the cluster cannot be ready")
    assert children() == before
    return caught.value


async def test_role_that_ends_is_named_with_its_code_and_last_lines(tmp_path: Path) -> None:
    """The message is enough to know what to do."""
    script = "print('reading weights'); import sys; sys.exit('no such tensor')"
    error = await failure_of(make_config(tmp_path), scripts(decode=script))
    name = error.metadata["role"]
    assert name in ("decode-0", "decode-1")  # whichever ends first
    assert error.message.startswith(
        f"{name} ended with exit code 1; the last lines of {tmp_path}/logs/{name}"
    )
    assert error.message.endswith(".log:\n  reading weights\n  no such tensor")


async def test_role_that_is_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    """As the kernel does it when memory runs out."""
    script = "import os; os.kill(os.getpid(), 9)"
    error = await failure_of(make_config(tmp_path), scripts(prefill=script))
    assert "prefill-0 was killed by SIGKILL" in error.message
    assert "prefill-0.log is empty" in error.message


async def test_router_that_never_answers_is_named_within_the_limit(tmp_path: Path) -> None:
    """No wait beyond ready_timeout_s; the instances, which wait for it, are not blamed."""
    started = time.monotonic()
    script = f"print('loading', flush=True); {SLEEP}"
    error = await failure_of(make_config(tmp_path, ready_timeout_s=1.0), scripts(router=script))
    assert time.monotonic() - started < 5
    assert (
        error.message
        == f"after 1 s router is not ready; the last lines of {tmp_path}/logs/router.log:\n  loading"
    )


async def test_instances_that_never_join_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefill instance has joined; the decode instances compile for ever."""

    async def members(_: Watcher) -> Counter[Role]:
        return Counter({Role.PREFILL: 1})

    monkeypatch.setattr(Watcher, "member_roles", members)
    script = f"print('compiling', flush=True); {SLEEP}"
    error = await failure_of(make_config(tmp_path, ready_timeout_s=1.0), scripts(decode=script))
    assert error.message.startswith("after 1 s decode-0 is not ready; the last lines of")
    assert "; decode-1 is not ready; the last lines of" in error.message
    assert "prefill" not in error.message


@pytest.mark.parametrize("first", ["router", "prefill"])
async def test_router_is_blamed_before_the_instances_that_it_takes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever end is noticed first: of what ended together, the first in order of start is the cause."""
    monkeypatch.setattr(supervision, "SETTLE_S", 1.0)
    pid = tmp_path / "pid"
    tells = f"import os; print(os.getpid(), file=open({str(pid)!r}, 'w'))"
    follows = f"""
import pathlib, time
pid = pathlib.Path({str(pid)!r})
while not (pid.exists() and (number := pid.read_text().strip())):
    time.sleep(0.001)
while pathlib.Path("/proc", number).exists():
    time.sleep(0.001)
"""
    begin = {True: tells, False: follows}
    ends = {
        "router": f"{begin[first == 'router']}\nraise SystemExit(2)",
        "prefill": f"{begin[first == 'prefill']}\nraise SystemExit(1)",
    }
    error = await failure_of(make_config(tmp_path), scripts(**ends))
    assert error.message.startswith("router ended with exit code 2")


async def test_log_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file is where the folder should be."""
    (tmp_path / "logs").write_text("")
    error = await failure_of(make_config(tmp_path), scripts())
    assert error.message.startswith(f"log_dir: {tmp_path}/logs cannot be written")


async def test_what_a_role_started_ends_with_it(tmp_path: Path) -> None:
    """Engines start workers; some of them in sessions of their own."""
    script = f"""
import subprocess, sys, time
for own in (False, True):
    subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=own)
print("started", flush=True)
time.sleep(600)
"""
    before = children()
    log = tmp_path / "role.log"
    role = await RoleProcess.start("role-0", [sys.executable, "-c", script], log)
    await until(lambda: "started" in log.read_text())
    assert len(children() - before) == 3
    await role.stop(grace_s=5)
    assert children() == before


async def test_role_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    """After the grace, not after ever."""
    script = f"import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); {SLEEP}"
    log = tmp_path / "role.log"
    role = await RoleProcess.start("role-0", [sys.executable, "-c", script], log)
    await until(lambda: "deaf" in log.read_text())
    started = time.monotonic()
    await role.stop(grace_s=0.2)
    assert 0.2 <= time.monotonic() - started < 2
    assert role.ended() == "was killed by SIGKILL"


async def test_roles_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves no time to clean up; the lifeline does it."""
    role = f"""
import subprocess, sys
from corun_pd.cluster import lifeline
subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
lifeline.hold()
print("held", flush=True)
{SLEEP}
"""
    supervisor = f"""
import asyncio, pathlib, sys
from corun_pd.cluster.process import RoleProcess
async def main():
    log = pathlib.Path({str(tmp_path / "log")!r})
    await RoleProcess.start("role-0", [sys.executable, "-c", {role!r}], log)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    log = tmp_path / "log"
    await until(lambda: log.exists() and "held" in log.read_text())
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)
