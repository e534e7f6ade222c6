"""One engine under measurement: what experiments run their jobs on.

Equal jobs are run once: experiments on one engine that look at the same run share it.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corun_pd.bench.modes import Mode
from corun_pd.bench.process import EngineProcess
from corun_pd.bench.records import Job, Run
from corun_pd.bench.workloads import EngineRequest, Workload, make_engine_requests
from corun_pd.config import Ablation
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import EngineFailed

__all__ = ["Station"]


@dataclass
class Station:
    """`engine` is ready and runs `mode`. No job starts after `deadline_s`, on time.monotonic's clock."""

    mode: Mode
    engine: EngineProcess
    info: EngineInfo
    deadline_s: float
    say: Callable[[str], None]
    runs: dict[tuple[object, ...], Run] = field(default_factory=dict)

    @property
    def is_fixed(self) -> bool:
        """Whether every decode step has N rows."""
        return self.mode.role is Role.COLOCATED and Ablation.FIXED_SHAPE_DECODE not in self.mode.ablate

    def warm_up(self) -> None:
        """The first step of each kind is slow."""
        requests = make_engine_requests([(64, 8)] * 16, self.info.vocabulary, seed=99)
        self.run(requests, what="warm-up")

    def offline(self, workload: Workload, repeat: int = 0) -> Run:
        """All requests submitted at the start."""
        return self._shared(workload, (None, None, repeat))

    def closed_loop(self, workload: Workload, in_flight: int) -> Run:
        """`in_flight` requests at a time; the next one comes when one is done, as in the paper."""
        return self._shared(workload, (in_flight, None, 0))

    def at_rate(self, workload: Workload, per_s: float) -> Run:
        """Poisson arrivals, the same in every mode."""
        return self._shared(workload, (None, per_s, 0))

    def run(self, requests: Sequence[EngineRequest], what: str, **how: object) -> Run:
        """A job of these requests. Raises EngineFailed when the time of this engine is over."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise EngineFailed(f"no time left for {what}")
        run = self.engine.run(Job(requests, **how), timeout_s=left_s)  # type: ignore[arg-type]
        self.say(f"{self.mode.name}: {what}: {run.wall_s:.1f} s, {run.tokens_per_s:,.0f} output tokens/s")
        return run

    def _shared(self, workload: Workload, how: tuple[int | None, float | None, int]) -> Run:
        key = (workload, *how)
        if key not in self.runs:
            concurrency, per_s, _ = how
            requests = make_engine_requests(workload.lengths, self.info.vocabulary)
            arrivals = None if per_s is None else _poisson(len(requests), per_s)
            name = workload.name
            name += f", {concurrency} in flight" if concurrency else ""
            name += f", {per_s:g} requests/s" if per_s else ""
            self.runs[key] = self.run(requests, name, concurrency=concurrency, arrivals_s=arrivals)
        return self.runs[key]


def _poisson(count: int, per_s: float) -> list[float]:
    source, at_s, arrivals = random.Random(5), 0.0, []
    for _ in range(count):
        at_s += source.expovariate(per_s)
        arrivals.append(at_s)
    return arrivals
