"""`corun-pd profile`: measures the planner's cost model on this machine."""

import asyncio
import datetime
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import click
from pydantic import ValidationError

from corun_pd.bench.report import machine_facts, print_table
from corun_pd.bench.shapes import SHAPES, write_shape
from corun_pd.bench.step_times import Places, StepTimes, measure_steps
from corun_pd.cli.cluster_profile import machine, profile_cluster, show_profile
from corun_pd.cli.plan_inputs import parse_numbers
from corun_pd.client import AsyncClient
from corun_pd.config import EngineConfig, FakeConfig, PrefillConfig, describe_validation
from corun_pd.errors import ConfigError
from corun_pd.planner.cost import Profile, StepCost
from corun_pd.planner.fit import fit_decode, fit_prefill, fit_transfer, rising

__all__ = ["profile"]

#: Prompt lengths that are measured, up to the longest that is asked for.
LENGTHS: Final = tuple(1 << power for power in range(4, 18))


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="A model folder.")
@click.option("--router", help="Measure an idle cluster that runs, through its router, at this address.")
@click.option("--shape", type=click.Choice(sorted(SHAPES)), help="A shape with random weights.")
@click.option("--mode", type=click.Choice(["isolated", "packed"]), default="packed", show_default=True)
@click.option("--chunk", type=int, default=2048, show_default=True, help="C of isolated, T of packed.")
@click.option(
    "--slots", "slots_text", default="256", show_default=True, help="N, as 64,256: a start for each."
)
@click.option(
    "--longest", type=click.IntRange(min=16), default=8192, show_default=True, help="Prompt tokens."
)
@click.option("--block-tokens", type=int, default=16, show_default=True)
@click.option("--memory", type=float, default=0.42, show_default=True, help="GPU memory of each engine.")
@click.option("--kv-cache-bytes", type=int, help="KV pool of each, instead of what the memory holds.")
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads of an engine.")
@click.option("--cores", type=str, help="CPU cores of the prefill and the decode engine, as 0,1.")
@click.option(
    "--devices", type=str, help="GPUs of the prefill and the decode engine, as 0,1; else one for both."
)
@click.option("--backend", help="Attention backend.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the model.")
@click.option("--fake", is_flag=True, hidden=True, help="Fake engines, for tests.")
@click.option("--logs", type=click.Path(file_okay=False, path_type=Path), help="The engines' logs.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def profile(**settings: Any) -> None:
    """Measures steps, transfers and start-up of a prefill and a decode engine, in a few minutes.

    With --router those of a cluster as it stands: what runs beside its engines is in the figures.
    """
    if sum(settings[name] is not None for name in ("model", "shape", "router")) != 1:
        raise click.UsageError("give one of --model, --shape and --router")
    if settings["router"] is not None:
        found = asyncio.run(_measure_cluster(settings["router"], settings))
        settings["out"].write_text(found.to_json())
        show_profile(found)
        return
    model = settings["model"]
    if model is None:
        model = write_shape(settings["shape"], Path(tempfile.gettempdir(), "corun-pd-shapes"))
    with tempfile.TemporaryDirectory() as folder:
        logs = settings["logs"] or Path(folder)
        times = [
            measure_steps(
                model, _engine(settings, slots), _lengths(settings["longest"]), logs, _places(settings)
            )
            for slots in sorted(set(parse_numbers("--slots", settings["slots_text"])))
        ]
    found = make_profile(settings["mode"], settings["chunk"], times, _machine(model, settings))
    settings["out"].write_text(found.to_json())
    _print(times[-1], found)


def make_profile(
    mode: Literal["isolated", "packed"], chunk: int, times: Sequence[StepTimes], machine: dict[str, str]
) -> Profile:
    """The cost model of what was measured at one N each, in the order of N.

    Prompts and transfers are those of the widest N.
    """
    widest = times[-1]
    prefill, prefill_error = fit_prefill(mode, chunk, widest.prompts)
    steps = [fit_decode(one.info.slots, one.decode) for one in times]
    point = steps[-1][0]
    transfer, transfer_error = fit_transfer(widest.transfers, StepCost(point.base_s, point.kv_token_s))
    return Profile(
        machine=machine,
        versions=machine_facts()["versions"],
        fingerprint=widest.info.contract.fingerprint,
        contract=widest.info.contract.as_json,
        prefill=prefill,
        decode=rising(point for point, _ in steps),
        kv_bytes_per_token=widest.kv_bytes_per_token,
        transfer=transfer,
        start_up_s=max(one.start_up_s for one in times),
        residuals={
            "prefill": prefill_error,
            "decode": max(error for _, error in steps),
            "transfer": transfer_error,
        },
        samples={
            "prefill": tuple(widest.prompts),
            **{f"decode of {one.info.slots}": tuple(one.decode) for one in times},
            "transfer": tuple(widest.transfers),
        },
    )


async def _measure_cluster(router: str, settings: dict[str, Any]) -> Profile:
    async with AsyncClient(router) as client:
        return await profile_cluster(client, settings["longest"], machine(settings))


def _engine(settings: dict[str, Any], slots: int) -> EngineConfig:
    """Room for the longest prompt and its answer."""
    try:
        return EngineConfig(
            kind="fake" if settings["fake"] else "vllm",
            fake=FakeConfig(prefill_s_per_token=1e-5, decode_step_s=0.003, transfer_s=0.001),
            weights="random" if settings["shape"] else "files",
            slots=slots,
            prefill=PrefillConfig(mode=settings["mode"], chunk_tokens=settings["chunk"]),
            max_model_tokens=settings["longest"] + 2 * slots + 64,
            block_tokens=settings["block_tokens"],
            kv_cache_bytes=settings["kv_cache_bytes"],
            gpu_memory_ratio=settings["memory"],
            cpu_threads=settings["threads"],
            attention_backend=settings["backend"],
            compile=settings["compiled"],
        )
    except ValidationError as error:
        raise ConfigError(f"profile: {describe_validation(error)}") from error


def _lengths(longest: int) -> list[int]:
    return [length for length in LENGTHS if length < longest] + [longest]


def _places(settings: dict[str, Any]) -> Places:
    cores: tuple[int | None, int | None] = (None, None)
    environments: tuple[dict[str, str], dict[str, str]] = ({}, {})
    if settings["cores"] is not None:
        first, second = parse_numbers("--cores", settings["cores"], count=2)
        cores = (first, second)
    if settings["devices"] is not None:
        one, other = parse_numbers("--devices", settings["devices"], count=2)
        environments = ({"CUDA_VISIBLE_DEVICES": str(one)}, {"CUDA_VISIBLE_DEVICES": str(other)})
    return Places(cores, environments)


def _machine(model: Path, settings: dict[str, Any]) -> dict[str, str]:
    facts = machine_facts()
    gpus = facts["gpus"]
    found = {name: str(facts[name]) for name in ("cpu", "cores", "memory_bytes", "python")}
    if isinstance(gpus, list) and gpus:
        found |= {"gpus": ", ".join(gpus), "devices": settings["devices"] or "one for both engines"}
    else:
        found |= {"pinned_cores": settings["cores"] or "none", "threads": str(settings["threads"])}
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return found | {
        "model": model.name,
        "date": date,
        "command": f"corun-pd {shlex.join(sys.argv[1:])}",
    }


def _print(times: StepTimes, found: Profile) -> None:
    rows: list[tuple[str, float, float]] = []
    for tokens, together, seconds in times.prompts:
        rows.append(
            (f"{together} prompts of {tokens} tokens", 1e3 * seconds, 1e3 * found.prefill.alone_s(tokens))
        )
    step = found.decode_step(times.info.slots)
    for kv, seconds in times.decode:
        rows.append(
            (f"decode step over {kv} KV tokens", 1e3 * seconds, 1e3 * (step.base_s + kv * step.kv_token_s))
        )
    print_table(f"steps of N = {times.info.slots}", ("what", "measured, ms", "model, ms"), rows)
    transfer = found.transfer
    click.echo(
        f"transfer: {1e3 * transfer.latency_s:.2f} ms and {transfer.bytes_per_s / 1e9:.3g} GB/s; "
        f"{found.kv_bytes_per_token} bytes of KV a token; start-up {found.start_up_s:.0f} s"
    )
    worst = ", ".join(f"{name} {error:.1%}" for name, error in found.residuals.items())
    click.echo(f"largest errors of the model on what was measured: {worst}")
