"""Mixture of experts: a token's experts are run beside those of whatever tokens share the step."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.fused_moe import override_config
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.batch_invariance import EXPERT_TILES
from corun_pd.engine.vllm.operators.plan import Scene, has_batch_invariant_kernels
from corun_pd.engine.vllm.operators.probe import Probe

__all__ = ["expert_probes"]

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def expert_probes(scene: Scene) -> Iterator[Callable[[], list[Probe]]]:
    """None for a model without experts."""
    if scene.dims.experts:
        yield functools.partial(_experts, scene)


def _experts(scene: Scene) -> list[Probe]:
    """The grouped products of all experts, each token with experts of its own choice."""
    dims = scene.dims
    width = dims.expert_intermediate // scene.tensor_parallel_size
    bank = scene.bank(scene.most_tokens, dims.hidden, seed=11)
    gate = scene.normal(dims.hidden, dims.experts, seed=12, scale=dims.hidden**-0.5)
    chances, chosen = torch.topk((bank @ gate).float().softmax(-1), dims.experts_per_token, dim=-1)
    chances, chosen = chances / chances.sum(-1, keepdim=True), chosen.to(torch.int32)
    up = scene.normal(dims.experts, 2 * width, dims.hidden, seed=13, scale=dims.hidden**-0.5)
    down = scene.normal(dims.experts, dims.hidden, width, seed=14, scale=width**-0.5)

    def prepare(rows: torch.Tensor) -> Inputs:
        at = scene.indices(rows)
        return bank[at], chances[at], chosen[at]

    make = functools.partial(
        Probe,
        operator="MoE experts",
        shape=f"{dims.experts} x {dims.hidden} → {width}, {dims.experts_per_token} a token",
        bank=len(bank),
        shapes=scene.token_shapes,
        largest=len(bank) // 2,
        prepare=prepare,
    )
    run = _on_cpu(up, down) if scene.device.type == "cpu" else _on_gpu(up, down)
    probes = [make(kernel="standard", need=Need.POSITION, apply=run)]
    if has_batch_invariant_kernels():

        def invariant(inputs: Inputs) -> torch.Tensor:
            with override_config(EXPERT_TILES):
                return run(inputs)

        need = scene.batch_invariant_need
        probes.append(make(kernel="batch-invariant", need=need, apply=invariant))
    return probes


def _on_gpu(up: torch.Tensor, down: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    return lambda inputs: fused_experts(inputs[0], up, down, inputs[1], inputs[2])


def _on_cpu(up: torch.Tensor, down: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """vLLM takes AMX's kernel where there is AMX and the type is bfloat16."""
    isa = "amx" if torch.cpu._is_amx_tile_supported() and up.dtype == torch.bfloat16 else "vec"
    packed_up, packed_down = ops.cpu_prepack_moe_weight(up, isa), ops.cpu_prepack_moe_weight(down, isa)

    def run(inputs: Inputs) -> torch.Tensor:
        hidden, chances, chosen = inputs
        out = torch.empty_like(hidden)
        ops.cpu_fused_moe(out, hidden, packed_up, packed_down, None, None, chances, chosen, "silu", isa)
        return out

    return run
