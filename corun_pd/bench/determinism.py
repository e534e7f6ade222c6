"""The contract check: the same requests in other company, order and deployment, compared bit for bit.

Each mode of `bench.runs` on each route that the fleet has. The reference is "colocated, alone" where the
fleet has colocated instances, else "disaggregated, alone". Compared are token ids, the float32 bits of
logprobs, finish and stop reasons, seeds and usage.

Run on a fleet of standard instances, it is the negative control: a check that finds no difference there
proves nothing on this machine.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from corun_pd.bench.compare import Comparison, compare
from corun_pd.bench.prompts import FleetShape, Request, make_crowd, make_requests
from corun_pd.bench.runs import MODES, Results, Runner
from corun_pd.client import AsyncClient, Fleet, FleetMember, Route
from corun_pd.core import Role
from corun_pd.errors import SetupError

__all__ = ["Plan", "Progress", "Report", "check_fleet", "routes_of", "shape_of"]

IDLE_POLL_S = 0.1

#: Told a run's name and how many requests it has, then once with 1 for each that is done.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """`requests` requests of `max_tokens` output tokens each.

    `idle_timeout_s` bounds the wait for KV blocks to come back when all is done.
    """

    requests: int = 32
    max_tokens: int = 16
    idle_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What came out. `leaks` says which instances hold what although nothing runs."""

    fingerprint: str
    reference: str
    requests: tuple[Request, ...]
    comparisons: tuple[Comparison, ...]
    leaks: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every run equals the reference in every bit."""
        return all(comparison.is_identical for comparison in self.comparisons)


async def check_fleet(client: AsyncClient, plan: Plan, progress: Progress) -> Report:
    """Runs the check. Raises SetupError when the fleet has no instances to run it on."""
    fleet = await client.describe()
    routes = routes_of(fleet)
    if fleet.fingerprint is None or not routes:
        raise SetupError("the fleet has neither a colocated instance nor both prefill and decode ones")
    shape = shape_of(fleet)
    requests = make_requests(shape, plan.requests, plan.max_tokens)
    crowd = make_crowd(shape, plan.max_tokens)
    runs: dict[str, Results] = {}
    for route in routes:
        for mode, run in MODES.items():
            name = f"{route}, {mode}"
            progress(name, len(requests), 0)
            runner = Runner(client, route, partial(progress, name, len(requests), 1))
            runs[name] = await run(runner, requests, crowd)
    reference, expected = next(iter(runs.items()))
    return Report(
        fingerprint=fleet.fingerprint,
        reference=reference,
        requests=tuple(requests),
        comparisons=tuple(
            compare(name, expected, found) for name, found in runs.items() if name != reference
        ),
        leaks=await _leaks(client, plan.idle_timeout_s),
    )


def routes_of(fleet: Fleet) -> tuple[Route, ...]:
    """The routes that the fleet can run, the reference first."""
    roles = {member.instance.role for member in fleet.members}
    routes = []
    if roles & {Role.COLOCATED, Role.STANDARD}:
        routes.append(Route.COLOCATED)
    if {Role.PREFILL, Role.DECODE} <= roles:
        routes.append(Route.DISAGGREGATED)
    return tuple(routes)


def shape_of(fleet: Fleet) -> FleetShape:
    """The fleet's sizes: of each, the least over the instances."""
    instances = [member.instance for member in fleet.members]
    return FleetShape(
        block_tokens=min(one.block_tokens for one in instances),
        prefill_tokens=min(one.prefill_tokens for one in instances),
        max_model_tokens=min(one.max_model_tokens for one in instances),
        max_logprobs=min(one.max_logprobs for one in instances),
        vocabulary=min(one.vocabulary for one in instances),
        slots=min(one.slots for one in instances),
    )


async def _leaks(client: AsyncClient, timeout_s: float) -> tuple[str, ...]:
    """What is still held once `timeout_s` is over; nothing as soon as nothing is."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        fleet = await client.describe()
        held = tuple(text for member in fleet.members if (text := _held(member)))
        if not held or asyncio.get_running_loop().time() > deadline:
            return held
        await asyncio.sleep(IDLE_POLL_S)


def _held(member: FleetMember) -> str:
    """What an idle instance holds and should not, for people; empty when nothing."""
    name = member.instance.instance_id
    if member.load is None:
        return f"{name} does not say what it holds"
    counts = {
        "KV blocks": member.instance.blocks - member.load.free_blocks,
        "open handoffs": member.load.open_handoffs,
        "legs at the router": member.legs,
        "blocks reserved at the router": member.reserved_blocks,
    }
    held = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{name} holds {', '.join(held)}" if held else ""
