"""The costs of a running cluster, measured through its router: fake engines, whose costs are known."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corun_pd.bench import cluster_times
from corun_pd.bench.cluster_times import measure_cluster
from corun_pd.bench.quiet import foreign_cores, quietly
from corun_pd.cli.cluster_profile import make_profile
from corun_pd.cli.main import cli
from corun_pd.client import AsyncClient
from corun_pd.planner.cost import load_profile

pytestmark = pytest.mark.timeout(60)

COSTS = {"prefill_s_per_token": 2e-4, "decode_step_s": 0.004, "transfer_s": 0.002}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps of each kind, once, whatever else runs on this machine."""
    sizes = {"PREFILL_STEPS": 3, "ANSWER": 12, "WINDOW": 4, "REFUSALS": 6, "BESIDE_STEPS": 3, "BLOCKERS": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(cluster_times, name, value)
    monkeypatch.setattr("corun_pd.bench.quiet.TRIES", 1)


@pytest.mark.parametrize("roles", [{}, {"prefill": 0, "decode": 0, "colocated": 1}])
async def test_costs_of_a_cluster_are_found_through_its_router(
    make_cluster: Any, roles: dict[str, int]
) -> None:
    """Never below what a fake step takes; beside others only where there are others."""
    async with (
        make_cluster(slots=2, max_model_tokens=512, **roles, **COSTS) as cluster,
        AsyncClient(cluster.address) as client,
    ):
        times = await measure_cluster(client, 64)
        infos = [node.info for node in cluster.nodes]
    for tokens, _, seconds in times.prompts:
        assert 0.5 * tokens * 2e-4 < seconds < 0.5
    for steps in (times.decode, times.one_row):
        assert 0.003 < max(seconds for _, seconds in steps) < 0.5
    assert min(times.ttft_s) > 16 * 2e-4
    assert 0 < times.refusal_s < 1
    assert bool(times.transfers) == bool(times.beside_prefill) == bool(times.beside_decode) == (not roles)
    assert all(seconds > 0.004 for _, seconds, _ in times.transfers)
    profile = make_profile(infos, times, {})
    assert profile.fingerprint == infos[0].fingerprint
    assert (profile.beside is None) == bool(roles)
    assert type(profile).model_validate_json(profile.to_json()) == profile


async def test_cluster_that_runs_is_profiled_and_held_against_a_plan(
    make_cluster: Any, tmp_path: Path
) -> None:
    """`profile --router` writes what `plan` takes, and `plan --router` compares KV blocks."""
    out = tmp_path / "profile.json"
    trace = ["--format", "synthetic", "--trace", "40/8", "--requests", "10", "--gpus", "2", "--slots", "2"]

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments)

    async with make_cluster(slots=2, max_model_tokens=512, kv_cache_bytes=64 * 16 * 1024, **COSTS) as cluster:
        router = ["--router", cluster.address]
        result = await run("profile", *router, "--longest", "64", "--out", str(out))
        assert result.exit_code == 0, result.output
        assert load_profile(out).router.request_s > 0
        plan = ["plan", "--profile", str(out), *trace, *router, "--kv-blocks"]
        result = await run(*plan, "70")
        assert result.exit_code == 0, result.output
        assert "confirmed: 2 instances have 64 to 64 KV blocks, 70 are planned" in result.output
        result = await run(*plan, "80")
    assert result.exit_code == 2
    assert "started with 64 blocks, 20% below the 80 planned" in result.stderr


async def test_disturbed_measurement_is_repeated_and_the_quietest_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others use 0.3, 0.1 and 0.2 cores of a second each."""
    busy = iter([0.0, 0.3, 0.0, 0.1, 0.0, 0.2])
    clock = iter([0.0, 1.0] * 3)
    monkeypatch.setattr("corun_pd.bench.quiet.TRIES", 3)
    monkeypatch.setattr("corun_pd.bench.quiet._PAUSE_S", 0.0)
    monkeypatch.setattr("corun_pd.bench.quiet._busy_s", lambda: next(busy))
    monkeypatch.setattr("corun_pd.bench.quiet._own_s", lambda: 0.0)
    monkeypatch.setattr("corun_pd.bench.quiet.time.perf_counter", lambda: next(clock))
    tries = iter("abc")

    async def measure() -> str:
        return next(tries)

    assert await quietly(measure) == ("b", pytest.approx(0.1))


def test_own_time_is_not_others() -> None:
    """Two cores for a second, of which 1.5 s are ours."""
    assert foreign_cores((10.0, 4.0, 0.0), (12.0, 5.5, 1.0)) == pytest.approx(0.5)
    assert foreign_cores((10.0, 4.0, 0.0), (11.0, 5.5, 1.0)) == 0.0
