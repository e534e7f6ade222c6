"""The contract check against a fleet whose answers depend on what the test wants."""

import asyncio
from dataclasses import replace

import pytest

from corun_pd.bench.determinism import Plan, Report, check_fleet, routes_of
from corun_pd.client import (
    AsyncClient,
    Fleet,
    FleetMember,
    GenerationRequest,
    GenerationResult,
    MockTransport,
    Route,
    make_result,
)
from corun_pd.core import InstanceInfo, InstanceLoad, Role
from corun_pd.errors import SetupError

PLAN = Plan(requests=12, max_tokens=4, idle_timeout_s=0.2)


def make_member(role: Role, load: InstanceLoad | None = None, legs: int = 0) -> FleetMember:
    """An instance of 100 blocks, idle unless `load` says otherwise."""
    info = InstanceInfo(f"{role}-1", role, "h:1", "f", {}, "m", 4, 100, 16, 512, 64, 1024, 20, 300)
    return FleetMember(info, InstanceLoad(free_blocks=100) if load is None else load, legs, 0)


def make_fleet(*members: FleetMember) -> Fleet:
    """A fleet under the contract `f`."""
    return Fleet("f", {}, members, 0, 0, 1 << 20)


APART = (make_member(Role.PREFILL), make_member(Role.DECODE))
WHOLE = (make_member(Role.COLOCATED),)


class Engine:
    """Answers by prompt and seed. `crowd_matters`: also by how many requests run at once."""

    def __init__(self, *, crowd_matters: bool = False, route_matters: bool = False) -> None:
        self.crowd_matters = crowd_matters
        self.route_matters = route_matters
        self.running = self.most = 0

    async def __call__(self, request: GenerationRequest) -> GenerationResult:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        crowd = min(self.running, 2) if self.crowd_matters else 0
        route = request.route if self.route_matters else ""
        self.running -= 1
        return make_result(f"{request.prompt} {request.seed} {crowd} {route}", seed=request.seed or 0)


async def check(engine: Engine, fleet: Fleet) -> Report:
    """Runs the check without showing progress."""
    async with AsyncClient(MockTransport(engine, fleet)) as client:
        return await check_fleet(client, PLAN, lambda name, count, done: None)


async def test_function_of_the_request_is_identical_everywhere() -> None:
    """Seven runs beside the reference, all requests identical, and really at once."""
    engine = Engine()
    report = await check(engine, make_fleet(*WHOLE, *APART))
    assert report.is_identical
    assert report.reference == "colocated, alone"
    assert len(report.comparisons) == 7
    assert engine.most > PLAN.requests


async def test_dependence_on_the_crowd_is_found() -> None:
    """Alone is the reference, so every run in company differs, and those alone do not."""
    report = await check(Engine(crowd_matters=True), make_fleet(*WHOLE, *APART))
    identical = {comparison.name for comparison in report.comparisons if comparison.is_identical}
    assert identical == {"disaggregated, alone"}


async def test_dependence_on_the_deployment_is_found() -> None:
    """Apart differs from colocated, in each of its runs."""
    report = await check(Engine(route_matters=True), make_fleet(*WHOLE, *APART))
    differing = [comparison.name for comparison in report.comparisons if not comparison.is_identical]
    assert differing == [f"disaggregated, {mode}" for mode in ("alone", "batched", "reversed", "crowded")]


async def test_results_stay_with_their_requests_when_the_order_is_reversed() -> None:
    """A mix-up would show as a difference in every request; here in none."""
    report = await check(Engine(), make_fleet(*APART))
    assert report.reference == "disaggregated, alone"
    assert [comparison.identical for comparison in report.comparisons] == [12, 12, 12]


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (make_member(Role.DECODE, InstanceLoad(free_blocks=97)), "decode-1 holds 3 KV blocks"),
        (make_member(Role.PREFILL, InstanceLoad(free_blocks=100, open_handoffs=2)), "2 open handoffs"),
        (make_member(Role.COLOCATED, legs=1), "1 legs at the router"),
        (replace(make_member(Role.COLOCATED), load=None), "does not say what it holds"),
    ],
)
async def test_what_does_not_come_back_is_reported(member: FleetMember, said: str) -> None:
    """After the time that blocks have to come back."""
    report = await check(Engine(), make_fleet(*WHOLE, member))
    assert any(said in leak for leak in report.leaks)


async def test_fleet_without_a_route_is_refused() -> None:
    """Prefill alone can run nothing."""
    with pytest.raises(SetupError, match="neither a colocated instance nor both"):
        await check(Engine(), make_fleet(APART[0]))


def test_standard_fleet_takes_the_colocated_route() -> None:
    """So the control is the same check."""
    assert routes_of(make_fleet(make_member(Role.STANDARD))) == (Route.COLOCATED,)
