"""What is refused before any process is started."""

import os
import socket
from pathlib import Path

import pytest

from corun_pd.cluster.preflight import check_cluster, free_port
from corun_pd.config import ClusterConfig
from corun_pd.errors import ConfigError, SetupError


def make_config(model: Path, **changes: object) -> ClusterConfig:
    """A cluster of one colocated fake instance."""
    data: dict[str, object] = {
        "model": model,
        "engine": {"kind": "fake"},
        "router": {"port": 0},
        "instances": [{"role": "colocated"}],
    }
    return ClusterConfig.model_validate(data | changes)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_good_cluster_passes(model: Path) -> None:
    """Nothing is wrong, so nothing is raised."""
    check_cluster(make_config(model))


def test_missing_model_folder_is_named(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(ConfigError, match=f"model: {tmp_path}/nowhere is not a folder"):
        check_cluster(make_config(tmp_path / "nowhere"))


def test_folder_without_a_model_is_named(tmp_path: Path) -> None:
    """An empty folder is not a model."""
    with pytest.raises(ConfigError, match=f"model: {tmp_path} has no config.json"):
        check_cluster(make_config(tmp_path))


def test_taken_port_is_named(model: Path) -> None:
    """Role, port and host are in the message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"router: port {port} of 127.0.0.1 cannot be bound: .*in use"):
            check_cluster(make_config(model, router={"port": port}))


def test_core_that_is_not_there_is_named(model: Path) -> None:
    """Pinning to a missing core would fail after the start otherwise."""
    with pytest.raises(ConfigError, match=r"instances\.0\.cores: no core 4095 here"):
        check_cluster(make_config(model, instances=[{"role": "colocated", "cores": [4095]}]))


def test_instances_may_have_cores_that_this_process_keeps_off(model: Path) -> None:
    """A benchmark pins itself to one core, and its engines to the others."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core")
    first, *others = sorted(before)
    try:
        os.sched_setaffinity(0, others)
        check_cluster(make_config(model, instances=[{"role": "colocated", "cores": [first]}]))
        assert os.sched_getaffinity(0) == set(others)
    finally:
        os.sched_setaffinity(0, before)


def test_host_that_is_not_here_is_named() -> None:
    """192.0.2.0/24 is for documentation and nobody's."""
    with pytest.raises(ConfigError, match=r"router\.host: '192\.0\.2\.1' is no address here"):
        free_port("192.0.2.1")
