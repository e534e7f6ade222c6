"""Memory plans (C27): bytes of weights, activations and KV, and the limit that binds."""

import json
from pathlib import Path
from typing import Any

import pytest

from corun_pd.errors import SetupError
from corun_pd.planner.memory import Infeasible, MemoryPlan, confirm_blocks, plan_memory
from corun_pd.planner.model_shape import ModelShape

GIB = 1 << 30

LLAMA_70B = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


def make_shape(tmp_path: Path, config: dict[str, Any]) -> ModelShape:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return ModelShape.from_config(path)


def plan(shape: ModelShape, **changes: Any) -> MemoryPlan:
    sizes = {
        "device_bytes": 80 * GIB,
        "memory_ratio": 0.9,
        "weight_bytes": 2,
        "kv_element_bytes": 2,
        "slots": 256,
        "step_tokens": 2048,
        "max_model_tokens": 8192,
        "block_tokens": 16,
    }
    return plan_memory(shape, **sizes | changes)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(LLAMA_70B, 70_553_706_496), (QWEN3_8B, 8_190_735_360), (QWEN3_30B_A3B, 30_532_122_624)],
)
def test_parameters_are_those_of_the_published_models(
    tmp_path: Path, config: dict[str, Any], parameters: int
) -> None:
    """To the last one."""
    assert make_shape(tmp_path, config).parameters == parameters


def test_weights_that_do_not_fit_are_the_limit(tmp_path: Path) -> None:
    """70B at a byte a weight on one device of 24 GB."""
    with pytest.raises(Infeasible, match="because of weights: 70553706496 bytes") as caught:
        plan(make_shape(tmp_path, LLAMA_70B), device_bytes=24 * GIB, weight_bytes=1)
    assert caught.value.limit == "weights"


def test_sequence_above_the_kv_cache_is_the_limit(tmp_path: Path) -> None:
    """The engine would not start."""
    shape = make_shape(tmp_path, QWEN3_8B)
    most = plan(shape, device_bytes=24 * GIB).kv_tokens
    assert plan(shape, device_bytes=24 * GIB, max_model_tokens=most).kv_tokens == most
    with pytest.raises(Infeasible, match="because of the KV cache: one sequence"):
        plan(shape, device_bytes=24 * GIB, max_model_tokens=most + 1)


def test_activations_that_do_not_fit_are_the_limit(tmp_path: Path) -> None:
    """The weights alone would fit."""
    with pytest.raises(Infeasible, match="because of activations"):
        plan(make_shape(tmp_path, QWEN3_8B), device_bytes=18 * GIB)


def test_kv_of_one_byte_holds_twice_the_tokens(tmp_path: Path) -> None:
    """fp8 against bf16."""
    shape = make_shape(tmp_path, QWEN3_8B)
    wide, narrow = plan(shape), plan(shape, kv_element_bytes=1)
    assert narrow.kv_blocks in (2 * wide.kv_blocks, 2 * wide.kv_blocks + 1)
    assert wide.kv_bytes == narrow.kv_bytes


def test_started_engines_confirm_the_plan_within_a_margin() -> None:
    """One below it is named; more than planned is fine."""
    said = confirm_blocks(100, {"prefill-0": 95, "decode-0": 140})
    assert said == "confirmed: 2 instances have 95 to 140 KV blocks, 100 are planned"
    with pytest.raises(Infeasible, match="decode-0 started with 89 blocks, 11% below the 100 planned; 10%"):
        confirm_blocks(100, {"prefill-0": 95, "decode-0": 89})
    assert confirm_blocks(100, {"decode-0": 89}, margin=0.2)


def test_bytes_add_up_and_are_shown(tmp_path: Path) -> None:
    """Weights, activations, runtime and KV are all that is usable."""
    found = plan(make_shape(tmp_path, QWEN3_8B))
    assert found.weights_bytes == 2 * 8_190_735_360
    parts = found.weights_bytes + found.activation_bytes + found.runtime_bytes + found.kv_bytes
    assert parts == found.usable_bytes
    assert any("KV cache" in line and f"{found.kv_bytes} bytes" in line for line in found.lines())


def test_tensor_parallel_beyond_the_kv_heads_copies_them(tmp_path: Path) -> None:
    """Sixteen devices hold eight KV heads twice."""
    shape = make_shape(tmp_path, LLAMA_70B)
    eight, sixteen = (plan(shape, tensor_parallel_size=size) for size in (8, 16))
    assert eight.weights_bytes == 2 * sixteen.weights_bytes
    grown = eight.weights_bytes - sixteen.weights_bytes
    assert sixteen.kv_blocks - eight.kv_blocks == pytest.approx(grown / (16 * 40960), abs=1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "mystery"}, "'mystery' is not known to the planner"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"num_experts": 8}, "with 8 experts"),
    ],
)
def test_unknown_model_is_an_error_and_not_a_guess(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """The file and the problem are named."""
    with pytest.raises(SetupError, match=problem):
        make_shape(tmp_path, QWEN3_8B | change)


@pytest.mark.parametrize("change", [{"device_bytes": 0}, {"slots": -1}, {"memory_ratio": 1.1}])
def test_sizes_that_are_not_positive_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """They would plan a negative cache."""
    with pytest.raises(ValueError, match="must be positive"):
        plan(make_shape(tmp_path, QWEN3_8B), **change)
