"""vLLM's batch-invariant kernels for the prefill steps of `hybrid` alone (the paper's Section VIII-A).

vLLM 0.32.0 turns these kernels on for a whole process (`VLLM_BATCH_INVARIANT`). It asks that setting when a
layer runs, so the setting can hold for a step: linear layers, norms, the attention metadata and the routers
look at `vllm.envs` each time. Three things do not, and are switched here with it:

- aten operators (softmax, mean, matrix products outside linear layers) are replaced in the dispatcher; a
  library of replacements is made when a prefill step begins and taken away when it ends (about 50 µs);
- the tiles of a mixture of experts are looked up once for all and kept; within a step they are given;
- a router's own linear layer picks a kernel by the number of tokens, whatever the setting.

Decode's CUDA graph is captured with the setting off, and holds the ordinary kernels.
"""

import contextlib
import warnings
from typing import Any, Final

import torch
from torch import nn
from vllm import envs
from vllm.config import CompilationMode, VllmConfig
from vllm.model_executor.determinism import batch_invariant
from vllm.model_executor.layers.fused_moe import override_config
from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
from vllm.platforms import current_platform

from corun_pd.errors import SetupError

__all__ = ["EXPERT_TILES", "BatchInvariance", "require_batch_invariance", "require_batch_invariant_layers"]

#: Of vLLM's batch-invariant mode (`fused_moe.get_default_config`): one set for every number of tokens.
EXPERT_TILES: Final = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 32,
    "GROUP_SIZE_M": 8,
    "SPLIT_K": 1,
}

#: aten operators and what takes their place. bmm already has a Python kernel on CUDA, which must give way.
_REPLACEMENTS: Final = {
    "mm": batch_invariant.mm_batch_invariant,
    "mm.out": batch_invariant.mm_out_batch_invariant,
    "addmm": batch_invariant.addmm_batch_invariant,
    "addmm.out": batch_invariant.addmm_out_batch_invariant,
    "bmm": batch_invariant.bmm_batch_invariant,
    "bmm.out": batch_invariant.bmm_out_batch_invariant,
    "mean.dim": batch_invariant.mean_batch_invariant,
    "_softmax": batch_invariant.softmax_batch_invariant,
    "_log_softmax": batch_invariant._log_softmax_batch_invariant,
}


class BatchInvariance:
    """The switch. `on` and `off` may be called any number of times; steps of one engine do not overlap."""

    def __init__(self, replacements: dict[str, Any] = _REPLACEMENTS) -> None:
        self._replacements = replacements
        self._library: torch.library.Library | None = None
        self._tiles = contextlib.ExitStack()
        envs.VLLM_BATCH_INVARIANT = False  # A name of the module's own, which vLLM's cache cannot hide.

    @property
    def is_on(self) -> bool:
        """Whether the kernels of now are batch-invariant."""
        return self._library is not None

    def on(self) -> None:
        """From now on, kernels are batch-invariant."""
        if self._library is not None:
            return
        envs.VLLM_BATCH_INVARIANT = True
        self._tiles.enter_context(override_config(EXPERT_TILES))
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that the operators are overridden.
            for name, kernel in self._replacements.items():
                self._library.impl(
                    f"aten::{name}", kernel, current_platform.dispatch_key, allow_override=True
                )

    def off(self) -> None:
        """From now on, kernels are the ordinary ones."""
        if self._library is None:
            return
        self._library._destroy()
        self._library = None
        self._tiles.close()
        envs.VLLM_BATCH_INVARIANT = False

    def take_routers(self, model: nn.Module) -> None:
        """Has the routers' linear layers follow the switch."""
        for module in model.modules():
            if isinstance(module, GateLinear):
                module.forward = _switched(self, module, module.forward)


def _switched(switch: BatchInvariance, gate: GateLinear, ordinary: Any) -> Any:
    def forward(x: torch.Tensor) -> Any:
        if not switch.is_on:
            return ordinary(x)
        weight, wide = gate.weight, gate.out_dtype == torch.float32 or gate.weight.dtype == torch.float32
        if wide:
            x, weight = x.float(), weight.float()
        return gate._return(batch_invariant.linear_batch_invariant(x, weight, gate.bias))

    return forward


def require_batch_invariance(vllm_config: VllmConfig) -> None:
    """Raises SetupError where `hybrid` cannot be kept: it is refused rather than approximated."""
    model, place = vllm_config.model_config, "engine.prefill.mode: hybrid"
    if not current_platform.is_cuda():
        raise SetupError(
            f"{place} needs batch-invariant kernels, which vLLM 0.32.0 has for CUDA alone; "
            f"{current_platform.device_type} runs isolated or packed"
        )
    if vllm_config.compilation_config.mode != CompilationMode.NONE:
        raise SetupError(
            f"{place}: a compiled model keeps the kernels it was compiled with; set engine.compile: false"
        )
    if model.quantization is not None:
        raise SetupError(
            f"{place}: kernels of {model.quantization} weights are chosen when the model is loaded, for "
            "prefill and decode alike; use isolated or packed"
        )
    if model.use_mla:
        raise SetupError(
            f"{place}: latent attention (MLA) in vLLM 0.32.0 picks its projection's kernel by the number of "
            "tokens, batch-invariant or not; use isolated or packed"
        )


def require_batch_invariant_layers(model: nn.Module) -> None:
    """Raises SetupError when a loaded layer's kernel has no batch-invariant form."""
    for name, module in model.named_modules():
        experts = getattr(getattr(module, "quant_method", None), "experts_cls", None)
        if experts is not None and not experts._supports_batch_invariance():
            raise SetupError(
                f"engine.prefill.mode: hybrid: {name} runs {experts.__name__}, which has no "
                "batch-invariant form; use isolated or packed"
            )
