"""Packed prefill, and other architectures: alone = in a batch = in a crowd = apart, on bare engines."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from corun_pd.bench.bits import check_company, check_handover, differences
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.workloads import EngineRequest, mixed_requests
from corun_pd.core import Role, SamplingParams
from corun_pd.errors import EngineFailed
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import BLOCK, CHUNK, SLOTS, VOCABULARY, make_prompt

WIDTH = 4 * CHUNK

#: KV blocks of a small pool, and the bytes of one in qwen3-wide: 2 layers of keys and values, 4 heads of 64.
#: vLLM keeps one block more, for padding.
POOL = 20
BLOCK_BYTES = 2 * 2 * BLOCK * 4 * 64 * 2


def make_mixed(count: int, chunk: int, seed: int) -> list[EngineRequest]:
    """Edges of blocks and chunks first, then any length; every third prompt's tokens are scored."""
    drawn = mixed_requests(count, chunk, BLOCK, VOCABULARY, longest=2 * chunk + 1, output=8, seed=seed)
    return [
        request if at % 3 else replace(request, sampling=replace(request.sampling, prompt_logprobs=at % 4))
        for at, request in enumerate(drawn)
    ]


def check_contract(
    family: str,
    mode: str,
    requests: list[EngineRequest],
    logs: Path,
    also: Callable[[EngineProcess], None] = lambda engine: None,
    **changes: object,
) -> None:
    """Fails when one bit differs in other company, or with prefill and decode on two engines.

    `also` gets the colocated engine when it is done: one takes long to start.
    """
    model, config = model_of(family), engine_config(mode, **changes)
    others = make_mixed(SLOTS, CHUNK, seed=8)
    with EngineProcess(model, Role.COLOCATED, config, logs / "colocated.log") as engine:
        engine.ready()
        found, reference = check_company(engine, requests, others, alone=8)
        also(engine)
    apart, moved = check_handover(model, config, requests, reference.records, logs)
    for agreement in (*found, apart):
        assert agreement.same_bits == agreement.requests, agreement
    assert moved > 0
    for request, record in zip(requests, reference.records, strict=True):
        scored = request.sampling.prompt_logprobs is not None
        assert len(record.prompt_logprobs) == (len(request.prompt) - 1 if scored else 0)


def check_packing(engine: EngineProcess) -> None:
    """Twelve prompts of 60 tokens, four to a step; every row is a prompt's, a decode row, or padding."""
    before = engine.run(Job([])).load_after
    prompt = make_prompt(60, 9)
    requests = [EngineRequest(prompt, SamplingParams(max_tokens=8, seed=1, ignore_eos=True))] * 12
    after = engine.run(Job(requests)).load_after

    def grown(counter: str) -> int:
        return int(getattr(after, counter) - getattr(before, counter))

    decoded = grown("sampled_tokens") - len(requests)
    assert grown("prefilled_tokens") == 12 * 60
    assert grown("rows") - grown("padding_rows") == grown("prefilled_tokens") + decoded
    prefill_steps, rest = divmod(grown("rows") - SLOTS * grown("steps"), WIDTH - SLOTS)
    assert (prefill_steps, rest) == (3, 0)


def check_scarcity(engine: EngineProcess) -> None:
    """Eight sequences of 4 KV blocks each in a pool of 20: some wait, none is preempted (C14 c).

    Their prompts alone would fit all at once, with 2 blocks each.
    """
    requests = [
        EngineRequest(
            make_prompt(40, at), SamplingParams(max_tokens=80, seed=at, ignore_eos=True, logprobs=0)
        )
        for at in range(SLOTS)
    ]
    alone = engine.run(Job(requests, concurrency=1))
    together = engine.run(Job(requests))
    assert differences("scarce", alone.records, together.records).same_bits == SLOTS
    assert together.load_before.free_blocks == together.load_after.free_blocks == POOL
    steps = together.load_after.steps - together.load_before.steps
    assert 2 * 79 < steps < 3 * 79


def test_packed_prefill_keeps_the_contract(tmp_path: Path) -> None:
    """Prompts that share steps of 256 tokens with whoever is there, on qwen3-wide, in a small pool.

    Among them are prompts of several seeds in one step (C14 b).
    """

    def also(engine: EngineProcess) -> None:
        check_packing(engine)
        check_scarcity(engine)

    room = {"max_model_tokens": POOL * BLOCK, "kv_cache_bytes": (POOL + 1) * BLOCK_BYTES}
    check_contract("qwen3", "packed", make_mixed(24, WIDTH, seed=7), tmp_path, also, **room)


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
