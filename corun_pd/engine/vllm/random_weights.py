"""Random weights for model shapes without weights: benchmarks only.

vLLM's dummy loader gives every tensor the same seed and a range of a thousandth, so that all logits
are all but equal and no determinism test on them can fail. Here each matrix has its own seed and a
range that makes logits differ, and norms are one. Equal shapes in equal order get equal weights.
"""

import itertools

import torch
from vllm.model_executor.model_loader import dummy_loader

from corun_pd.errors import SetupError

__all__ = ["install"]

RANGE = 0.035


def install() -> None:
    """Replaces the dummy loader's initializer (vLLM 0.32.0: `initialize_single_dummy_weight`)."""
    if not hasattr(dummy_loader, "initialize_single_dummy_weight"):
        raise SetupError("vLLM's dummy loader has no initialize_single_dummy_weight; was 0.32.0 replaced?")
    seeds = itertools.count(1)

    def initialize(tensor: torch.Tensor, *args: object, **kwargs: object) -> None:
        if not torch.is_floating_point(tensor):
            return
        if tensor.dim() < 2:
            tensor.data.fill_(1)
            return
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed(next(seeds))
        tensor.data.uniform_(-RANGE, RANGE, generator=generator)

    dummy_loader.initialize_single_dummy_weight = initialize
