"""`corun-pd bench fleet`: one workload on clusters of several layouts, behind their routers."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from corun_pd.bench.fleet import run_fleet
from corun_pd.bench.modes import Mode, mode_named, modes_named
from corun_pd.bench.report import write_result
from corun_pd.bench.shapes import write_tokenizer
from corun_pd.bench.tables import show
from corun_pd.bench.workloads import Workload, make_engine_requests, parse_workloads
from corun_pd.cli.bench_options import common, engine_config, gpus_of, lengths_of, model_of
from corun_pd.cli.layouts import counts_of
from corun_pd.client import AsyncClient
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, EngineConfig, InstanceConfig, RouterConfig
from corun_pd.core import Role
from corun_pd.errors import CorunError

__all__ = ["fleet"]

Row = dict[str, object]

#: Short requests that are run first: the first step of each kind, and the first pull, are slow.
WARM_UP: Final = ((64, 8),) * 16


@click.command()
@common("packed")
@click.option(
    "--layouts", default="1P+1D,2C,2S", show_default=True, help="Prefill, decode, colocated, standard."
)
@click.option("--workloads", default="256/64,1024/128", show_default=True, help="NAME[:COUNT], with commas.")
@click.option("--requests", type=click.IntRange(1), default=300, show_default=True)
@click.option(
    "--in-flight", type=click.IntRange(1), help="At most so many at a time, instead of all at once."
)
@click.option("--burstgpt", type=click.Path(path_type=Path, exists=True), help="BurstGPT's CSV.")
@click.option("--blazedit", type=click.Path(path_type=Path, exists=True), help="A CSV like BurstGPT's.")
@click.option("--layout-limit", type=float, default=300.0, show_default=True, help="Seconds for each layout.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
def fleet(**settings: Any) -> None:
    """Output tokens a second of clusters of this machine: prefill and decode apart, colocated, standard.

    Layouts of one sum use as many GPUs each; --gpus deals them out to the instances, prefill first.
    Standard layouts run vLLM's own scheduling, once, whatever --modes says. Exit code 1 when one fails.
    """
    layouts = [(text.strip(), counts_of(text)) for text in settings["layouts"].split(",")]
    for _, counts in layouts:
        gpus_of(settings, sum(counts.values()))  # What is wrong is said before anything starts.
    modes, files = modes_named(settings["modes"]), lengths_of(settings)
    limit = settings["max_model_tokens"]
    workloads = parse_workloads(settings["workloads"], settings["requests"], limit, files)
    model = model_of(settings)
    if settings["shape"]:
        write_tokenizer(model)
    plan = [
        (mode, name, counts)
        for name, counts in layouts
        for mode in ([mode_named("standard")] if Role.STANDARD in counts else modes)
    ]
    bench = _Bench(settings, model, workloads)
    for mode, name, counts in plan:
        try:
            asyncio.run(bench.measure(mode, name, counts))
        except (CorunError, TimeoutError) as error:
            text = str(error) or f"not done within {settings['layout_limit']:g} s"
            bench.add({"mode": mode.name, "layout": name, "workload": "", "error": text})
            click.echo(f"{name}: {text}", err=True)
    show("fleet", bench.rows)
    raise SystemExit(any("error" in row for row in bench.rows))


class _Bench:
    """Rows are written as they come."""

    def __init__(self, settings: dict[str, Any], model: Path, workloads: Sequence[Workload]) -> None:
        self.settings, self.model, self.workloads = settings, model, workloads
        self.rows: list[Row] = []

    async def measure(self, mode: Mode, name: str, counts: Mapping[Role, int]) -> None:
        """Starts a layout and runs every workload on it."""
        config = mode.apply(engine_config(self.settings), self.settings["chunk"])
        began_s = time.monotonic()
        async with asyncio.timeout(self.settings["layout_limit"]):
            async with (
                LocalCluster(self._cluster(config, counts, f"{mode.name}-{name}")) as cluster,
                AsyncClient(cluster.router_address) as client,
            ):
                start_s = time.monotonic() - began_s
                fingerprint, members = await self._facts(client)
                await run_fleet(client, make_engine_requests(WARM_UP, members, seed=99))
                for workload in self.workloads:
                    requests = make_engine_requests(workload.lengths, members)
                    row = await run_fleet(client, requests, self.settings["in_flight"])
                    head = {"mode": mode.name, "layout": name, "workload": workload.name}
                    self.add(head | row | {"start_s": start_s, "fingerprint": fingerprint})
                    click.echo(f"{mode.name}, {name}, {workload.name}: {row['wall_s']:.1f} s", err=True)

    async def _facts(self, client: AsyncClient) -> tuple[str | None, int]:
        """The fleet's fingerprint and vocabulary."""
        found = await client.describe()
        return found.fingerprint, found.members[0].instance.vocabulary

    def _cluster(self, config: EngineConfig, counts: Mapping[Role, int], name: str) -> ClusterConfig:
        roles = [role for role, count in counts.items() for _ in range(count)]
        places = zip(roles, gpus_of(self.settings, len(roles)), strict=True)
        return ClusterConfig(
            model=self.model,
            engine=config,
            router=RouterConfig(port=0),
            instances=tuple(InstanceConfig(role=role, gpus=gpus) for role, gpus in places),
            log_dir=self.settings["out"].with_suffix("") / name,
        )

    def add(self, row: Row) -> None:
        """Takes a row."""
        self.rows.append(row)
        write_result(self.settings["out"], "fleet", self.settings, self.rows)
