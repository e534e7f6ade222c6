"""The cluster that these tests start."""

from pathlib import Path

import pytest

from corun_pd.config import ClusterConfig


@pytest.fixture(scope="session")
def config(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ClusterConfig:
    """Prefill, decode and colocated fake instances, on a free port."""
    return ClusterConfig.model_validate(
        {
            "model": model,
            "engine": {"kind": "fake", "prefill": {"chunk_tokens": 64}, "block_tokens": 16},
            "router": {"port": 0},
            "instances": [{"role": "prefill"}, {"role": "decode"}, {"role": "colocated"}],
            "ready_timeout_s": 120,
            "log_dir": tmp_path_factory.mktemp("cluster") / "logs",
        }
    )
