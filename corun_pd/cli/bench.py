"""`corun-pd bench`: experiments on engines, without router or services."""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from corun_pd.bench.bits import Agreement, check_company, check_handover, differences
from corun_pd.bench.modes import Mode, mode_named
from corun_pd.bench.process import EngineProcess, Job, Run
from corun_pd.bench.report import print_table, write_result
from corun_pd.bench.shapes import SHAPES, write_shape
from corun_pd.bench.workloads import FIXED, make_engine_requests, mixed_requests, stand_in
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.errors import CorunError

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measures engines: does the contract hold, and what does it cost?"""


def _common(command: Any) -> Any:
    options = [
        click.option("--model", type=click.Path(path_type=Path, exists=True), help="A model folder."),
        click.option("--shape", type=click.Choice(sorted(SHAPES)), help="A shape with random weights."),
        click.option("--layers", type=int, help="Fewer layers than the shape has."),
        click.option("--modes", default="standard,isolated,packed", show_default=True),
        click.option("--slots", type=int, default=256, show_default=True),
        click.option(
            "--chunk", type=int, default=2048, show_default=True, help="C of isolated, T of packed."
        ),
        click.option("--max-model-tokens", type=int, default=8192, show_default=True),
        click.option("--block-tokens", type=int, default=16, show_default=True),
        click.option("--memory", type=float, default=0.85, show_default=True, help="Share of GPU memory."),
        click.option("--kv-cache-bytes", type=int, help="KV pool, instead of what the memory holds."),
        click.option("--backend", help="Attention backend."),
        click.option("--compile", "compiled", is_flag=True, help="Compile the model."),
        click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _engine(settings: dict[str, Any], memory: float | None = None) -> EngineConfig:
    return EngineConfig(
        weights="random" if settings["shape"] else "files",
        slots=settings["slots"],
        max_model_tokens=settings["max_model_tokens"],
        block_tokens=settings["block_tokens"],
        kv_cache_bytes=settings["kv_cache_bytes"],
        gpu_memory_ratio=memory or settings["memory"],
        attention_backend=settings["backend"],
        compile=settings["compiled"],
    )


def _model(settings: dict[str, Any]) -> Path:
    if (settings["model"] is None) == (settings["shape"] is None):
        raise click.UsageError("give one of --model and --shape")
    if settings["model"] is not None:
        return Path(settings["model"])
    return write_shape(settings["shape"], Path(tempfile.gettempdir(), "corun-pd-shapes"), settings["layers"])


def _modes(settings: dict[str, Any]) -> list[Mode]:
    return [mode_named(name.strip()) for name in settings["modes"].split(",")]


@bench.command()
@_common
@click.option("--requests", type=int, default=300, show_default=True)
@click.option("--output", type=int, default=32, show_default=True, help="Output tokens of each.")
@click.option("--longest", type=int, default=5000, show_default=True, help="The longest prompt.")
@click.option("--alone", type=int, default=24, show_default=True, help="How many also run one at a time.")
@click.option("--restart/--no-restart", default=True, help="Whether a second process runs them too.")
@click.option("--handover/--no-handover", default=True, help="Whether a P/D pair runs them too.")
@click.option("--pair-memory", type=float, default=0.42, show_default=True, help="Memory of each of a pair.")
def determinism(**settings: Any) -> None:
    """The same requests in other company, after a restart and through P/D (paper V-B)."""
    model = _model(settings)
    rows: list[dict[str, object]] = []
    failed = False
    for mode in _modes(settings):
        config = mode.apply(_engine(settings), settings["chunk"])
        try:
            agreements, extra = _determinism_of(model, mode, config, settings)
        except CorunError as error:
            click.echo(f"{mode.name}: {error}", err=True)
            rows.append({"mode": mode.name, "error": str(error)})
            failed = True
            continue
        for row in agreements:
            rows.append({"mode": mode.name, **_as_dict(row)} | extra)
            failed |= row.same_bits < row.requests and mode.role is not Role.STANDARD
        write_result(settings["out"], "determinism", settings, rows)
    columns = ("mode", "run", "requests", "same tokens", "same bits")
    keys = ("mode", "run", "requests", "same_tokens", "same_bits")
    print_table("equal to the batch run", columns, [[r.get(k, "") for k in keys] for r in rows])
    raise SystemExit(1 if failed else 0)


def _determinism_of(
    model: Path, mode: Mode, config: EngineConfig, settings: dict[str, Any]
) -> tuple[list[Agreement], dict[str, object]]:
    logs = Path(settings["out"]).parent
    with EngineProcess(model, mode.role, config, logs / f"{mode.name}.log") as engine:
        info = engine.ready()
        sizes = (settings["chunk"], settings["block_tokens"], info.vocabulary, settings["longest"])
        requests = mixed_requests(settings["requests"], *sizes, settings["output"])
        others = mixed_requests(settings["requests"], *sizes, settings["output"], seed=11)
        agreements, reference = check_company(engine, requests, others, settings["alone"])
    extra: dict[str, object] = {"fingerprint": info.contract.fingerprint}
    if mode.role is Role.STANDARD:
        return agreements, extra
    if settings["restart"]:
        with EngineProcess(model, mode.role, config, logs / f"{mode.name}-again.log") as engine:
            engine.ready()
            agreements.append(differences("restart", reference, engine.run(Job(requests)).records))
    if settings["handover"]:
        pair = mode.apply(_engine(settings, settings["pair_memory"]), settings["chunk"])
        agreement, moved = check_handover(model, pair, requests, reference, logs)
        agreements.append(agreement)
        extra["kv_moved_bytes"] = moved
    return agreements, extra


@bench.command()
@_common
@click.option("--workloads", default="256/64,1024/128", show_default=True, help="Names, with commas.")
@click.option("--requests", type=int, default=300, show_default=True)
@click.option("--repeats", type=int, default=1, show_default=True)
def throughput(**settings: Any) -> None:
    """Output tokens per second, mode against mode in one run (paper Fig. 8), with TTFT and TPOT."""
    model, rows = _model(settings), []
    for mode in _modes(settings):
        config = mode.apply(_engine(settings), settings["chunk"])
        try:
            with EngineProcess(
                model, mode.role, config, settings["out"].parent / f"{mode.name}.log"
            ) as engine:
                info = engine.ready()
                warm = make_engine_requests([(64, 8)] * 16, info.vocabulary, seed=99)
                engine.run(Job(warm))
                for name in settings["workloads"].split(","):
                    lengths = _lengths(name.strip(), settings["requests"])
                    requests = make_engine_requests(lengths, info.vocabulary)
                    runs = [engine.run(Job(requests)) for _ in range(settings["repeats"])]
                    rows.append({"mode": mode.name, "workload": name.strip()} | _figures(runs))
                    write_result(settings["out"], "throughput", settings, rows)
        except CorunError as error:
            click.echo(f"{mode.name}: {error}", err=True)
            rows.append({"mode": mode.name, "workload": "", "error": str(error)})
            write_result(settings["out"], "throughput", settings, rows)
    keys = ("mode", "workload", "output_tokens_per_s", "ttft_p50_s", "tpot_p50_s", "padding_ratio", "steps")
    print_table("throughput", keys, [[r.get(k, "") for k in keys] for r in rows])


def _lengths(name: str, count: int) -> list[tuple[int, int]]:
    return [FIXED[name]] * count if name in FIXED else stand_in(name.removesuffix("-stand-in"), count)


def _figures(runs: Sequence[Run]) -> dict[str, float]:
    """Medians over the runs; percentiles are of the run with the median throughput."""
    run = sorted(runs, key=lambda r: r.tokens_per_s)[len(runs) // 2]
    ttft = sorted(r.first_s - r.submitted_s for r in run.records)
    tpot = sorted(
        (r.last_s - r.first_s) / (len(r.token_ids) - 1) for r in run.records if len(r.token_ids) > 1
    )
    before, after = run.load_before, run.load_after
    rows = after.rows - before.rows
    return {
        "output_tokens_per_s": statistics.median(r.tokens_per_s for r in runs),
        "wall_s": run.wall_s,
        "output_tokens": run.output_tokens,
        "ttft_p50_s": ttft[len(ttft) // 2],
        "ttft_p95_s": ttft[int(len(ttft) * 0.95)],
        "tpot_p50_s": tpot[len(tpot) // 2] if tpot else 0.0,
        "tpot_p95_s": tpot[int(len(tpot) * 0.95)] if tpot else 0.0,
        "padding_ratio": (after.padding_rows - before.padding_rows) / rows if rows else 0.0,
        "steps": after.steps - before.steps,
    }


def _as_dict(row: Agreement) -> dict[str, object]:
    return {name: getattr(row, name) for name in ("run", "requests", "same_tokens", "same_bits")}
