"""This package's configuration as vLLM's engine arguments."""

from pathlib import Path
from typing import Any

from vllm.platforms import current_platform

from corun_pd.config import Ablation, EngineConfig
from corun_pd.core import Role
from corun_pd.engine.vllm.scheduler import CoRunScheduler, CountingScheduler
from corun_pd.engine.vllm.settings import Settings
from corun_pd.engine.vllm.structured import COMPILER, has_tokenizer
from corun_pd.errors import SetupError

__all__ = ["device_type", "engine_arguments"]


def device_type() -> str:
    """`cpu` or `cuda`."""
    return str(current_platform.device_type)


def engine_arguments(model: Path, role: Role, config: EngineConfig) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs, less the KV transfer.

    Raises SetupError for a prefill mode that the role or the device cannot run.
    """
    if config.prefill.mode == "hybrid" and role is not Role.STANDARD and device_type() != "cuda":
        raise SetupError(
            "engine.prefill.mode: hybrid needs batch-invariant kernels; vLLM 0.32.0 has them on CUDA alone; "
            f"this is a {device_type()} engine, which runs isolated or packed"
        )
    if config.prefill.mode == "batch-invariant" and role is not Role.STANDARD:
        raise SetupError(
            f"engine.prefill.mode: batch-invariant is a baseline of the standard role; {role} runs "
            "isolated, packed or hybrid"
        )
    arguments: dict[str, Any] = {
        "model": str(model),
        # One rank is this process's own thread; more are processes of their own.
        "distributed_executor_backend": "uni" if config.tensor_parallel_size == 1 else "mp",
        # Tokens in, tokens out; a grammar alone needs to know what tokens spell.
        "skip_tokenizer_init": not has_tokenizer(model),
        "dtype": config.dtype,
        "max_model_len": config.max_model_tokens,
        "max_num_seqs": config.slots,
        "max_num_batched_tokens": max(config.prefill.chunk_tokens, config.slots),
        "block_size": config.block_tokens,
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_logprobs": config.max_logprobs,
        "structured_outputs_config": {"backend": COMPILER},
        "scheduler_cls": CountingScheduler if role is Role.STANDARD else CoRunScheduler,
        "additional_config": Settings.of(role, config).as_additional_config(),
        # Decode has no prompts to find, and what it would keep was computed in another shape.
        "enable_prefix_caching": config.prefix_cache and role is not Role.DECODE,
        "seed": 0,
        "disable_log_stats": True,
    }
    if config.weights == "random":
        arguments["load_format"] = "dummy"
    if config.kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = config.kv_cache_bytes
    return arguments | (_cpu() if device_type() == "cpu" else _cuda(role, config))


def _cpu() -> dict[str, Any]:
    return {
        "worker_cls": "corun_pd.engine.vllm.cpu_worker.CoRunCPUWorker",
        "enforce_eager": True,
    }


def _cuda(role: Role, config: EngineConfig) -> dict[str, Any]:
    # What is not compiled is eager; Inductor picks kernels by timing them when it autotunes.
    compilation: dict[str, Any] = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    if not config.compile:
        compilation["mode"] = 0
    attention: dict[str, Any] = {}
    if config.attention_backend is not None:
        attention["backend"] = config.attention_backend
    arguments: dict[str, Any] = {
        "gpu_memory_utilization": config.gpu_memory_ratio,
        "kernel_config": {"enable_flashinfer_autotune": False},
    }
    if role is Role.STANDARD:
        if config.compile:
            del compilation["cudagraph_mode"]  # vLLM's own choice: graphs for mixed batches too.
        if config.weights == "random":
            arguments["worker_cls"] = "corun_pd.engine.vllm.gpu_worker.StandardGPUWorker"
        return arguments | {"compilation_config": compilation, "attention_config": attention}
    if Ablation.FIXED_SHAPE_DECODE not in config.ablate:
        compilation["cudagraph_capture_sizes"] = [config.slots]
    if Ablation.NO_SPLIT_KV not in config.ablate:
        attention["flash_attn_max_num_splits_for_cuda_graph"] = 1
    # A compiled model would add over ranks in FlashInfer's kernels, together with the norm that follows.
    compilation["pass_config"] = {"fuse_allreduce_rms": False}
    return arguments | {
        "worker_cls": "corun_pd.engine.vllm.gpu_worker.CoRunGPUWorker",
        "disable_custom_all_reduce": True,
        "enable_batch_sharded_sampling": False,
        "compilation_config": compilation,
        "attention_config": attention,
    }
