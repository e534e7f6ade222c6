"""A function given by measured points: linear between them, never falling."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Curve"]


@dataclass(frozen=True)
class Curve:
    """`xs` rise strictly, `ys` are positive and never fall. Raises ValueError that names what does not.

    Left of the first point the curve is flat, since a short step costs what the shortest costs. Right of
    the last it goes on with the last slope.
    """

    xs: tuple[int, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys):
            raise ValueError("a curve needs as many values as places, and one at least")
        _check_rising("place", self.xs, strictly=True)
        _check_rising("value", self.ys, strictly=False)

    def __call__(self, x: float) -> float:
        """The value at `x`."""
        xs, ys = self.xs, self.ys
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        at = min(bisect_left(xs, x), len(xs) - 1)
        left, right = xs[at - 1], xs[at]
        return ys[at - 1] + (ys[at] - ys[at - 1]) * (x - left) / (right - left)


def _check_rising(what: str, numbers: Sequence[float], strictly: bool) -> None:
    if not numbers[0] > 0 or math.isinf(numbers[-1]):
        raise ValueError(f"{what}s {numbers[0]} to {numbers[-1]} are not positive and finite")
    for before, after in itertools.pairwise(numbers):
        if not (after > before or (after == before and not strictly)):
            raise ValueError(f"{what} {after} follows {before}; it must not fall")
