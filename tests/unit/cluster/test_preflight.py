"""What is refused before any process is started."""

import os
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from corun_pd.cluster.preflight import check_cluster, free_port
from corun_pd.config import ClusterConfig
from corun_pd.engine.devices import see_only
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


def test_gpus_are_dealt_out_to_instances_rank_by_rank(model: Path) -> None:
    """Too few, too many, and two ranks on one, are named with the values."""
    two = {"role": "colocated", "count": 2, "gpus": [0, 1, 2, 3]}
    config = make_config(model, engine={"kind": "fake", "tensor_parallel_size": 2}, instances=[two])
    ranks = config.engine.tensor_parallel_size
    assert [config.instances[0].one(at, ranks).gpus for at in (0, 1)] == [(0, 1), (2, 3)]
    for gpus, problem in (([0, 1, 2], "3 GPUs for 2 instances of 2 ranks"), ([0, 1, 2, 2], r"GPU: \(2, 2\)")):
        with pytest.raises(ValidationError, match=problem):
            make_config(model, engine=config.engine, instances=[two | {"gpus": gpus}])


@pytest.mark.parametrize(
    ("gpus", "shown", "expected"),
    [(None, "4,5", {}), ((1, 0), "", "1,0"), ((1, 0), "4, GPU-5", "GPU-5,4"), ((2,), "4,5", "no GPU 2 here")],
)
def test_gpus_are_counted_among_those_that_a_launcher_shows(
    gpus: tuple[int, ...] | None, shown: str, expected: str | dict[str, str]
) -> None:
    """A process sees its own alone."""
    if expected == "no GPU 2 here":
        with pytest.raises(ConfigError, match="no GPU 2 here: CUDA_VISIBLE_DEVICES shows 2"):
            see_only(gpus, {"CUDA_VISIBLE_DEVICES": shown})
    else:
        found = see_only(gpus, {"CUDA_VISIBLE_DEVICES": shown})
        assert found == (expected and {"CUDA_VISIBLE_DEVICES": expected})


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
