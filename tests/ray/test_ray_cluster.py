"""Clusters that Ray places: where roles go, what failures say, and that nothing outlives its supervisor."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from corun_pd.client import AsyncClient
from corun_pd.cluster.ray_cluster import RayCluster
from corun_pd.config import ClusterConfig
from corun_pd.errors import SetupError

MakeConfig = Callable[..., ClusterConfig]

COMMAND = [sys.executable, "-m", "corun_pd.cli.main"]


def gone(pids: dict[str, int], limit_s: float = 5.0) -> bool:
    """Whether all of these processes have ended, within the limit. A zombie has."""
    deadline = time.monotonic() + limit_s
    while any(is_alive(pid) for pid in pids.values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def failure_of(config: ClusterConfig) -> str:
    """What entering the cluster says, which must fail."""
    with pytest.raises(SetupError) as caught:
        async with RayCluster(config):
            pytest.fail("the cluster cannot be ready")
    return caught.value.message


def start_up(config: ClusterConfig, *options: str) -> tuple[subprocess.Popen[str], list[str]]:
    """`corun-pd up` in a process group of its own, as a shell does it, and its lines until it is ready."""
    file = config.log_dir.with_name("cluster.yaml")
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    up = subprocess.Popen(
        [*COMMAND, "up", "--config", str(file), *options],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert up.stdout is not None
    lines: list[str] = []
    while len([line for line in lines if " on node " in line]) < 3:
        lines.append(up.stdout.readline())
        assert lines[-1], lines
    return up, lines


def test_one_interrupt_ends_the_roles_and_a_ray_of_their_own(make_config: MakeConfig) -> None:
    """Without a Ray cluster one is started; Ctrl-C, which the whole group gets, ends all of it with 0."""
    instances = [{"role": role, "resources": {"CPU": 0.1}} for role in ("prefill", "decode")]
    config = make_config(instances=instances, ray={"strategy": "PACK"})
    up, lines = start_up(config, "--ray-address", "local")
    assert re.fullmatch(r"ready: router at [\d.]+:\d+, 2 instances\n", lines[1])
    family = {str(child.pid): child.pid for child in psutil.Process(up.pid).children(recursive=True)}
    os.killpg(up.pid, signal.SIGINT)
    up.communicate(timeout=30)
    assert up.returncode == 0
    assert gone(family)


async def test_spread_roles_serve_from_their_nodes_until_one_is_killed(
    nodes: Cluster, make_config: MakeConfig
) -> None:
    """Logs come to one folder; the dead role is named with its node, its end and its last lines."""
    config = make_config()
    with pytest.raises(SetupError) as caught:  # noqa: PT012
        async with RayCluster(config) as cluster, AsyncClient(cluster.router_address) as client:
            pids, places = cluster.pids, cluster.places
            assert list(places) == list(pids) == ["router", "prefill-0", "decode-0"]
            names = {name: place.partition(" ")[0] for name, place in places.items()}
            assert names["router"] == "head"
            assert {names["prefill-0"], names["decode-0"]} == {"one", "two"}
            assert cluster.router_address.startswith(f"{ray.util.get_node_ip_address()}:")
            answer = await client.generate("The river", max_tokens=8, temperature=0.8, seed=7)
            assert len(answer.choices[0].token_ids) == 8
            assert answer.choices[0].placement.kv_moved_bytes > 0
            os.kill(pids["decode-0"], signal.SIGKILL)
            async with asyncio.timeout(10):
                await cluster.wait_for_failure()
    log = config.log_dir / "decode-0.log"
    start = f"decode-0 on node {places['decode-0']} was killed by SIGKILL; the last lines of {log}:\n"
    assert caught.value.message.startswith(start)
    assert re.search(r"decode-\w+ serves on [\d.]+:\d+, contract", caught.value.message)
    assert "router serves on" in (config.log_dir / "router.log").read_text()
    assert gone(pids)


async def test_lost_node_is_named_and_the_rest_ends(nodes: Cluster, make_config: MakeConfig) -> None:
    """A node that goes without a word: its role goes with it, and so does the cluster."""
    node = nodes.add_node(num_cpus=1, node_name="three", resources={"three": 1})
    three = [{"role": "prefill"}, {"role": "decode", "resources": {"CPU": 1, "three": 1}}]
    with pytest.raises(SetupError, match=r"^decode-0 on node three \(\w{8}\) is lost: .*node"):  # noqa: PT012
        async with RayCluster(make_config(instances=three)) as cluster:
            pids = cluster.pids
            await asyncio.to_thread(nodes.remove_node, node, allow_graceful=False)
            async with asyncio.timeout(20):
                await cluster.wait_for_failure()
    assert gone(pids)


async def test_placement_that_cannot_be_met_is_refused_with_what_is_there(
    nodes: Cluster, make_config: MakeConfig
) -> None:
    """Within the limit; what is asked for, and what every node has of it."""
    config = make_config(
        instances=[{"role": "prefill"}, {"role": "decode", "count": 2, "resources": {"CPU": 2, "GPU": 1}}],
        ray={"strategy": "SPREAD", "place_timeout_s": 0.5},
    )
    started = time.monotonic()
    message = await failure_of(config)
    assert time.monotonic() - started < 5
    shown = re.sub(r" \(\w{8}\)", "", message)
    assert shown == (
        "Ray cannot place the instances within 0.5 s; asked for, by SPREAD: prefill with CPU 1, "
        "2 x decode with CPU 2, GPU 1; the Ray cluster has head with CPU 0, GPU 0; "
        "one with CPU 2, GPU 0; two with CPU 2, GPU 0; free in all: CPU 4, GPU 0"
    )


async def test_node_that_cannot_run_an_instance_is_named(nodes: Cluster, make_config: MakeConfig) -> None:
    """What a node lacks is found there, before the role's process is started. Nothing is left on it."""
    before = set(Path(tempfile.gettempdir()).glob("corun-pd-colocated-0-*"))
    config = make_config(instances=[{"role": "colocated", "cores": [4095], "resources": {"CPU": 1}}])
    assert re.match(
        r"colocated-0 on node (one|two) \(\w{8}\): instances\.0\.cores: no core 4095 here",
        await failure_of(config),
    )
    assert set(Path(tempfile.gettempdir()).glob("corun-pd-colocated-0-*")) == before


def roles_of(config: ClusterConfig) -> dict[str, int]:
    """The processes of the roles that run the configuration's model."""
    file = str(config.model)
    return {
        str(process.pid): process.pid
        for process in psutil.process_iter(["cmdline"])
        if "--supervised" in (process.info["cmdline"] or ())
        and file in Path(process.info["cmdline"][process.info["cmdline"].index("--config") + 1]).read_text()
    }


def test_roles_die_with_a_supervisor_that_is_killed(nodes: Cluster, make_config: MakeConfig) -> None:
    """SIGKILL leaves no time to clean up, and the Ray cluster stays: its actors end, and roles with them."""
    config = make_config()
    up, _ = start_up(config, "--ray-address", nodes.address)
    roles = roles_of(config)
    assert len(roles) == 3
    up.kill()
    up.communicate()
    assert gone(roles)
    deadline = time.monotonic() + 5
    while ray.available_resources().get("CPU") != 4:  # and what was set aside for them is free
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ray_cluster_that_does_not_answer_is_refused_at_once(make_config: MakeConfig) -> None:
    """Not after the minutes that Ray tries."""
    config = make_config()
    file = config.log_dir.with_name("cluster.yaml")
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [*COMMAND, "up", "--config", str(file), "--ray-address", "127.0.0.1:1"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert failed.returncode == 2
    assert failed.stderr == "error: the Ray cluster 127.0.0.1:1 cannot be used: Connection refused\n"
