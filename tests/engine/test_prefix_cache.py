"""What an earlier prompt left changes no bit: prompts that begin alike, cold and warm, colocated and apart.

A request that wants prompt logprobs reads nothing from the prefix cache, so it is the cold reference.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corun_pd.bench.bits import Agreement, check_handover, differences
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.records import Record
from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import Ablation
from corun_pd.core import Role, SamplingParams
from tests.engine.conftest import engine_config, model_of
from tests.engine.test_modes import BLOCK_BYTES, POOL
from tests.engine.workload import BLOCK, CHUNK, make_prompt

COMMON = make_prompt(4 * CHUNK, 1)

#: Lengths of what prompts have in common, and of what follows: at, before and behind the ends of chunks.
SHARED = (CHUNK - 1, CHUNK, CHUNK + 1, 96, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 160, 3 * CHUNK)
TAILS = (0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1)

REQUESTS = [
    EngineRequest(
        (*COMMON[:shared], *make_prompt(tail, 1000 * shared + tail)),
        SamplingParams(max_tokens=8, seed=at, temperature=0.8, ignore_eos=True, logprobs=2),
    )
    for at, (shared, tail) in enumerate((s, t) for s in SHARED for t in TAILS)
]


def cold(requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """The same requests, so that they find nothing."""
    return [replace(r, sampling=replace(r.sampling, prompt_logprobs=0)) for r in requests]


def compare(engine: EngineProcess) -> tuple[list[Agreement], list[Record], int]:
    """Cold against warm, all at once and one by one in reverse. Also the reference, and tokens reused."""
    reference = [replace(r, prompt_logprobs=()) for r in engine.run(Job(cold(REQUESTS))).records]
    before = engine.run(Job([])).load_after
    together = engine.run(Job(REQUESTS))
    alone = engine.run(Job(REQUESTS[::-1], concurrency=1))
    found = [
        differences("together", reference, together.records),
        differences("alone", reference, alone.records[::-1]),
    ]
    assert alone.load_after.free_blocks == before.free_blocks
    tokens = sum(len(r.prompt) for r in REQUESTS) * 2
    reused = alone.load_after.reused_tokens - before.reused_tokens
    assert alone.load_after.prefilled_tokens - before.prefilled_tokens + reused == tokens
    return found, reference, reused


def test_a_warm_cache_gives_the_bits_of_a_cold_one(tmp_path: Path) -> None:
    """Isolated prefill, colocated and apart; all chunks but those that the rules forbid are found."""
    model, config = model_of("qwen3"), engine_config(prefix_cache=True)
    with EngineProcess(model, Role.COLOCATED, config, tmp_path / "colocated.log") as engine:
        engine.ready()
        found, reference, reused = compare(engine)
    apart, moved = check_handover(model, config, [*REQUESTS, *REQUESTS], [*reference, *reference], tmp_path)
    for agreement in (*found, apart):
        assert agreement.same_bits == agreement.requests, agreement
    assert moved > 0
    # A cold prompt leaves its whole chunks, so a warm one finds all that it may.
    assert reused == 2 * sum(usable(len(r.prompt)) for r in REQUESTS)


def usable(prompt: int) -> int:
    """Whole chunks that end before the prompt's last token, and leave two tokens or none to a last chunk."""
    whole = (prompt - 1) // CHUNK * CHUNK
    return max(whole - CHUNK, 0) if prompt - whole == 1 else whole


def test_packed_prompts_find_whole_steps(tmp_path: Path) -> None:
    """T of 128 tokens, and a pool so small that what was found is soon taken by others."""
    room = {"max_model_tokens": POOL * BLOCK, "kv_cache_bytes": (POOL + 1) * BLOCK_BYTES}
    prefill = {"mode": "packed", "chunk_tokens": 128}
    config = engine_config("packed", prefix_cache=True, prefill=prefill, **room)
    with EngineProcess(model_of("qwen3"), Role.COLOCATED, config, tmp_path / "log") as engine:
        engine.ready()
        found, _, reused = compare(engine)
    for agreement in found:
        assert agreement.same_bits == agreement.requests, agreement
    assert 0 < reused < 2 * sum((len(r.prompt) - 1) // 128 * 128 for r in REQUESTS)
    assert reused % 128 == 0


def test_blocks_of_any_border_break_the_contract(tmp_path: Path) -> None:
    """The control: vLLM's own rule finds blocks of last chunks too, which were computed in other shapes."""
    config = engine_config(prefix_cache=True, ablate=(Ablation.PREFIX_CACHE_BORDERS,))
    with EngineProcess(model_of("qwen3"), Role.COLOCATED, config, tmp_path / "log") as engine:
        engine.ready()
        found, _, reused = compare(engine)
    assert reused > 0
    assert any(agreement.same_bits < agreement.requests for agreement in found), found
