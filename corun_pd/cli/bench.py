"""`corun-pd bench`: experiments on engines, without router or services."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from corun_pd.bench.experiments import EXPERIMENTS, Plan, Row
from corun_pd.bench.modes import ABLATION, mode_named, modes_named
from corun_pd.bench.plots import plot_file
from corun_pd.bench.report import write_result
from corun_pd.bench.session import Session, Variant
from corun_pd.bench.tables import read_result, short_lines, show
from corun_pd.bench.transfer import measure_transfer
from corun_pd.bench.workloads import parse_workloads
from corun_pd.cli.bench_determinism import determinism
from corun_pd.cli.bench_fleet import fleet
from corun_pd.cli.bench_options import (
    common,
    devices,
    engine_config,
    lengths_of,
    model_of,
    numbers_of,
    plan_options,
)
from corun_pd.cli.bench_planner import planner
from corun_pd.cli.bench_planner_speed import planner_speed
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import ConfigError, SetupError

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measures engines: does the contract hold, and what does it cost?"""


bench.add_command(determinism)
bench.add_command(fleet)
bench.add_command(planner)
bench.add_command(planner_speed)


def _experiment(name: str, modes: str) -> click.Command:
    @common(modes)
    @plan_options("1024/128" if name == "ablation" else "burstgpt")
    @click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
    def command(**settings: Any) -> None:
        _run([name], {name: settings["out"]}, settings)

    return click.command(name, help=EXPERIMENTS[name].__doc__)(command)


for _name in EXPERIMENTS:
    _modes = ";".join(ABLATION) if _name == "ablation" else "standard,batch-invariant,isolated,packed,hybrid"
    bench.add_command(_experiment(_name, _modes))


@bench.command("all")
@common("standard,batch-invariant,isolated,packed,hybrid")
@plan_options()
@click.option(
    "--experiments",
    default="throughput,timeline,latency,concurrency,padding,decode-step",
    show_default=True,
    help="Names, with commas; they share the engines.",
)
@click.option(
    "--out-dir", type=click.Path(path_type=Path), required=True, help="Folder of the results' JSON."
)
@click.option("--label", default="", help="Goes into the files' names.")
def every(**settings: Any) -> None:
    """Several experiments on one engine process a mode."""
    names = list(dict.fromkeys(name.strip() for name in settings["experiments"].split(",")))
    for name in names:
        if name not in EXPERIMENTS:
            raise ConfigError(f"experiment {name!r}: not one of {', '.join(EXPERIMENTS)}")
    label = f"-{settings['label']}" if settings["label"] else ""
    _run(names, {name: settings["out_dir"] / f"{name}{label}.json" for name in names}, settings)


def _run(names: list[str], outs: dict[str, Path], settings: dict[str, Any]) -> None:
    session = Session(
        model=model_of(settings),
        plan=_plan(names, settings),
        outs=outs,
        settings=settings,
        limit_s=settings["mode_limit"],
        say=_say(),
        environment=devices(settings, 1)[0],
    )
    sizes = numbers_of("--sizes", settings["sizes"]) if settings["sizes"] else [settings["slots"]]
    configs = [engine_config(settings | {"slots": size}) for size in sizes]
    modes = modes_named(settings["modes"])
    variants = [Variant(mode, mode.apply(config, settings["chunk"])) for mode in modes for config in configs]
    went_well = session.run(variants)
    for name in names:
        show(name, session.rows.get(name, []))
        if settings["plot"]:
            _plot(outs[name])
    raise SystemExit(0 if went_well else 1)


def _plot(result: Path) -> None:
    try:
        plot_file(result, result.with_suffix(".svg"))
    except SetupError as error:
        click.echo(f"no plot: {error}", err=True)


def _plan(names: Sequence[str], settings: dict[str, Any]) -> Plan:
    """Workloads of experiments that are not run need not fit the model."""
    limit, files = settings["max_model_tokens"], lengths_of(settings)
    count = settings["requests"]
    (loop,) = parse_workloads(settings["workload"], count, limit, files)
    (ragged,) = parse_workloads("burstgpt", count, limit, files)
    takes_all = not {"throughput", "padding"}.isdisjoint(names)
    return Plan(
        workloads=parse_workloads(settings["workloads"], count, limit, files) if takes_all else (),
        loop=loop,
        ragged=ragged,
        rates_per_s=_rates(settings["rates"]),
        in_flight=numbers_of("--in-flight", settings["in_flight"]),
        kv_tokens=numbers_of("--kv-tokens", settings["kv_tokens"]),
        repeats=settings["repeats"],
        bits=settings["bits"],
    )


def _rates(text: str) -> list[float]:
    """Rates above zero."""
    try:
        rates = [float(rate) for rate in text.split(",") if rate.strip()]
    except ValueError:
        raise ConfigError(f"--rates: {text!r} is not numbers with commas") from None
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f"--rates: {text!r} is not all above zero")
    return rates


def _say() -> Callable[[str], None]:
    began_s = time.monotonic()
    return lambda text: click.echo(f"[{time.monotonic() - began_s:6.1f} s] {text}", err=True)


@bench.command()
@common("packed", memory=0.42, max_model_tokens=33024)
@click.option(
    "--lengths", default="1024,8192,32768", show_default=True, help="Prompts in tokens, with commas."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
def transfer(**settings: Any) -> None:
    """KV caches over NIXL between two engines of this machine: GB/s, and the share hidden behind compute.

    With --gpus 0,1 prefill is on GPU 0 and decode on GPU 1; --memory is then each one's own.
    """
    mode = mode_named(settings["modes"])
    config = mode.apply(engine_config(settings), settings["chunk"])
    say, out, rows = _say(), settings["out"], []

    def add(row: Row, info: EngineInfo) -> None:
        rows.append({"mode": mode.name} | row)
        engines = [{"mode": mode.name, "kv_blocks": info.blocks, "fingerprint": info.contract.fingerprint}]
        write_result(out, "transfer", settings, rows, engines=engines)
        say(f"{row['prompt_tokens']} tokens pulled")

    lengths = numbers_of("--lengths", settings["lengths"])
    first, second = devices(settings, 2)
    measure_transfer(model_of(settings), config, lengths, out.with_suffix(""), add, (first, second))
    show("transfer", rows)
    if settings["plot"]:
        _plot(out)


@bench.command("show")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--short", is_flag=True, help="A line for each row, its first figures alone.")
def show_results(results: tuple[Path, ...], short: bool) -> None:
    """Prints the tables of results that were written before."""
    for result in results:
        if short:
            click.echo("\n".join(short_lines(*read_result(result))))
        else:
            show(*read_result(result))
