"""Kernels that depend on positions on purpose: a check that passes them would prove nothing."""

from collections.abc import Callable

import torch

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.operators.plan import Scene
from corun_pd.engine.vllm.operators.probe import Probe

__all__ = ["control_probes"]


def control_probes(scene: Scene) -> list[Probe]:
    """A sum whose order begins at the row's place, as a ring all-reduce's does; one by what others hold."""
    bank = scene.bank(scene.slots, scene.dims.hidden, seed=31).float()

    def ring(rows: torch.Tensor) -> torch.Tensor:
        sums = [row.roll(-at).cumsum(0)[-1:] for at, row in enumerate(rows)]
        return torch.stack(sums)

    def split(rows: torch.Tensor) -> torch.Tensor:
        # As many parts as the batch leaves room for: a split over K that looks at the other rows.
        parts = 1 + int((rows.abs().sum(dim=1) > 0).sum()) % 7
        return torch.stack([piece.cumsum(1)[:, -1] for piece in rows.tensor_split(parts, dim=1)]).cumsum(0)[
            -1
        ]

    def make(kernel: str, apply: Callable[[torch.Tensor], torch.Tensor]) -> Probe:
        return Probe(
            operator="control",
            kernel=kernel,
            shape=f"{bank.shape[1]} wide",
            bank=len(bank),
            shapes=(scene.slots,),
            largest=scene.slots,
            need=Need.POSITION,
            prepare=lambda rows: bank[scene.indices(rows)],
            apply=apply,
            is_graphable=False,
        )

    return [make("order by position", ring), make("split by company", split)]
