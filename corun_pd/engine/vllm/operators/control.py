"""Kernels that depend on positions on purpose: a check that passes them would prove nothing."""

from collections.abc import Callable

import torch

from corun_pd.engine.operators import Need
from corun_pd.engine.vllm.operators.plan import Scene
from corun_pd.engine.vllm.operators.probe import Probe

__all__ = ["control_probes"]

#: Sums of each row with weights of their own: one alone may round to the same in two orders.
_SUMS = 64


def control_probes(scene: Scene) -> list[Probe]:
    """Sums whose order begins at the row's place, as a ring all-reduce's does, and by what others hold."""
    bank = scene.bank(scene.slots, scene.dims.hidden, seed=31)
    weights = scene.normal(_SUMS, scene.dims.hidden, seed=37)

    def ring(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([_tree_sum((row * weights).roll(-at, dims=-1)) for at, row in enumerate(rows)])

    def split(rows: torch.Tensor) -> torch.Tensor:
        # As many parts as the batch leaves room for: a split over K that looks at the other rows.
        parts = 1 + int((rows.abs().sum(dim=1) > 0).sum()).bit_length()
        total = rows.new_zeros(len(rows), _SUMS)
        for piece in (rows[:, None, :] * weights).tensor_split(parts, dim=-1):
            total = total + _tree_sum(piece)
        return total

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


def _tree_sum(values: torch.Tensor) -> torch.Tensor:
    """Sums of the last dimension, rounded to the dtype at every step: torch's own sums use a wider one."""
    while values.shape[-1] > 1:
        if values.shape[-1] % 2:
            values = torch.nn.functional.pad(values, (0, 1))
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]
