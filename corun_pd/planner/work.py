"""What a workload asks of a cluster at the least, whatever the schedule."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from corun_pd.planner.cost import Profile
from corun_pd.planner.layout import Layout
from corun_pd.planner.outcome import Percentiles
from corun_pd.planner.traces import TraceRequest

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Sums over all requests under one profile.

    `prefill_s` is instance time without padding; `shared_prefill_s` counts a prompt of several samples once,
    as instances of prefill alone do. `row_steps` are decode rows, `kv_reads` the KV tokens that they read.
    `alone` is of first tokens on an idle cluster.
    """

    profile: Profile
    prefill_s: float
    shared_prefill_s: float
    row_steps: int
    kv_reads: int
    alone: Percentiles
    most_output: int

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], profile: Profile) -> Self:
        """One pass over the requests."""
        cost = profile.prefill
        alone = array("d")
        prefill_s, shared_s = 0.0, 0.0
        row_steps = kv_reads = most_output = 0
        last_group: int | None = None
        for _, prompt, output, _, group in requests:
            alone.append(cost.alone_s(prompt))
            work_s = cost.work_s(prompt)
            prefill_s += work_s
            if group is None or group != last_group:
                shared_s += work_s
            last_group = group
            steps = output - 1
            row_steps += steps
            kv_reads += steps * (prompt + 1) + steps * (steps - 1) // 2
            most_output = max(most_output, output)
        return cls(
            profile,
            prefill_s,
            shared_s,
            row_steps,
            kv_reads,
            Percentiles.of(alone),
            most_output,
        )

    def least_makespan_s(self, layout: Layout) -> float:
        """No schedule is faster: the busiest pool without padding or waiting, and the longest answer."""
        base_s, kv_token_s, row_s = self.profile.decode_step(layout.slots)
        decode_s = self.row_steps * (base_s / layout.slots + row_s) + self.kv_reads * kv_token_s
        longest_s = (self.most_output - 1) * (base_s + row_s)
        if layout.colocated:
            return max((self.prefill_s + decode_s) / layout.colocated, longest_s)
        return max(self.shared_prefill_s / layout.prefill, decode_s / layout.decode, longest_s)
