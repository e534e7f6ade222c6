"""Verdicts on operators, and the widths that their shapes come from."""

import pytest

from corun_pd.engine.operators import ModelDims, Need, OperatorResult, failures
from corun_pd.errors import ConfigError

QWEN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "torch_dtype": "float32",
}


def make_result(need: Need, batch: tuple[int, ...] = (), position: tuple[int, ...] = ()) -> OperatorResult:
    return OperatorResult(
        "matmul", "standard", "64 → 128", need, (1, 8), batch, (8,), position, latency_s={1: 1e-6}
    )


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (make_result(Need.NOTHING, (8,), (8,)), None),
        (make_result(Need.POSITION, (8,)), None),
        (make_result(Need.POSITION, (), (8,)), "is not position-invariant at 8 rows"),
        (make_result(Need.BATCH, (8,)), "is not batch-invariant at 8 rows"),
        (make_result(Need.BATCH, (), (8,)), "is not position-invariant at 8 rows"),
        (OperatorResult("matmul", "standard", "x", Need.POSITION), "it was not measured"),
        (OperatorResult("matmul", "standard", "x", Need.POSITION, error="no AMX"), "be run: no AMX"),
        (OperatorResult("matmul", "standard", "x", Need.NOTHING, error="no AMX"), None),
    ],
)
def test_fault_is_what_the_contract_needs_and_does_not_get(result: OperatorResult, fault: str | None) -> None:
    found = failures([result])
    assert len(found) == (fault is not None)
    if fault is not None:
        assert found[0].startswith("matmul (standard")
        assert found[0].endswith(fault)


def test_dims_of_qwen3() -> None:
    dims = ModelDims.from_config(QWEN, "config.json")
    assert (dims.head_dim, dims.dtype, dims.is_mla) == (32, "float32", False)
    assert dims.matmuls() == {
        "qkv": (64, 256),
        "o": (128, 64),
        "gate_up": (64, 256),
        "down": (128, 64),
        "lm_head": (64, 512),
    }
    assert dims.matmuls(2)["qkv"] == (64, 128)


def test_dims_of_experts() -> None:
    config = QWEN | {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48}
    dims = ModelDims.from_config(config, "config.json")
    assert (dims.experts, dims.experts_per_token, dims.expert_intermediate) == (16, 4, 48)
    assert dims.matmuls()["router"] == (64, 16)


def test_dims_of_latent_attention() -> None:
    latent = {
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
    }
    dims = ModelDims.from_config({"text_config": QWEN | latent}, "config.json")
    assert dims.is_mla
    matmuls = dims.matmuls()
    assert "qkv" not in matmuls
    assert (matmuls["qkv_a"], matmuls["q_b"]) == ((64, 44), (24, 48))
    assert (matmuls["kv_b"], matmuls["o"]) == ((16, 56), (24, 64))


def test_missing_width_is_named() -> None:
    config = {name: value for name, value in QWEN.items() if name != "vocab_size"}
    with pytest.raises(ConfigError, match=r"here/config\.json: no vocab_size"):
        ModelDims.from_config(config, "here/config.json")
