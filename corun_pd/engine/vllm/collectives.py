"""Sums over tensor-parallel ranks in a fixed order, whatever library carries the terms.

vLLM 0.32.0 has a choice of all-reduces and takes one by the size of each tensor: kernels of its own, NCCL's
rings and trees, symmetric memory, FlashInfer, and fusions with the norm that follows. Where an element is
added, and in which order, then depends on the step's shape and on the element's place.

Here each rank gathers the terms of all and adds them by `fixed_tree`. With W ranks a rank receives W - 1
times the tensor, where a ring sends and receives 2 (W - 1) / W times: the same for two ranks, twice as much
for four, four times for eight. A reduce-scatter is the same sum, cut.

Patched in vLLM 0.32.0, in the worker's process alone: which class `current_platform` names for
communicators, while the groups are made. `unfixed` looks whether it took.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform

from corun_pd.engine.vllm.fixed_tree import tree_sum

__all__ = ["adds_on_its_own", "algorithm_in_force", "fixed_tree", "unfixed"]

#: Part of the contract. A new order of additions is a new name.
ALGORITHM: Final = "fixed-tree-1"

#: Faster ways to add, of vLLM's and NCCL's, none of which is asked any more: what is off takes no memory.
_UNUSED: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
}

#: Code of vLLM's that adds over ranks without asking a communicator. Few models have it.
_ON_THEIR_OWN: Final = (
    "vllm.model_executor.kernels.linear.cute_dsl.gemm_rs_ar",
    "vllm.model_executor.layers.fused_allreduce_gemma_rms_norm",
    "vllm.model_executor.layers.minimax_rms_norm",
    "vllm.models.common.ops.fused_allreduce_rms_norm",
    "vllm.models.deepseek_v41.nvidia.ops",
    "vllm.models.inkling.nvidia.ops",
    "vllm.models.kimi_k3.nvidia",
)


class _FixedTree:
    """What this package's communicators do in place of vLLM's reductions."""

    world_size: int
    rank_in_group: int

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        terms = self.all_gather(input_.reshape(1, -1), 0)  # type: ignore[attr-defined]
        return tree_sum(terms).view(input_.shape)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part of the sum, cut evenly along `dim`."""
        return self.all_reduce(input_).chunk(self.world_size, dim)[self.rank_in_group].contiguous()

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """This rank's part of the sum, cut along `dim` into `sizes`."""
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        return self.all_reduce(input_).split(sizes, dim)[self.rank_in_group].contiguous()

    def reduce_scatterv_into_output(
        self, input_: torch.Tensor, output: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """The same, into `output`."""
        return output.copy_(self.reduce_scatterv(input_, dim, sizes))


class FixedTreeCpuCommunicator(_FixedTree, CpuCommunicator):  # type: ignore[misc]
    """Terms go through shared memory."""


class FixedTreeCudaCommunicator(_FixedTree, CudaCommunicator):  # type: ignore[misc]
    """Terms go through NCCL's all-gather, in CUDA graphs as well."""


@contextlib.contextmanager
def fixed_tree() -> Iterator[None]:
    """Groups of ranks that are made within it add in a fixed order."""
    kind = FixedTreeCpuCommunicator if current_platform.device_type == "cpu" else FixedTreeCudaCommunicator
    os.environ.update(_UNUSED)
    current_platform.get_device_communicator_cls = lambda: f"{kind.__module__}.{kind.__qualname__}"
    try:
        yield
    finally:
        del current_platform.get_device_communicator_cls


def unfixed(worker: Any) -> str | None:
    """What adds over the ranks of this worker's loaded model in another order; None when nothing does."""
    group = get_tp_group()
    if group.world_size == 1:
        return None
    found = group.device_communicator
    if not isinstance(found, _FixedTree):
        return f"tensor-parallel ranks add by {type(found).__name__}, which this package did not make"
    if (culprit := adds_on_its_own(worker.model_runner.model)) is None:
        return None
    return (
        f"engine.tensor_parallel_size: {group.world_size}: {culprit}, in an order that depends on the step's "
        "shape; run this model on one GPU, or the standard role"
    )


def adds_on_its_own(model: nn.Module) -> str | None:
    """The first layer of a model whose code has another way to add over ranks than a communicator's."""
    for name, module in model.named_modules():
        for value in vars(sys.modules[type(module).__module__]).values():
            place = getattr(value, "__module__", None)
            if isinstance(place, str) and place.startswith(_ON_THEIR_OWN):
                layer = f"{name or 'the model'} ({type(module).__name__})"
                return f"{layer} adds over ranks in a kernel of its own ({place})"
    return None


def algorithm_in_force(worker: Any) -> str | None:
    """How the ranks of this worker's process add; None where one rank has nothing to add."""
    group = get_tp_group()
    if group.world_size == 1:
        return None
    return ALGORITHM if isinstance(group.device_communicator, _FixedTree) else "vllm"
