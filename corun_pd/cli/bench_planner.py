"""`corun-pd bench planner`: what the planner predicts against what a cluster on this machine does."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from corun_pd.bench.cluster_times import Answer, SpeedProbe, ask, measure_cluster, measure_router
from corun_pd.bench.quiet import quietly
from corun_pd.bench.report import print_table, write_result
from corun_pd.bench.workloads import EngineRequest, make_engine_requests
from corun_pd.cli.cluster_profile import instances, machine, make_profile, router_cost, show_profile
from corun_pd.cli.layouts import counts_of
from corun_pd.cli.plan_inputs import parse_numbers
from corun_pd.client import AsyncClient
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig
from corun_pd.core import Role
from corun_pd.planner.accuracy import METRICS, Comparison, Figures, Summary
from corun_pd.planner.cost import DecodePoint, Profile, TransferCost
from corun_pd.planner.held_out import Workload, held_out
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import ClosedLoop, Online
from corun_pd.planner.outcome import Percentiles
from corun_pd.planner.prefill_cost import IsolatedCost
from corun_pd.planner.profiles import open_profile
from corun_pd.planner.simulator import simulate
from corun_pd.planner.traces import TraceRequest

__all__ = ["planner"]

#: What fake engines take, in seconds; long against what the processes around them do.
FAKE: Final = {"prefill_s_per_token": 2e-4, "decode_step_s": 0.02, "transfer_s": 0.002}


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), required=True, help="A model folder.")
@click.option(
    "--profile",
    "profile_name",
    help="The engines' cost profile, by file or name; else measured on the cluster.",
)
@click.option("--fake", is_flag=True, help="Fake engines in real time, whose costs are given.")
@click.option("--layouts", default="1C,1P+1D", show_default=True, help="As 1C,1P+1D,2P+1D.")
@click.option("--slots", type=int, default=8, show_default=True)
@click.option("--mode", type=click.Choice(["isolated", "packed"]), default="packed", show_default=True)
@click.option("--chunk", type=int, default=128, show_default=True, help="C of isolated, T of packed.")
@click.option("--block-tokens", type=int, default=32, show_default=True)
@click.option("--kv-cache-bytes", type=int, default=1 << 26, show_default=True)
@click.option("--longest", type=click.IntRange(min=64), default=512, show_default=True, help="Tokens.")
@click.option("--requests", type=click.IntRange(min=8), default=40, show_default=True, help="A workload.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Medians of.")
@click.option("--cores", help="A core for each engine in turn, prefill first, as 0,1.")
@click.option(
    "--per-device",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Engines that share a device, such as the threads of a core; where there are so many.",
)
@click.option("--only", help="One workload, by name.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def planner(**settings: Any) -> None:
    """Runs workloads on a cluster of this machine and compares with what a plan says of them."""
    given: Profile | None = None
    if settings["fake"]:
        if settings["profile_name"] is not None:
            raise click.UsageError("--profile is of real engines; --fake ones have costs that are given")
        given = _fake_profile(settings["slots"])
    elif settings["profile_name"] is not None:
        given = open_profile(settings["profile_name"])
    rows: list[Comparison] = []
    profiles: dict[str, Profile] = {}
    for text in settings["layouts"].split(","):
        with _pinned(settings) as cores:
            found, profiles[text] = asyncio.run(_measure(counts_of(text), given, settings, cores))
            rows += found
    _write(rows, profiles, settings)


async def _measure(
    counts: dict[Role, int], profile: Profile | None, settings: dict[str, Any], cores: Sequence[int]
) -> tuple[list[Comparison], Profile]:
    """Starts the cluster and runs every workload on it; measures its costs where they are not given."""
    with tempfile.TemporaryDirectory() as logs:
        async with (
            LocalCluster(_cluster(counts, settings, cores, Path(logs))) as cluster,
            AsyncClient(cluster.router_address) as client,
        ):
            infos = await instances(client)
            layout = Layout(
                slots=infos[0].slots,
                blocks=min(info.blocks for info in infos),
                block_tokens=infos[0].block_tokens,
                per_device=settings["per_device"] if len(infos) > 1 else 1,
                **{role.value: count for role, count in counts.items()},
            )
            probe: SpeedProbe | None = None
            if profile is None:
                probe = SpeedProbe(client, infos, settings["longest"])
                times = await measure_cluster(client, settings["longest"])
                profile = make_profile(infos, times, machine(settings))
                show_profile(profile)
            elif settings["fake"]:
                router = router_cost(*await measure_router(client), profile.prefill)
                profile = profile.model_copy(update={"router": router})
            rows: list[Comparison] = []
            for workload in held_out(layout, profile, settings["longest"], settings["requests"]):
                if settings["only"] in (None, workload.name):
                    words = infos[0].vocabulary
                    rows.append(await _compare(client, probe, workload, layout, profile, settings, words))
                    _show(rows[-1:])
    return rows, profile


async def _compare(
    client: AsyncClient,
    probe: SpeedProbe | None,
    workload: Workload,
    layout: Layout,
    profile: Profile,
    settings: dict[str, Any],
    vocabulary: int,
) -> Comparison:
    """Runs the workload a few times and simulates it with the costs of that time."""
    requests = make_engine_requests(
        [(one.prompt_tokens, one.output_tokens) for one in workload.requests], vocabulary
    )
    runs: list[Figures] = []
    speeds: list[tuple[float, float]] = []
    foreign_cores = 0.0
    for _ in range(settings["repeats"]):
        if probe is not None:
            speeds.append(_slowness(profile, *await probe.measure()))
        run, cores = await quietly(lambda: _run(client, workload, requests))
        runs.append(run)
        foreign_cores = max(foreign_cores, cores)
    if probe is not None:
        speeds.append(_slowness(profile, *await probe.measure()))
    prefill, decode = (median(speed) for speed in zip(*speeds, strict=True)) if speeds else (1.0, 1.0)
    now = profile.scaled(prefill=prefill, decode=decode)
    return Comparison(
        workload.name,
        layout.words,
        "fake" if settings["fake"] else "vLLM",
        Figures.median_of(runs),
        Figures.predicted(simulate(workload.requests, layout, now, workload.load)),
        spread=Figures.spread_of(runs),
        foreign_cores=foreign_cores,
        slowness=(prefill, decode),
    )


def _slowness(
    profile: Profile, prompts: tuple[int, int, float], decode: tuple[int, float]
) -> tuple[float, float]:
    """How many times as long as in the profile a prefill and a decode step of a probe took."""
    tokens, _, prefill_s = prompts
    kv, decode_s = decode
    (point,) = profile.decode
    step_s = point.base_s + point.slots * point.row_s + kv * point.kv_token_s
    return prefill_s / profile.prefill.alone_s(tokens), decode_s / step_s


async def _run(client: AsyncClient, workload: Workload, requests: Sequence[EngineRequest]) -> Figures:
    """One run of a workload, as its clients see it. Samples of one prompt are one request."""
    load = workload.load
    gate = asyncio.Semaphore(load.in_flight if isinstance(load, ClosedLoop) else len(requests))
    start = time.perf_counter()

    async def one(index: int, samples: int) -> list[Answer]:
        if isinstance(load, Online):
            arrival_s = (workload.requests[index].arrival_s or 0.0) / load.speed
            await asyncio.sleep(start + arrival_s - time.perf_counter())
        async with gate:
            return await ask(client, requests[index], samples)

    found = await asyncio.gather(*(one(index, samples) for index, samples in _prompts(workload)))
    answers = [answer for one in found for answer in one]
    gaps = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return Figures.of(
        max(answer.token_s[-1] for answer in answers) - start,
        Percentiles.of(answer.ttft_s for answer in answers),
        Percentiles.of(gaps),
    )


def _prompt_of(numbered: tuple[int, TraceRequest]) -> tuple[bool, int]:
    """Alike for samples of one prompt, and for no others."""
    index, request = numbered
    return (False, index) if request.group is None else (True, request.group)


def _prompts(workload: Workload) -> Iterator[tuple[int, int]]:
    """Where each prompt's samples start among the requests, and how many there are."""
    numbered = enumerate(workload.requests)
    for _, samples in groupby(numbered, key=_prompt_of):
        first, *others = samples
        yield first[0], 1 + len(others)


def _cluster(
    counts: dict[Role, int], settings: dict[str, Any], cores: Sequence[int], logs: Path
) -> ClusterConfig:
    """One engine for each instance, on the next core."""
    turn = iter(cores)
    instances: list[dict[str, Any]] = []
    for role, count in counts.items():
        for _ in range(count):
            core = next(turn, None)
            instances.append({"role": role, "cores": None if core is None else (core,)})
    prefill = {"mode": settings["mode"], "chunk_tokens": settings["chunk"]}
    engine = {
        "kind": "fake" if settings["fake"] else "vllm",
        "fake": FAKE,
        "slots": settings["slots"],
        "prefill": prefill,
        "block_tokens": settings["block_tokens"],
        "kv_cache_bytes": settings["kv_cache_bytes"],
        "max_model_tokens": 2 * settings["longest"],
    }
    return ClusterConfig.model_validate(
        {
            "model": settings["model"],
            "engine": engine,
            "router": {"port": 0},
            "instances": instances,
            "log_dir": logs,
        }
    )


def _fake_profile(slots: int) -> Profile:
    """What the fake engine is told to take."""
    token_s = FAKE["prefill_s_per_token"]
    return Profile(
        machine={"engine": "fake"},
        versions={},
        fingerprint="fake",
        prefill=IsolatedCost(chunk_tokens=1 << 20, prompts=((1, token_s), (1 << 20, token_s * (1 << 20)))),
        decode=(DecodePoint(slots=slots, base_s=FAKE["decode_step_s"]),),
        kv_bytes_per_token=1,
        transfer=TransferCost(latency_s=FAKE["transfer_s"], bytes_per_s=1e13),
        start_up_s=0.0,
    )


@contextmanager
def _pinned(settings: dict[str, Any]) -> Iterator[Sequence[int]]:
    """Keeps this process, and the router that it starts, off the first engine's core where it can."""
    if settings["cores"] is None:
        yield ()
        return
    cores = parse_numbers("--cores", settings["cores"])
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, before - {cores[0]} or before)
        yield cores
    finally:
        os.sched_setaffinity(0, before)


def _show(rows: Sequence[Comparison]) -> None:
    for row in rows:
        errors = ", ".join(f"{metric} {row.error(metric):+.1%}" for metric in METRICS)
        click.echo(
            f"{row.workload} on {row.layout}: {row.measured.seconds['makespan']:.2f} s "
            f"(runs {row.spread.seconds['makespan']:.1%} apart, others used {row.foreign_cores:.2f} cores, "
            f"steps x{row.slowness[0]:.2f} and x{row.slowness[1]:.2f}); "
            f"{errors}"
        )


def _write(rows: Sequence[Comparison], profiles: dict[str, Profile], settings: dict[str, Any]) -> None:
    """The result's JSON and a table. The profile of each layout is in it."""
    table = [
        {
            "workload": row.workload,
            "layout": row.layout,
            "engine": row.engine,
            "measured_s": dict(row.measured.seconds),
            "predicted_s": dict(row.predicted.seconds),
            "error_ratio": {metric: row.error(metric) for metric in METRICS},
            "spread_ratio": dict(row.spread.seconds),
            "foreign_cores": row.foreign_cores,
            "slowness": dict(zip(("prefill", "decode"), row.slowness, strict=True)),
        }
        for row in rows
    ]
    engines = [{"layout": text, "profile": one.model_dump(mode="json")} for text, one in profiles.items()]
    write_result(settings["out"], "planner", settings, table, engines=engines)
    print_table(
        "predicted against measured",
        ("workload", "layout", "engine", *METRICS),
        [(r.workload, r.layout, r.engine, *(f"{r.error(m):+.1%}" for m in METRICS)) for r in rows],
    )
    for line in Summary.of(rows):
        click.echo(f"{line.metric}: median error {line.median:.1%}, worst {line.worst:.1%}")
