"""Workloads that no cost profile was fitted to: what predictions are held against.

Their lengths are shares of `longest`, the tokens that a sequence may have, so that one set serves an engine
on a CPU and one on a GPU. Rates are shares of what an idle cluster could do.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corun_pd.planner.cost import Profile
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.traces import LogNormal, Synthetic, TraceRequest, Uniform
from corun_pd.planner.traces.synthetic import Lengths
from corun_pd.planner.work import Work

__all__ = ["Workload", "held_out"]

#: Share of a cluster's capacity at which requests arrive online, and how many come at one moment.
LOAD_RATIO, BURST = 0.6, 6


@dataclass(frozen=True, slots=True)
class Workload:
    """A name, how requests come, and the requests."""

    name: str
    load: Load
    requests: Sequence[TraceRequest]


def held_out(layout: Layout, profile: Profile, longest: int, requests: int) -> list[Workload]:
    """Six workloads of about `requests` requests for a cluster; sequences have at most `longest` tokens."""
    in_flight = 3 * layout.slots * max(layout.decode, layout.colocated) // 2
    unit = longest // 32
    shapes: list[tuple[str, Load, Lengths, Lengths, int]] = [
        ("short", Offline(), Uniform(unit, 2 * unit), Uniform(unit // 2, unit), requests),
        ("long in", Offline(), Uniform(14 * unit, 24 * unit), Uniform(unit // 2, unit), requests // 2),
        ("long out", Offline(), Uniform(unit, 3 * unit), Uniform(6 * unit, 10 * unit), requests // 2),
        (
            "BurstGPT-like",
            ClosedLoop(in_flight),
            LogNormal(3 * unit, 1.0, 20 * unit),
            LogNormal(3 * unit, 0.8, 10 * unit),
            requests,
        ),
    ]
    found = [
        Workload(name, load, list(Synthetic(count, prompt, output, seed=at)))
        for at, (name, load, prompt, output, count) in enumerate(shapes, start=11)
    ]
    found.append(Workload("rollout groups", Offline(), list(_groups(requests, unit))))
    mixed = list(Synthetic(requests, Uniform(unit, 8 * unit), LogNormal(3 * unit, 0.6, 8 * unit), seed=17))
    if layout.per_device > 1 and profile.beside is not None:  # what instances can do that slow each other
        profile = profile.scaled(prefill=profile.beside.prefill, decode=profile.beside.decode)
    least_s = Work.of(mixed, profile).least_makespan_s(layout)
    found.append(Workload("bursty online", Online(), list(_bursts(mixed, least_s / LOAD_RATIO))))
    return found


def _groups(requests: int, unit: int) -> Iterator[TraceRequest]:
    """Eight samples of a prompt, as one request asks for them; they are as long as its limit."""
    source = random.Random(16)
    prompts, answers = Uniform(2 * unit, 8 * unit), LogNormal(4 * unit, 0.6, 12 * unit)
    for group in range(requests // 8):
        prompt, answer = prompts.draw(source), answers.draw(source)
        for _ in range(8):
            yield TraceRequest(None, prompt, answer, group=group)


def _bursts(requests: Sequence[TraceRequest], span_s: float) -> Iterator[TraceRequest]:
    """Bursts of requests that come at one moment, at random times within about `span_s`."""
    source = random.Random(18)
    at_s = 0.0
    for place, request in enumerate(requests):
        if place and place % BURST == 0:
            at_s += source.expovariate(len(requests) / BURST / span_s)
        yield request._replace(arrival_s=at_s)
