"""A plan as a cluster file that `corun-pd up` takes as it is."""

from pathlib import Path
from typing import Any

import yaml

from corun_pd.config import ClusterConfig, EngineConfig, InstanceConfig, PrefillConfig, RouterConfig
from corun_pd.core import Role
from corun_pd.planner.search import Plan

__all__ = ["cluster_config", "write_cluster"]


def cluster_config(
    plan: Plan,
    model: Path,
    *,
    max_model_tokens: int,
    gpus_per_instance: int = 1,
    memory_ratio: float | None = None,
) -> ClusterConfig:
    """The cluster of a plan. `model` is the model's folder; an instance takes `gpus_per_instance` GPUs.

    `memory_ratio` is what KV pools are sized from; without it they have the plan's number of blocks.
    """
    layout, prefill = plan.layout, plan.profile.prefill
    counts = {Role.PREFILL: layout.prefill, Role.DECODE: layout.decode, Role.COLOCATED: layout.colocated}
    pool: dict[str, Any]
    if memory_ratio is None:
        pool = {"kv_cache_bytes": layout.blocks * layout.block_tokens * plan.profile.kv_bytes_per_token}
    else:
        pool = {"gpu_memory_ratio": memory_ratio}
    return ClusterConfig(
        model=model,
        engine=EngineConfig(
            slots=layout.slots,
            prefill=PrefillConfig(mode=prefill.mode, chunk_tokens=prefill.chunk_tokens),
            block_tokens=layout.block_tokens,
            max_model_tokens=min(max_model_tokens, layout.blocks * layout.block_tokens),
            tensor_parallel_size=gpus_per_instance,
            **pool,
        ),
        router=RouterConfig(decode_lookahead=layout.lookahead),
        instances=tuple(InstanceConfig(role=role, count=count) for role, count in counts.items() if count),
    )


def write_cluster(config: ClusterConfig, path: Path, comment: str) -> None:
    """Writes what differs from the defaults, under a comment of one line."""
    data = config.model_dump(mode="json", exclude_defaults=True)
    path.write_text(f"# {comment}\n{yaml.safe_dump(data, sort_keys=False)}", encoding="utf-8")
