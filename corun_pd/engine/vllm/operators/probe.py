"""One kernel under test, and the two tests of it."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from corun_pd.engine.operators import Need, OperatorResult

__all__ = ["Probe", "differing_rows", "examine"]

#: Rows whose results alone are compared with theirs in batches.
TARGETS = 4

#: Orders of the rows at a fixed shape, beside their own, reversed and shifted.
SHUFFLES = 3


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel over a bank of rows, in which row `bank - 1` is what padding holds.

    `prepare` takes row numbers (int64, on the CPU) and gives the kernel's inputs; `apply` runs it and gives
    a tensor whose first dimension is those rows. `shapes` are the row counts at which positions are
    compared; `largest` bounds the batches. `is_graphable` says whether a CUDA graph can hold it, `is_timed`
    whether the time of a call says anything of the kernel's.
    """

    operator: str
    kernel: str
    shape: str
    bank: int
    shapes: tuple[int, ...]
    largest: int
    need: Need
    prepare: Callable[[torch.Tensor], Any]
    apply: Callable[[Any], torch.Tensor]
    is_graphable: bool = True
    is_timed: bool = True

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        """The kernel's output for these rows of the bank."""
        return self.apply(self.prepare(rows)).clone()


def examine(
    probe: Probe, sizes: Sequence[int], timed: Sequence[int] = (), repeats: int = 30
) -> OperatorResult:
    """Tests a kernel. What it raises goes into the result: a kernel that a machine lacks is a finding."""
    sizes = tuple(size for size in sizes if size <= probe.largest)
    try:
        with torch.inference_mode():
            batch = tuple(size for size in sizes if _differs_from_alone(probe, size))
            position = tuple(rows for rows in probe.shapes if _differs_by_position(probe, rows))
            counts = [rows for rows in timed if rows <= probe.largest and probe.is_timed]
            latency = {rows: _latency_s(probe, rows, repeats) for rows in counts}
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises on this machine is a finding
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return OperatorResult(probe.operator, probe.kernel, probe.shape, probe.need, error=reason)
    return OperatorResult(
        operator=probe.operator,
        kernel=probe.kernel,
        shape=probe.shape,
        need=probe.need,
        batch_sizes=sizes,
        batch_differs=batch,
        position_shapes=probe.shapes,
        position_differs=position,
        latency_s=latency,
    )


def differing_rows(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Which rows differ in a bit. NaNs are compared by their bits too."""
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    same = found.contiguous().view(width) == expected.contiguous().view(width)
    return ~same.reshape(len(same), -1).all(dim=1)


def _differs_from_alone(probe: Probe, size: int) -> bool:
    """Whether one of the first rows differs from itself alone in a batch of `size` rows."""
    together = probe.run(torch.arange(size))
    for row in range(min(TARGETS, size)):
        alone = probe.run(torch.tensor([row]))
        if differing_rows(together[row : row + 1], alone).any():
            return True
    return False


def _differs_by_position(probe: Probe, rows: int) -> bool:
    """Whether a row among `rows` differs from itself in another place, or beside other rows.

    Every row is compared under every order. Then one row in four stays and the others give way, first to
    other rows of the bank and then to padding, in place and shuffled.
    """
    generator = torch.Generator().manual_seed(rows)
    own = torch.arange(rows)
    expected = probe.run(own)
    shuffles = [torch.randperm(rows, generator=generator) for _ in range(SHUFFLES)]
    for order in (own, own.flip(0), own.roll(1), *shuffles):
        if differing_rows(probe.run(order), expected[order.to(expected.device)]).any():
            return True
    kept = torch.randperm(rows, generator=generator)[: max(1, rows // 4)]
    others = rows + torch.arange(rows) % max(1, probe.bank - rows - 1)
    for filling in (others, torch.full((rows,), probe.bank - 1)):
        mixed = filling.clone()
        mixed[kept] = kept
        for order in (own, shuffles[0]):
            found = probe.run(mixed[order])
            at = torch.nonzero(torch.isin(mixed[order], kept)).flatten()
            there = mixed[order][at].to(expected.device)
            if differing_rows(found[at.to(found.device)], expected[there]).any():
                return True
    return False


def _latency_s(probe: Probe, rows: int, repeats: int) -> float:
    """Median seconds of a run. On CUDA one replay of a graph, so that no launch from the host is timed."""
    inputs = probe.prepare(torch.arange(rows))
    for _ in range(3):
        result = probe.apply(inputs)
    if result.device.type != "cuda":
        return statistics.median(_wall_s(lambda: probe.apply(inputs)) for _ in range(repeats))
    torch.cuda.synchronize()
    step = _as_graph(probe, inputs) if probe.is_graphable else lambda: probe.apply(inputs)
    times = []
    for _ in range(repeats):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        step()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)) / 1000)
    return statistics.median(times)


def _as_graph(probe: Probe, inputs: Any) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            probe.apply(inputs)
    except RuntimeError:
        torch.cuda.synchronize()
        return lambda: probe.apply(inputs)
    graph.replay()
    torch.cuda.synchronize()

    def replay() -> None:
        graph.replay()

    return replay


def _wall_s(step: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s
