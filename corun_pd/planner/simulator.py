"""Runs a trace through a simulated cluster and says how long it took and what it kept busy.

The router's policy picks instances, the engines' policy fills prefill steps: the code that runs in the
cluster, over the times of a cost profile. Left out: the wire but for KV transfers
and what the profile says of the router, and prefix reuse between requests (`engine.prefix_cache`).
"""

import gc
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from corun_pd.planner.apart import Apart
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import run_events
from corun_pd.planner.failures import Failures
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import Load
from corun_pd.planner.outcome import Outcome, Percentiles, PoolUse
from corun_pd.planner.record import Observer, Record
from corun_pd.planner.source import RoutedSource, Source
from corun_pd.planner.traces import TraceRequest
from corun_pd.planner.whole import Whole

__all__ = ["Overtime", "simulate"]


class Overtime(Exception):
    """The simulation was ended before its last token."""


def simulate(
    requests: Iterable[TraceRequest],
    layout: Layout,
    profile: Profile,
    load: Load,
    *,
    max_tokens: int = 0,
    failures: Failures | None = None,
    until_s: float = math.inf,
    observer: Observer | None = None,
) -> Outcome:
    """Runs all `requests` to their ends.

    `max_tokens` is what clients ask for, which is what room is reserved for; an answer that is longer in
    the trace asks for itself. Instances fail as `failures` says, None: never. `observer` is told of every
    edge of every request's life.

    Raises ConfigError when the profile does not cover the layout's slots or its shared devices, SetupError
    when an online load meets a trace without times, Overtime when the last token is not there `until_s`
    seconds after the first request came.
    """
    record = Record(observer)
    router = profile.router
    if router.request_s or router.latency_s:
        source: Source = RoutedSource(requests, load, max_tokens, record, layout, router)
    else:
        source = Source(requests, load, max_tokens, record, layout)
    cluster = (Whole if layout.colocated else Apart)(source, record, layout, profile)
    first_s = source.next_arrival_s() or 0.0
    with _no_collection():
        run_events(cluster.first_events(failures), first_s + until_s)
    if not cluster.is_over and until_s < math.inf:
        raise Overtime(until_s)
    if not cluster.is_over:
        raise RuntimeError(f"the simulation stopped with {cluster.in_system} requests under way")
    prompts, rows = cluster.prompts, cluster.rows
    end_s = record.last_s
    return Outcome(
        requests=record.finished,
        refused=record.refused,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        makespan_s=end_s - (record.first_s or 0.0),
        start_up_s=profile.start_up_s,
        ttft=Percentiles.of(record.ttft_s),
        tpot=Percentiles.of(record.tpot_s),
        prefill=PoolUse(
            instances=len(prompts),
            steps=sum(one.steps for one in prompts),
            busy_ratio=_ratio(cluster.prefill_busy.total, len(prompts) * end_s),
            padding_ratio=_padding(sum(p.tokens for p in prompts), sum(p.step_tokens for p in prompts)),
            use_ratio=_ratio(cluster.prefill_busy.total, len(prompts) * end_s),
            bin_s=cluster.prefill_busy.bin_s,
            use_over_time=cluster.prefill_busy.ratios(len(prompts), end_s),
        ),
        decode=PoolUse(
            instances=len(rows),
            steps=sum(one.steps for one in rows),
            busy_ratio=_ratio(sum(one.busy_s for one in rows), len(rows) * end_s),
            padding_ratio=_padding(sum(r.row_steps for r in rows), layout.slots * sum(r.steps for r in rows)),
            use_ratio=_ratio(cluster.decode_filled.total, len(rows) * layout.slots * end_s),
            bin_s=cluster.decode_filled.bin_s,
            use_over_time=cluster.decode_filled.ratios(len(rows) * layout.slots, end_s),
        ),
        failures=cluster.failures,
        replays=record.replays,
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of short-lived objects without cycles would be walked through again and again for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _padding(used: int, computed: int) -> float:
    return 1 - used / computed if computed else 0.0
