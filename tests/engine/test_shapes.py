"""The shapes of the benchmarks on real engines: their architectures at small widths, with random weights."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from corun_pd.bench.bits import check_company
from corun_pd.bench.modes import mode_named
from corun_pd.bench.process import EngineProcess
from corun_pd.bench.shapes import SHAPES, write_shape
from corun_pd.bench.workloads import mixed_requests
from corun_pd.config import EngineConfig
from corun_pd.errors import EngineFailed

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive, pytest.mark.timeout(300)]

#: What makes a shape small; its layers are of every kind that it has.
SMALL: Final[dict[str, Any]] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "expert_hidden_dim": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}

CONFIG: Final = EngineConfig(
    weights="random", slots=4, max_model_tokens=256, kv_cache_bytes=1 << 26, cpu_threads=1
)


def make_small(name: str, folder: Path) -> Path:
    """The shape with its fields and narrower values; MLA keeps as many KV heads as heads."""
    model = write_shape(name, folder, layers=2)
    config = json.loads((model / "config.json").read_text())
    config |= {field: value for field, value in SMALL.items() if field in config}
    if "kv_lora_rank" in config:
        config["num_key_value_heads"] = config["num_attention_heads"]
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("name", [name for name in SHAPES if "kv_lora_rank" not in SHAPES[name]])
def test_a_shape_starts_with_random_weights_and_answers_the_same_in_other_company(
    name: str, tmp_path: Path
) -> None:
    """Its config.json is all that a run on a GPU will have.

    Models this narrow are no proof of determinism: their kernels give every batch the same bits.
    """
    mode = mode_named("packed")
    model = make_small(name, tmp_path)
    with EngineProcess(model, mode.role, mode.apply(CONFIG, 64), tmp_path / "log") as engine:
        info = engine.ready()
        sizes = (64, info.block_tokens, info.vocabulary, 150, 6)
        requests, others = mixed_requests(12, *sizes), mixed_requests(6, *sizes, seed=11)
        found, batch = check_company(engine, requests, others, alone=3)
    assert [one.same_bits for one in found] == [3, 12, 12]
    assert len({record.token_ids for record in batch.records}) > 6


def test_latent_attention_is_refused_on_the_cpu_by_name(tmp_path: Path) -> None:
    """DeepSeek-V3's shape is for GPUs."""
    mode = mode_named("packed")
    model = make_small("deepseek-v3-4l", tmp_path)
    with (
        EngineProcess(model, mode.role, mode.apply(CONFIG, 64), tmp_path / "log") as engine,
        pytest.raises(EngineFailed, match="latent attention"),
    ):
        engine.ready()
