"""Random weights for model shapes without weights: benchmarks only.

vLLM's dummy loader gives every tensor the same seed and a range of a thousandth, so that all logits
are all but equal and no determinism test on them can fail. Here each matrix has its own seed and a
range that makes logits differ, and norms are one. Equal shapes in equal order get equal weights. Where
tensor-parallel ranks hold a part of a matrix each, each part has a seed of its own: equal parts would make
equal terms, whose sum no order of additions can change.
"""

import itertools
from typing import Any

import torch
from torch import nn
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.model_executor.model_loader import dummy_loader

from corun_pd.errors import SetupError

__all__ = ["install"]

RANGE = 0.035

#: Between the seeds of two ranks: more than a model has matrices.
STRIDE = 1 << 20

_load = dummy_loader.DummyModelLoader.load_weights


def install() -> None:
    """Replaces the dummy loader's initializer, for the model that this process loads next.

    vLLM 0.32.0: `initialize_single_dummy_weight`, which is told a tensor but not whose.
    """
    if not hasattr(dummy_loader, "initialize_single_dummy_weight"):
        raise SetupError("vLLM's dummy loader has no initialize_single_dummy_weight; was 0.32.0 replaced?")
    seeds = itertools.count(1)
    parts: set[int] = set()

    def load_weights(loader: Any, model: nn.Module, model_config: Any) -> None:
        split = filter(_is_split, model.modules())
        parts.update(id(tensor) for module in split for tensor in module.parameters(recurse=False))
        _load(loader, model, model_config)

    def initialize(tensor: torch.Tensor, *args: object, **kwargs: object) -> None:
        if not torch.is_floating_point(tensor):
            return
        if tensor.dim() < 2:
            tensor.data.fill_(1)
            return
        generator = torch.Generator(device=tensor.device)
        rank = get_tensor_model_parallel_rank() if id(tensor) in parts else 0
        generator.manual_seed(next(seeds) + rank * STRIDE)
        tensor.data.uniform_(-RANGE, RANGE, generator=generator)

    dummy_loader.initialize_single_dummy_weight = initialize
    dummy_loader.DummyModelLoader.load_weights = load_weights


def _is_split(module: nn.Module) -> bool:
    """Whether ranks hold different parts of its own weights. Layers that are not split say 1."""
    experts = getattr(module, "moe_config", None)
    return int(getattr(module, "tp_size", getattr(experts, "tp_size", 1))) > 1
