"""`corun-pd verify`: does the contract hold on this machine, and would the check see it if it did not?"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import Progress, TaskID

from corun_pd.bench.determinism import Plan, Report, check_fleet
from corun_pd.bench.shapes import SHAPES
from corun_pd.cli.report import as_json, as_table
from corun_pd.cli.verify_operators import DIFFERENT, UNPROVEN, verify_operators
from corun_pd.client import AsyncClient
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, InstanceConfig, load_cluster
from corun_pd.core import Role
from corun_pd.errors import ConfigError

__all__ = ["verify"]


@click.command()
@click.option("--router", metavar="HOST:PORT", help="A running cluster's router.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A cluster file: its cluster is started, unless --router names one, and its standard engine.",
)
@click.option("--prompts", type=click.IntRange(2), default=32, show_default=True, help="How many requests.")
@click.option("--max-tokens", type=click.IntRange(1), default=16, show_default=True, help="Tokens of each.")
@click.option("--no-control", is_flag=True, help="Leave the negative control out.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the outcome here as well.")
@click.option("--operators", is_flag=True, help="Check the kernels of a model's step instead.")
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="Whose widths, with --operators.")
@click.option("--shape", type=click.Choice(sorted(SHAPES)), help="A shape instead of --model.")
@click.option("--layers", type=click.IntRange(1), help="Fewer layers than the shape has.")
@click.option(
    "--mode", type=click.Choice(["isolated", "packed", "hybrid"]), default="packed", show_default=True
)
@click.option("--slots", type=click.IntRange(1), default=256, show_default=True, help="N.")
@click.option("--chunk-tokens", type=int, default=2048, show_default=True, help="C of isolated, T of packed.")
@click.option("--block-tokens", type=click.IntRange(1), default=16, show_default=True)
@click.option(
    "--tensor-parallel", type=click.IntRange(1), default=1, show_default=True, help="Ranks, with --operators."
)
@click.option("--timed", default="1,8,N", show_default=True, help="Row counts that are timed; N is --slots.")
def verify(
    router: str | None,
    config_file: Path | None,
    prompts: int,
    max_tokens: int,
    no_control: bool,
    json_file: Path | None,
    operators: bool,
    **shapes: Any,
) -> None:
    """Does the contract hold on this machine?

    Runs requests alone, batched, reversed and crowded, apart and colocated, and compares every bit.

    The negative control runs them on an engine with the contract's mechanisms off, which must give other
    bits somewhere; it needs --config.

    Exit codes: 0 all is identical; 1 something differs, or KV blocks did not come back; 2 the check
    could not run; 3 all is identical, but so is the control, so that this proves nothing here. The same
    codes hold with --operators, of the kernels that the contract uses.
    """
    if operators:
        if router is not None or config_file is not None:
            raise click.UsageError("--operators takes --model or --shape, not --router or --config")
        sys.exit(verify_operators(shapes, json_file, Console()))
    if shapes["model"] is not None or shapes["shape"] is not None:
        raise click.UsageError("--model and --shape belong to --operators")
    if router is None and config_file is None:
        raise click.UsageError("give --router, --config or both")
    config = None if config_file is None else load_cluster(config_file)
    plan = Plan(requests=prompts, max_tokens=max_tokens)
    console = Console()
    report, control = asyncio.run(_verify(router, config, plan, not no_control, console))
    for one in (report, control):
        if one is not None:
            console.print(as_table(one, is_control=one is control))
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(as_json(report, control), option=orjson.OPT_INDENT_2))
    sys.exit(_verdict(report, control, console))


async def _verify(
    router: str | None, config: ClusterConfig | None, plan: Plan, with_control: bool, console: Console
) -> tuple[Report, Report | None]:
    if router is not None:
        report = await _check(router, plan, console, "")
    else:
        assert config is not None
        console.print("starting the cluster")
        async with LocalCluster(_checked(config)) as cluster:
            report = await _check(cluster.router_address, plan, console, "")
    if not with_control or config is None:
        return report, None
    console.print("starting the control")
    async with LocalCluster(_control(config)) as cluster:
        return report, await _check(cluster.router_address, plan, console, "control: ")


async def _check(router: str, plan: Plan, console: Console, prefix: str) -> Report:
    tasks: dict[str, TaskID] = {}
    with Progress(console=console, transient=True) as bar:

        def show(name: str, count: int, done: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(prefix + name, total=count)
            bar.advance(tasks[name], done)

        async with AsyncClient(router) as client:
            return await check_fleet(client, plan, show)


def _checked(config: ClusterConfig) -> ClusterConfig:
    """The cluster on a free port, with a colocated instance: the reference."""
    roles = {instance.role for instance in config.instances}
    if Role.STANDARD in roles:
        raise ConfigError("instances: a standard instance is outside the contract; verify starts its own")
    reference = () if Role.COLOCATED in roles else (InstanceConfig(role=Role.COLOCATED),)
    return _on_free_port(config, (*config.instances, *reference), config.log_dir)


def _control(config: ClusterConfig) -> ClusterConfig:
    """One standard instance of the same engine."""
    return _on_free_port(config, (InstanceConfig(role=Role.STANDARD),), config.log_dir / "control")


def _on_free_port(
    config: ClusterConfig, instances: tuple[InstanceConfig, ...], log_dir: Path
) -> ClusterConfig:
    router = config.router.model_copy(update={"port": 0})
    return config.model_copy(update={"router": router, "instances": instances, "log_dir": log_dir})


def _verdict(report: Report, control: Report | None, console: Console) -> int:
    for leak in report.leaks:
        console.print(f"[red]{leak}")
    if not report.is_identical or report.leaks:
        console.print("[red]the contract does not hold")
        return DIFFERENT
    if control is None:
        console.print("identical; without the control this shows that nothing differed, not that it could")
        return 0
    if control.is_identical:
        console.print("[yellow]identical, but so is the control: this proves nothing here")
        return UNPROVEN
    console.print("[green]identical, and the control is not: the contract holds here")
    return 0
