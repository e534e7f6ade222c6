"""Packed prefill, and other architectures: alone = in a batch = in a crowd = apart, on bare engines."""

from pathlib import Path

import pytest

from corun_pd.bench.bits import check_company, check_handover
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.workloads import EngineRequest, mixed_requests
from corun_pd.core import Role
from corun_pd.errors import EngineFailed
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import BLOCK, CHUNK, SLOTS, VOCABULARY

WIDTH = 4 * CHUNK


def make_mixed(count: int, chunk: int, seed: int) -> list[EngineRequest]:
    return mixed_requests(count, chunk, BLOCK, VOCABULARY, longest=2 * chunk + 1, output=8, seed=seed)


def check_contract(
    family: str, mode: str, requests: list[EngineRequest], logs: Path, **changes: object
) -> None:
    """Fails when one bit differs in other company, or with prefill and decode on two engines."""
    model, config = model_of(family), engine_config(mode, **changes)
    others = make_mixed(SLOTS, CHUNK, seed=8)
    with EngineProcess(model, Role.COLOCATED, config, logs / "colocated.log") as engine:
        engine.ready()
        found, reference = check_company(engine, requests, others, alone=8)
    apart, moved = check_handover(model, config, requests, reference, logs)
    for agreement in (*found, apart):
        assert agreement.same_bits == agreement.requests, agreement
    assert moved > 0


def test_packed_prefill_keeps_the_contract(tmp_path: Path) -> None:
    """Prompts that share steps of 256 tokens with whoever is there, on qwen3-wide."""
    check_contract("qwen3", "packed", make_mixed(24, WIDTH, seed=7), tmp_path)


def test_packed_steps_are_shared_and_what_they_pad_is_counted(tmp_path: Path) -> None:
    """Twelve prompts of 60 tokens, four to a step; every row is a prompt's, a decode row, or padding."""
    requests = [request for request in make_mixed(64, 60, seed=9) if len(request.prompt) == 60]
    requests = [EngineRequest(requests[0].prompt, requests[0].sampling)] * 12
    with EngineProcess(
        model_of("qwen3"), Role.COLOCATED, engine_config("packed"), tmp_path / "log"
    ) as engine:
        engine.ready()
        load = engine.run(Job(requests)).load_after
    decoded = load.sampled_tokens - len(requests)
    assert load.prefilled_tokens == 12 * 60
    assert load.rows - load.padding_rows == load.prefilled_tokens + decoded
    prefill_steps, rest = divmod(load.rows - SLOTS * load.steps, WIDTH - SLOTS)
    assert (prefill_steps, rest) == (3, 0)


def test_experts_keep_the_contract(tmp_path: Path) -> None:
    """Qwen3-MoE: rows of a step are dispatched to experts together, padding too."""
    check_contract("qwen3-moe", "isolated", make_mixed(20, CHUNK, seed=7), tmp_path)


@pytest.mark.exhaustive
def test_latent_attention_is_refused_at_start(tmp_path: Path) -> None:
    """vLLM's CPU kernels of it do not keep the contract, and an engine that cannot does not start."""
    config = engine_config(block_tokens=16)
    with (
        EngineProcess(model_of("deepseek"), Role.COLOCATED, config, tmp_path / "log") as engine,
        pytest.raises(EngineFailed, match="does not keep the determinism contract"),
    ):
        engine.ready()


@pytest.mark.exhaustive
def test_sliding_windows_keep_the_contract(tmp_path: Path) -> None:
    """Gemma-3's shape: several KV cache groups, of which windows have given blocks back."""
    check_contract("sliding-window", "isolated", make_mixed(20, CHUNK, seed=7), tmp_path)
