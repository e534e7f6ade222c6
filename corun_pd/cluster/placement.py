"""What a cluster asks of Ray, and what Ray says of its nodes, in words. Pure: nothing here calls Ray."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corun_pd.config import ClusterConfig, EngineConfig, InstanceConfig

__all__ = ["Bundle", "bundles", "node_names", "not_placed"]

#: What is set aside for an instance on one node, by Ray's names of resources.
Bundle = Mapping[str, float]


def bundles(config: ClusterConfig, *, gpus: bool) -> list[Bundle]:
    """One for each instance, in order. `gpus` tells whether engines run on CUDA."""
    return [
        instance.resources or _default(instance, config.engine, gpus and config.engine.kind == "vllm")
        for instance in config.instances
        for _ in range(instance.count)
    ]


def _default(instance: InstanceConfig, engine: EngineConfig, gpus: bool) -> Bundle:
    ranks = engine.tensor_parallel_size
    if gpus:
        return {"CPU": float(len(instance.cores or (0,))), "GPU": float(ranks)}
    return {"CPU": float(len(instance.cores or ()) or engine.cpu_threads * ranks)}


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The nodes of `ray.nodes()` for people, by id. A name is an IP address unless one was given."""
    return {node["NodeID"]: f"{node['NodeName']} ({node['NodeID'][:8]})" for node in nodes}


def not_placed(
    config: ClusterConfig,
    asked: Sequence[Bundle],
    nodes: Sequence[Mapping[str, Any]],
    free: Mapping[str, float],
) -> str:
    """Why there is no placement: what was asked for, what `ray.nodes()` have of it, and what is free."""
    kinds = sorted({kind for bundle in asked for kind in bundle})
    wanted, first = [], 0
    for instance in config.instances:
        times = "" if instance.count == 1 else f"{instance.count} x "
        wanted.append(f"{times}{instance.role} with {_words(asked[first], asked[first])}")
        first += instance.count
    names = node_names(nodes)
    have = sorted(f"{names[n['NodeID']]} with {_words(n['Resources'], kinds)}" for n in nodes if n["Alive"])
    return (
        f"Ray cannot place the instances within {config.ray.place_timeout_s:g} s; "
        f"asked for, by {config.ray.strategy}: {', '.join(wanted)}; "
        f"the Ray cluster has {'; '.join(have) or 'no node'}; free in all: {_words(free, kinds)}"
    )


def _words(resources: Mapping[str, float], kinds: Iterable[str]) -> str:
    return ", ".join(f"{kind} {resources.get(kind, 0):g}" for kind in sorted(kinds))
