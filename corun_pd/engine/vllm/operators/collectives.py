"""Sums over tensor-parallel ranks: ours, the library's, and the ring that must fail."""

from collections.abc import Iterator

import torch

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.operators.plan import Scene
from corun_pd.engine.vllm.operators.probe import Probe
from corun_pd.engine.vllm.rank_group import RankGroup
from corun_pd.errors import SetupError

__all__ = ["all_reduce_probes", "rank_group_of", "ring_probes"]


def rank_group_of(scene: Scene) -> RankGroup:
    """As many ranks as the model is split over. Raises SetupError where there are fewer GPUs."""
    size, kind = scene.tensor_parallel_size, scene.device.type
    if kind == "cuda" and torch.cuda.device_count() < size:
        raise SetupError(
            f"tensor parallel size {size} needs {size} GPUs; {torch.cuda.device_count()} are here"
        )
    try:
        return RankGroup(size, 2 * scene.most_tokens, scene.dims.hidden, scene.dtype, kind)
    except RuntimeError as error:
        raise SetupError(f"tensor-parallel ranks cannot be started: {error}") from error


def all_reduce_probes(scene: Scene, group: RankGroup) -> list[Probe]:
    """The contract needs the first; the second is what the library would do with these sizes."""
    need = Need.BATCH if scene.mode == "hybrid" else Need.POSITION
    library = {"cpu": "gloo", "cuda": "NCCL"}[scene.device.type]
    return [
        _probe(scene, group, "all-reduce", "fixed tree", "fixed tree", need),
        _probe(scene, group, "all-reduce", library, "library", Need.NOTHING),
    ]


def ring_probes(scene: Scene, group: RankGroup | None) -> Iterator[Probe]:
    """The control. Two ranks have no order to add in that could differ, so it is none there."""
    if group is not None and group.size > 2:
        yield _probe(scene, group, "control", "ring all-reduce", "ring", Need.POSITION)


def _probe(scene: Scene, group: RankGroup, operator: str, name: str, kernel: str, need: Need) -> Probe:
    return Probe(
        operator=operator,
        kernel=name,
        shape=f"{group.size} ranks, {scene.dims.hidden} wide",
        bank=group.rows + 1,
        shapes=scene.token_shapes,
        largest=group.rows // 2,
        need=need,
        prepare=lambda rows: rows,
        apply=lambda rows: group.all_reduce(kernel, rows),
        is_timed=False,
    )
