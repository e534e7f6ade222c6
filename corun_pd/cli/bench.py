"""`corun-pd bench`: experiments on engines, without router or services."""

import time
from pathlib import Path
from typing import Any

import click

from corun_pd.bench.experiments import EXPERIMENTS, Plan
from corun_pd.bench.modes import ABLATION, mode_named, modes_named
from corun_pd.bench.plots import plot_file
from corun_pd.bench.report import print_table, write_result
from corun_pd.bench.session import Session, Variant
from corun_pd.bench.tables import show
from corun_pd.bench.transfer import measure_transfer
from corun_pd.bench.workloads import parse_workloads
from corun_pd.cli.bench_determinism import determinism
from corun_pd.cli.bench_options import common, engine_config, lengths_of, model_of, plan_options
from corun_pd.errors import ConfigError, SetupError

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measures engines: does the contract hold, and what does it cost?"""


bench.add_command(determinism)


def _experiment(name: str, modes: str) -> click.Command:
    @common(modes)
    @plan_options
    @click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
    def command(**settings: Any) -> None:
        _run([name], {name: settings["out"]}, settings)

    return click.command(name, help=EXPERIMENTS[name].__doc__)(command)


for _name in EXPERIMENTS:
    _modes = ";".join(ABLATION) if _name == "ablation" else "standard,batch-invariant,isolated,packed,hybrid"
    bench.add_command(_experiment(_name, _modes))


@bench.command("all")
@common("standard,batch-invariant,isolated,packed,hybrid")
@plan_options
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
    names = [name.strip() for name in settings["experiments"].split(",")]
    for name in names:
        if name not in EXPERIMENTS:
            raise ConfigError(f"experiment {name!r}: not one of {', '.join(EXPERIMENTS)}")
    label = f"-{settings['label']}" if settings["label"] else ""
    _run(names, {name: settings["out_dir"] / f"{name}{label}.json" for name in names}, settings)


def _run(names: list[str], outs: dict[str, Path], settings: dict[str, Any]) -> None:
    config, chunk = engine_config(settings), settings["chunk"]
    session = Session(
        model=model_of(settings),
        plan=_plan(settings),
        outs=outs,
        settings=settings,
        limit_s=settings["mode_limit"],
        say=_say(),
    )
    variants = [Variant(mode, mode.apply(config, chunk)) for mode in modes_named(settings["modes"])]
    if settings["sizes"]:
        sizes = [int(size) for size in settings["sizes"].split(",")]
        variants = [
            Variant(one.mode, one.config.model_copy(update={"slots": size}))
            for one in variants
            for size in sizes
        ]
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


def _plan(settings: dict[str, Any]) -> Plan:
    limit, files = settings["max_model_tokens"], lengths_of(settings)
    count = settings["requests"]
    (loop,) = parse_workloads(settings["workload"], count, limit, files)
    (ragged,) = parse_workloads("burstgpt", count, limit, files)
    return Plan(
        workloads=parse_workloads(settings["workloads"], count, limit, files),
        loop=loop,
        ragged=ragged,
        rates_per_s=[float(rate) for rate in settings["rates"].split(",") if rate],
        in_flight=[int(number) for number in settings["in_flight"].split(",")],
        kv_tokens=[int(number) for number in settings["kv_tokens"].split(",")],
        repeats=settings["repeats"],
        bits=settings["bits"],
    )


def _say() -> Any:
    began_s = time.monotonic()
    return lambda text: click.echo(f"[{time.monotonic() - began_s:6.1f} s] {text}", err=True)


@bench.command()
@common("packed")
@click.option(
    "--lengths", default="1024,8192,32768", show_default=True, help="Prompts in tokens, with commas."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
def transfer(**settings: Any) -> None:
    """KV caches over NIXL between two engines of this machine: GB/s, and the share hidden behind compute."""
    lengths = [int(length) for length in settings["lengths"].split(",")]
    mode = mode_named(settings["modes"])
    config = mode.apply(engine_config(settings), settings["chunk"])
    model, logs = model_of(settings), settings["out"].parent
    rows, info = measure_transfer(model, config, lengths, logs)
    engines = [{"mode": mode.name, "kv_blocks": info.blocks, "fingerprint": info.contract.fingerprint}]
    rows = [{"mode": mode.name} | row for row in rows]
    write_result(settings["out"], "transfer", settings, rows, engines=engines)
    columns = (
        "prompt tokens",
        "MB",
        "GB/s",
        "pull ms",
        "to first decode token ms",
        "beside rows ms",
        "hidden %",
    )
    keys = (
        ("prompt_tokens", 1),
        ("kv_bytes", 1e-6),
        ("bytes_per_s", 1e-9),
        ("pull_s", 1e3),
        ("to_first_decode_token_s", 1e3),
        ("beside_pull_s", 1e3),
        ("hidden_ratio", 100),
    )
    cells = [["" if row.get(key) is None else row[key] * by for key, by in keys] for row in rows]  # type: ignore[operator]
    print_table("transfer", columns, cells)
    if settings["plot"]:
        _plot(settings["out"])
