"""Token-wise kernels: norms, reductions, matrix products and the sampler's."""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import nn
from vllm import _custom_ops as ops
from vllm import ir
from vllm.model_executor.determinism import batch_invariant
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.operators.plan import Scene, has_batch_invariant_kernels
from corun_pd.engine.vllm.operators.probe import Probe

__all__ = ["dense_probes"]

EPSILON = 1e-6

Kernel = Callable[[torch.Tensor], torch.Tensor]


def dense_probes(scene: Scene) -> Iterator[Callable[[], list[Probe]]]:
    """Each call makes the kernels of one operator, so that only its weights are in memory."""
    yield functools.partial(_means, scene)
    yield functools.partial(_norms, scene)
    for name, (inputs, outputs) in scene.dims.matmuls(scene.tensor_parallel_size).items():
        yield functools.partial(_matmul, scene, name, inputs, outputs)
    yield functools.partial(_softmaxes, scene)
    yield functools.partial(_top_p, scene)


def _rowwise(
    scene: Scene,
    operator: str,
    kernel: str,
    bank: torch.Tensor,
    apply: Kernel,
    need: Need,
    *,
    shapes: tuple[int, ...],
    is_graphable: bool = True,
) -> Probe:
    """A kernel whose input is rows of one matrix."""
    return Probe(
        operator=operator,
        kernel=kernel,
        shape=f"{bank.shape[1]} wide",
        bank=len(bank),
        shapes=shapes,
        largest=len(bank) // 2,
        need=need,
        prepare=lambda rows: bank[scene.indices(rows)],
        apply=apply,
        is_graphable=is_graphable,
    )


def _means(scene: Scene) -> list[Probe]:
    """The paper's Mean; no model of ours runs it."""
    bank = scene.bank(scene.most_tokens, scene.dims.hidden, seed=1)
    make = functools.partial(_rowwise, scene, "mean", shapes=scene.token_shapes, bank=bank, need=Need.NOTHING)
    probes = [make(kernel="standard", apply=lambda x: x.mean(dim=-1, keepdim=True))]
    if has_batch_invariant_kernels():
        mean = batch_invariant.mean_batch_invariant
        probes.append(make(kernel="batch-invariant", apply=lambda x: mean(x, [-1], keepdim=True)))
    return probes


def _norms(scene: Scene) -> list[Probe]:
    bank = scene.bank(scene.most_tokens, scene.dims.hidden, seed=2)
    weight = scene.normal(scene.dims.hidden, seed=3)
    make = functools.partial(_rowwise, scene, "RMSNorm", shapes=scene.token_shapes, bank=bank)

    def standard(x: torch.Tensor) -> torch.Tensor:
        if scene.device.type == "cpu":  # What vLLM runs eagerly there.
            return ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, EPSILON)
        return out

    def with_residual(x: torch.Tensor) -> torch.Tensor:
        if scene.device.type == "cpu":
            return ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, x.flip(-1), weight, EPSILON)[0]
        normed, residual = x.clone(), x.flip(-1).contiguous()
        ops.fused_add_rms_norm(normed, residual, weight, EPSILON)
        return normed

    probes = [
        make(kernel="standard", apply=standard, need=Need.POSITION),
        make(kernel="standard, with residual", apply=with_residual, need=Need.POSITION),
    ]
    if has_batch_invariant_kernels():

        def invariant(x: torch.Tensor) -> torch.Tensor:
            return batch_invariant.rms_norm_batch_invariant(x, weight, EPSILON)

        probes.append(make(kernel="batch-invariant", apply=invariant, need=scene.batch_invariant_need))
    return probes


def _matmul(scene: Scene, name: str, inputs: int, outputs: int) -> list[Probe]:
    """x @ w.T. The LM head has N rows in every step; the others have a step's."""
    is_head = name == "lm_head"
    rows, shapes = (scene.slots, (scene.slots,)) if is_head else (scene.most_tokens, scene.token_shapes)
    bank = scene.bank(rows, inputs, seed=4)
    weight = scene.normal(outputs, inputs, seed=5, scale=inputs**-0.5)

    def make(kernel: str, apply: Kernel, need: Need) -> Probe:
        probe = _rowwise(scene, f"matmul {name}", kernel, bank, apply, need, shapes=shapes)
        return _reshaped(probe, f"{inputs} → {outputs}")

    probes = [make("standard", _linear(scene, weight), Need.POSITION)]
    if has_batch_invariant_kernels():

        def invariant(x: torch.Tensor) -> torch.Tensor:
            return batch_invariant.linear_batch_invariant(x, weight)

        need = Need.NOTHING if is_head else scene.batch_invariant_need
        probes.append(make("batch-invariant", invariant, need))
    return probes


def _reshaped(probe: Probe, shape: str) -> Probe:
    fields = {name: getattr(probe, name) for name in Probe.__slots__}
    return Probe(**{**fields, "shape": shape})


def _linear(scene: Scene, weight: torch.Tensor) -> Kernel:
    """What vLLM runs for an unquantized layer."""
    if scene.device.type != "cpu":
        return lambda x: nn.functional.linear(x, weight)
    layer = nn.Module()
    layer.weight = nn.Parameter(weight, requires_grad=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return lambda x: layer.cpu_linear(x, weight, None)


def _softmaxes(scene: Scene) -> list[Probe]:
    """Softmax is a part of top-p on the CPU; log-softmax gives the logprobs. Both are float32, N rows."""
    bank = _logits(scene)
    make = functools.partial(_rowwise, scene, shapes=(scene.slots,), bank=bank)
    probes = [
        make(operator="softmax", kernel="standard", need=Need.NOTHING, apply=lambda x: x.softmax(dim=-1)),
        make(
            operator="log-softmax",
            kernel="standard",
            need=Need.POSITION,
            apply=lambda x: x.log_softmax(dim=-1),
        ),
    ]
    if has_batch_invariant_kernels():
        softmax, log_softmax = batch_invariant.softmax, batch_invariant.log_softmax
        invariant = functools.partial(make, kernel="batch-invariant", need=Need.NOTHING)
        probes.insert(1, invariant(operator="softmax", apply=lambda x: softmax(x, -1)))
        probes.append(invariant(operator="log-softmax", apply=lambda x: log_softmax(x, -1)))
    return probes


def _top_p(scene: Scene) -> list[Probe]:
    """The parts that the paper names, and what the sampler runs: top-k and top-p on N rows."""
    bank = _logits(scene)
    make = functools.partial(_rowwise, scene, shapes=(scene.slots,), bank=bank, kernel="standard")

    def bound(logits: torch.Tensor) -> torch.Tensor:
        rows = len(logits)
        k = torch.full((rows,), min(50, logits.shape[1]), dtype=torch.int32, device=logits.device)
        p = torch.full((rows,), 0.9, dtype=torch.float32, device=logits.device)
        return apply_top_k_top_p(logits.clone(), k, p)

    return [
        make(
            operator="top-p sort",
            need=Need.NOTHING,
            apply=lambda x: x.sort(dim=-1, descending=False).values,
            is_graphable=False,
        ),
        make(
            operator="top-p cumulative sum",
            need=Need.NOTHING,
            apply=lambda x: x.softmax(dim=-1).cumsum(dim=-1),
        ),
        make(operator="top-k and top-p", need=Need.POSITION, apply=bound, is_graphable=False),
    ]


def _logits(scene: Scene) -> torch.Tensor:
    return scene.bank(scene.slots, scene.dims.vocabulary, seed=6, scale=3.0).float()
