"""An amount over time, in a bounded number of bins."""

from collections.abc import Sequence
from typing import Final

__all__ = ["Timeline"]

_BINS: Final = 128


class Timeline:
    """Adds up amounts over intervals of time. Bins double in width when time outgrows them."""

    def __init__(self) -> None:
        self.bin_s = 1e-3
        self.total = 0.0
        self._bins = [0.0] * _BINS

    def add(self, start_s: float, end_s: float, rate: float = 1.0) -> None:
        """`rate` a second from `start_s` to `end_s`."""
        self.total += (end_s - start_s) * rate
        while end_s >= self.bin_s * _BINS:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [left + right for left, right in pairs] + [0.0] * (_BINS // 2)
            self.bin_s *= 2
        width = self.bin_s
        first, last = int(start_s / width), int(end_s / width)
        if first == last:
            self._bins[first] += (end_s - start_s) * rate
            return
        self._bins[first] += ((first + 1) * width - start_s) * rate
        for at in range(first + 1, last):
            self._bins[at] += width * rate
        self._bins[last] += (end_s - last * width) * rate

    def ratios(self, full_rate: float, until_s: float) -> Sequence[float]:
        """For each bin up to `until_s`, what was added as a share of `full_rate`."""
        found: list[float] = []
        for at, amount in enumerate(self._bins):
            span_s = min(until_s - at * self.bin_s, self.bin_s)
            if span_s <= 0:
                break
            found.append(amount / (span_s * full_rate))
        return found
