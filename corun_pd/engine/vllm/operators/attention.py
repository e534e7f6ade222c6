"""Attention over a paged KV cache, with and without Split-KV. A row is a sequence with its own KV cache."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.utils.math_utils import cdiv

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.operators.plan import Scene, has_batch_invariant_kernels
from corun_pd.engine.vllm.operators.probe import Probe

__all__ = ["attention_probes"]

#: Prompts that share a prefill step, at most.
PROMPTS = 16

SHORTEST = 16


def attention_probes(scene: Scene) -> Iterator[Callable[[], list[Probe]]]:
    """Decode rows, and prompts of a prefill step."""
    yield functools.partial(_decode, scene)
    yield functools.partial(_prefill, scene)


@dataclass(frozen=True, slots=True)
class _Sequences:
    """A bank of sequences: KV lengths, how many of their tokens are queries, and their blocks.

    The last one is what a padding row has: no KV cache, and its query is zero.
    """

    kv_lens: torch.Tensor  # [bank] int32, on the CPU
    query_lens: torch.Tensor  # [bank] int64, on the CPU
    queries: torch.Tensor  # [sum of query lengths, heads, width]
    blocks: torch.Tensor  # [bank, most blocks] int32


@dataclass(frozen=True, slots=True)
class _Step:
    """Inputs of one call."""

    query: torch.Tensor
    starts: torch.Tensor
    starts_cpu: torch.Tensor
    kv_lens: torch.Tensor
    blocks: torch.Tensor
    most_query: int
    most_kv: int
    plan: Any


def _decode(scene: Scene) -> list[Probe]:
    bank = 2 * scene.slots + 1
    lengths = _lengths(bank, min(SHORTEST, scene.kv_tokens), scene.kv_tokens)
    return _probes(
        scene,
        "attention, decode",
        lengths,
        torch.ones(bank, dtype=torch.int64),
        shapes=(scene.slots,),
        need=Need.POSITION,
        invariant_need=Need.NOTHING,
    )


def _prefill(scene: Scene) -> list[Probe]:
    """Prompts of many lengths; what a step of T tokens holds on average."""
    prompts = min(PROMPTS, max(2, scene.chunk_tokens // 32))
    lengths = _lengths(2 * prompts + 1, 1, max(2, 2 * scene.chunk_tokens // prompts))
    need = Need.POSITION if scene.mode == "packed" else Need.NOTHING
    query_lens = lengths.to(torch.int64).clamp(min=1)
    return _probes(
        scene,
        "attention, prefill",
        lengths,
        query_lens,
        shapes=(prompts,),
        need=need,
        invariant_need=scene.batch_invariant_need,
    )


def _lengths(bank: int, least: int, most: int) -> torch.Tensor:
    """KV lengths, evenly in their logarithms and in mixed order; the last is 0."""
    generator = torch.Generator().manual_seed(21)
    spread = torch.linspace(0, 1, bank)[torch.randperm(bank, generator=generator)]
    lengths = (least * (most / least) ** spread).round().to(torch.int32)
    lengths[-1] = 0
    return lengths


def _probes(
    scene: Scene,
    operator: str,
    kv_lens: torch.Tensor,
    query_lens: torch.Tensor,
    *,
    shapes: tuple[int, ...],
    need: Need,
    invariant_need: Need,
) -> list[Probe]:
    kernels = _latent if scene.dims.is_mla else _grouped
    if scene.device.type == "cpu":
        if scene.dims.is_mla:
            return []  # Such engines are refused on the CPU.
        kernels = _on_cpu
    if scene.dims.is_mla and int(query_lens.max()) > 1:
        kernels = _latent_prefill
    bank = _make_bank(scene, kv_lens, query_lens)
    plan, run = kernels(scene, bank)
    longest = int(query_lens.max())
    is_decode = longest == 1
    shape = f"{scene.dims.heads} heads, KV to {int(kv_lens.max())} tokens"

    def make(kernel: str, splits: int, has_plan: bool, what: Need) -> Probe:
        return Probe(
            operator=operator,
            kernel=kernel,
            shape=shape,
            bank=len(kv_lens),
            shapes=shapes,
            largest=len(kv_lens) // 2,
            need=what,
            prepare=lambda rows: _step(scene, bank, rows, functools.partial(plan, splits, has_plan)),
            apply=lambda step: _by_sequence(run(step, splits), step, longest),
            # Scattering prompts back into rows asks the host for their lengths.
            is_graphable=is_decode,
        )

    probes = [
        make("Split-KV", 0, True, Need.NOTHING),
        make("no Split-KV", 1, True, need),
    ]
    if has_batch_invariant_kernels():
        probes.append(make("batch-invariant", 1, False, invariant_need))
    return probes


def _make_bank(scene: Scene, kv_lens: torch.Tensor, query_lens: torch.Tensor) -> _Sequences:
    dims, size = scene.dims, scene.block_tokens
    width = dims.kv_lora_rank + dims.qk_rope_head_dim if dims.is_mla else dims.head_dim
    if dims.is_mla and int(query_lens.max()) > 1:
        width = dims.qk_nope_head_dim + dims.qk_rope_head_dim
    heads = dims.heads // scene.tensor_parallel_size
    queries = scene.normal(int(query_lens.sum()), heads, width, seed=22)
    queries[-1] = 0
    # The blocks of a sequence are spread over the pool, as in an engine that has run for a while. Block 0
    # is nobody's: it is what unused entries name.
    counts = [cdiv(int(length), size) for length in kv_lens]
    order = 1 + torch.randperm(sum(counts), generator=torch.Generator().manual_seed(23), dtype=torch.int32)
    blocks = torch.zeros(len(counts), max(*counts, 1), dtype=torch.int32)
    taken = 0
    for row, count in enumerate(counts):
        blocks[row, :count] = order[taken : taken + count]
        taken += count
    return _Sequences(kv_lens, query_lens, queries, blocks.to(scene.device))


def _step(scene: Scene, bank: _Sequences, rows: torch.Tensor, plan: Callable[..., Any]) -> _Step:
    offsets = torch.cumsum(bank.query_lens, 0) - bank.query_lens
    tokens = torch.cat([offsets[row] + torch.arange(int(bank.query_lens[row])) for row in rows])
    starts = torch.zeros(len(rows) + 1, dtype=torch.int32)
    starts[1:] = torch.cumsum(bank.query_lens[rows], 0)
    kv_lens = bank.kv_lens[rows]
    most_query, most_kv = int(bank.query_lens[rows].max()), max(1, int(kv_lens.max()))
    placed = (starts.to(scene.device), kv_lens.to(scene.device))
    return _Step(
        query=bank.queries[scene.indices(tokens)],
        starts=placed[0],
        starts_cpu=starts,
        kv_lens=placed[1],
        blocks=bank.blocks[scene.indices(rows)],
        most_query=most_query,
        most_kv=most_kv,
        plan=plan(*placed, most_query, most_kv),
    )


def _by_sequence(output: torch.Tensor, step: _Step, longest: int) -> torch.Tensor:
    """Tokens as [sequences, `longest`, ...], zero behind the end of each; decode has one token a row."""
    if longest == 1:
        return output
    starts = step.starts_cpu.tolist()
    found = output.new_zeros(len(starts) - 1, longest, *output.shape[1:])
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        found[row, : end - start] = output[start:end]
    return found


def _grouped(scene: Scene, bank: _Sequences) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """FlashAttention as vLLM's backend calls it, with the tile schedule that it makes ahead."""
    from vllm.v1.attention.backends.fa_utils import (
        flash_attn_varlen_func,
        get_flash_attn_version,
        get_scheduler_metadata,
    )

    dims, version = scene.dims, get_flash_attn_version()
    kv_heads = max(1, dims.kv_heads // scene.tensor_parallel_size)
    heads = dims.heads // scene.tensor_parallel_size
    pool = (int(bank.blocks.max()) + 1, scene.block_tokens, kv_heads, dims.head_dim)
    keys, values = scene.normal(*pool, seed=24), scene.normal(*pool, seed=25)

    def plan(
        splits: int, wanted: bool, starts: torch.Tensor, kv_lens: torch.Tensor, most_query: int, most_kv: int
    ) -> Any:
        if not wanted or version != 3:
            return None
        return get_scheduler_metadata(
            batch_size=len(kv_lens),
            max_seqlen_q=most_query,
            max_seqlen_k=most_kv,
            num_heads_q=heads,
            num_heads_kv=kv_heads,
            headdim=dims.head_dim,
            cache_seqlens=kv_lens,
            qkv_dtype=scene.dtype,
            cu_seqlens_q=starts,
            page_size=scene.block_tokens,
            causal=True,
            num_splits=splits,
        )

    def run(step: _Step, splits: int) -> torch.Tensor:
        out = torch.empty_like(step.query)
        flash_attn_varlen_func(
            q=step.query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=step.starts,
            max_seqlen_q=step.most_query,
            seqused_k=step.kv_lens,
            max_seqlen_k=step.most_kv,
            softmax_scale=dims.head_dim**-0.5,
            causal=True,
            block_table=step.blocks,
            fa_version=version,
            scheduler_metadata=step.plan,
            num_splits=splits,
        )
        return out

    return plan, run


def _latent(scene: Scene, bank: _Sequences) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """FlashAttention over the latent KV cache (MLA's decode): one KV head of rank + RoPE width."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_scheduler_metadata

    dims = scene.dims
    heads = dims.heads // scene.tensor_parallel_size
    rank, rope = dims.kv_lora_rank, dims.qk_rope_head_dim
    cache = scene.normal(int(bank.blocks.max()) + 1, scene.block_tokens, rank + rope, seed=24)

    def plan(
        splits: int, wanted: bool, starts: torch.Tensor, kv_lens: torch.Tensor, most_query: int, most_kv: int
    ) -> Any:
        if not wanted:
            return None
        return get_scheduler_metadata(
            batch_size=len(kv_lens),
            max_seqlen_q=most_query,
            max_seqlen_k=most_kv,
            num_heads_q=heads,
            num_heads_kv=1,
            headdim=rope,
            cache_seqlens=kv_lens,
            qkv_dtype=scene.dtype,
            headdim_v=rank,
            cu_seqlens_q=starts,
            page_size=scene.block_tokens,
            causal=True,
            num_splits=splits,
        )

    def run(step: _Step, splits: int) -> torch.Tensor:
        found = flash_attn_varlen_func(
            q=step.query[..., rank:],
            k=cache[..., rank:].unsqueeze(-2),
            v=cache[..., :rank].unsqueeze(-2),
            q_v=step.query[..., :rank],
            cu_seqlens_q=step.starts,
            max_seqlen_q=step.most_query,
            seqused_k=step.kv_lens,
            max_seqlen_k=step.most_kv,
            softmax_scale=(dims.qk_nope_head_dim + rope) ** -0.5,
            causal=True,
            block_table=step.blocks,
            fa_version=3,
            scheduler_metadata=step.plan,
            num_splits=splits,
        )
        return found[0] if isinstance(found, tuple) else found

    return plan, run


def _latent_prefill(scene: Scene, bank: _Sequences) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """MLA's prefill: keys and values are unfolded, a head each, and are not paged."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

    dims, version = scene.dims, get_flash_attn_version()
    width = dims.qk_nope_head_dim + dims.qk_rope_head_dim

    def run(step: _Step, splits: int) -> torch.Tensor:
        found = flash_attn_varlen_func(
            q=step.query,
            k=step.query.flip(-1).contiguous(),
            v=step.query[..., : dims.v_head_dim] if version == 3 else step.query,
            cu_seqlens_q=step.starts,
            cu_seqlens_k=step.starts,
            max_seqlen_q=step.most_query,
            max_seqlen_k=step.most_query,
            softmax_scale=width**-0.5,
            causal=True,
            fa_version=version,
            num_splits=splits,
        )
        return found[0] if isinstance(found, tuple) else found

    return lambda *ignored: None, run


def _on_cpu(scene: Scene, bank: _Sequences) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """vLLM's CPU attention. 0 splits leaves the split to its scheduler, 1 forbids it."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    dims, size = scene.dims, scene.block_tokens
    kv_heads = max(1, dims.kv_heads // scene.tensor_parallel_size)
    heads = dims.heads // scene.tensor_parallel_size
    isa = _get_attn_isa(scene.dtype, size, dims.head_dim)
    count = int(bank.blocks.max()) + 1
    cache = torch.zeros(count, kv_heads, 2 * size, dims.head_dim, dtype=scene.dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    tokens = (count * size, kv_heads, dims.head_dim)
    ops.cpu_attn_reshape_and_cache(
        scene.normal(*tokens, seed=24),
        scene.normal(*tokens, seed=25),
        key_cache,
        value_cache,
        torch.arange(count * size, dtype=torch.int64),
        isa,
    )

    def plan(
        splits: int, wanted: bool, starts: torch.Tensor, kv_lens: torch.Tensor, most_query: int, most_kv: int
    ) -> Any:
        return ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(kv_lens),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dims.head_dim,
            seq_lens=kv_lens,
            dtype=scene.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=-1,
            isa=isa,
            enable_kv_split=splits == 0,
        )

    def run(step: _Step, splits: int) -> torch.Tensor:
        out = torch.zeros_like(step.query)
        ops.cpu_attention_with_kv_cache(
            query=step.query,
            key_cache=key_cache,
            value_cache=value_cache,
            output=out,
            query_start_loc=step.starts,
            seq_lens=step.kv_lens,
            scale=dims.head_dim**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=step.blocks,
            softcap=0.0,
            scheduler_metadata=step.plan,
            s_aux=None,
        )
        return out

    return plan, run
