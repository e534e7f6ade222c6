"""Three Ray nodes on this machine, and clusters of fake engines to place on them."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Ray reads these when it is imported. The token keeps others on the network out of these nodes, and ours
# out of the home folder.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), RAY_USAGE_STATS_ENABLED="0")
os.environ.pop("RAY_ADDRESS", None)

import ray
from ray.cluster_utils import Cluster

from corun_pd.config import ClusterConfig

MakeConfig = Callable[..., ClusterConfig]


@pytest.fixture(scope="session")
def nodes() -> Iterator[Cluster]:
    """A head that offers nothing, as usual in Kubernetes, and nodes "one" and "two" of two CPUs each.

    A node that is lost is noticed within two seconds instead of fifteen. This process is connected.
    """
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    head = {"num_cpus": 0, "node_name": "head", "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for name in ("one", "two"):
            cluster.add_node(num_cpus=2, node_name=name, wait=False)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def make_config(model: Path, tmp_path: Path) -> MakeConfig:
    """A prefill and a decode instance on different nodes; keywords replace parts of the configuration."""

    def make(**parts: object) -> ClusterConfig:
        data = {
            "model": model,
            "engine": {"kind": "fake", "prefill": {"chunk_tokens": 64}, "block_tokens": 16},
            "router": {"port": 0},
            "ray": {"strategy": "STRICT_SPREAD", "place_timeout_s": 20},
            "instances": [{"role": "prefill"}, {"role": "decode"}],
            "ready_timeout_s": 60,
            "log_dir": tmp_path / "logs",
        }
        return ClusterConfig.model_validate(data | parts)

    return make
