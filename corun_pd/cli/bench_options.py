"""Options that the experiments share, and what they make."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from corun_pd.bench.shapes import SHAPES, write_shape
from corun_pd.cli.plan_inputs import parse_numbers
from corun_pd.config import EngineConfig, FakeConfig, PrefillConfig, describe_validation
from corun_pd.engine.devices import see_only
from corun_pd.errors import ConfigError
from corun_pd.planner.traces import BurstGpt

__all__ = [
    "common",
    "devices",
    "engine_config",
    "gpus_of",
    "lengths_of",
    "model_of",
    "numbers_of",
    "plan_options",
]

Decorator = Callable[[Any], Any]


def common(modes: str, memory: float = 0.85, max_model_tokens: int = 8192) -> Decorator:
    """Options of every experiment, and the defaults of some."""
    return _all(
        click.option("--model", type=click.Path(path_type=Path, exists=True), help="A model folder."),
        click.option("--shape", type=click.Choice(sorted(SHAPES)), help="A shape with random weights."),
        click.option("--layers", type=click.IntRange(1), help="Fewer layers than the shape has."),
        click.option("--modes", default=modes, show_default=True, help="Names, with commas or semicolons."),
        click.option("--slots", type=int, default=256, show_default=True, help="N."),
        click.option(
            "--chunk", type=int, default=2048, show_default=True, help="C of isolated, T of packed."
        ),
        click.option("--max-model-tokens", type=int, default=max_model_tokens, show_default=True),
        click.option("--block-tokens", type=int, default=32, show_default=True),
        click.option(
            "--memory", type=float, default=memory, show_default=True, help="GPU memory of an engine."
        ),
        click.option("--kv-cache-bytes", type=int, help="KV pool, instead of what the memory holds."),
        click.option("--backend", help="Attention backend."),
        click.option(
            "--tensor-parallel", type=click.IntRange(1), default=1, show_default=True, help="GPUs an engine."
        ),
        click.option("--gpus", help="Dealt out to engines in turn, around again when they end, as 0,1."),
        click.option("--compile", "compiled", is_flag=True, help="Compile the model in every mode."),
        click.option("--fake", is_flag=True, help="Fake engines: to try a plan without a model."),
        click.option("--plot/--no-plot", default=False, help="Draw the result beside its JSON."),
    )


def plan_options(workload: str = "burstgpt") -> Decorator:
    """Options of what the experiments run; `workload` is the default of --workload."""
    return _all(
        click.option(
            "--workloads",
            default="burstgpt,blazedit,1024/128,4096/128,1024/2048,4096/2048,256/64",
            show_default=True,
            help="NAME[:COUNT], with commas: burstgpt, blazedit, or PROMPT/OUTPUT tokens.",
        ),
        click.option(
            "--workload", default=workload, show_default=True, help="Of experiments with one workload."
        ),
        click.option("--requests", type=click.IntRange(1), default=300, show_default=True),
        click.option("--repeats", type=click.IntRange(1), default=1, show_default=True),
        click.option("--burstgpt", type=click.Path(path_type=Path, exists=True), help="BurstGPT's CSV."),
        click.option(
            "--blazedit",
            type=click.Path(path_type=Path, exists=True),
            help="A CSV of Blazedit's lengths with BurstGPT's columns.",
        ),
        click.option("--rates", default="", help="Request rates of `latency`, per second, with commas."),
        click.option("--in-flight", default="1,16,64,256", show_default=True, help="Of `concurrency`."),
        click.option("--kv-tokens", default="1024", show_default=True, help="Lengths of `decode-step`."),
        click.option("--bits", default=128, show_default=True, help="Requests that `ablation` compares."),
        click.option("--sizes", default="", help="Several N, with commas, instead of --slots (Fig. 12)."),
        click.option(
            "--mode-limit", type=float, default=300.0, show_default=True, help="Seconds for each mode."
        ),
    )


def engine_config(settings: dict[str, Any], memory: float | None = None) -> EngineConfig:
    """The engine before a mode is applied; `memory` instead of the option's. Raises ConfigError."""
    try:
        return EngineConfig(
            kind="fake" if settings["fake"] else "vllm",
            fake=FakeConfig(prefill_s_per_token=1e-6, decode_step_s=1e-3),
            weights="random" if settings["shape"] else "files",
            slots=settings["slots"],
            prefill=PrefillConfig(mode="isolated", chunk_tokens=settings["chunk"]),
            max_model_tokens=settings["max_model_tokens"],
            block_tokens=settings["block_tokens"],
            kv_cache_bytes=settings["kv_cache_bytes"],
            gpu_memory_ratio=memory or settings["memory"],
            attention_backend=settings["backend"],
            compile=settings["compiled"],
            tensor_parallel_size=settings["tensor_parallel"],
        )
    except ValidationError as error:
        raise ConfigError(f"bench: {describe_validation(error)}") from error


def gpus_of(settings: dict[str, Any], engines: int) -> list[tuple[int, ...] | None]:
    """The GPUs of each engine that runs beside the others; None shows it all.

    Raises ConfigError for what is no list, and when an engine would have two ranks on one GPU.
    """
    if not settings["gpus"]:
        return [None] * engines
    numbers, ranks = parse_numbers("--gpus", settings["gpus"]), settings["tensor_parallel"]
    if min(numbers) < 0:
        raise ConfigError(f"--gpus {settings['gpus']}: GPUs are counted from 0")
    found: list[tuple[int, ...] | None] = [
        tuple(numbers[(ranks * at + rank) % len(numbers)] for rank in range(ranks)) for at in range(engines)
    ]
    for gpus in found:
        if len(set(gpus or ())) < ranks:
            raise ConfigError(f"--gpus {settings['gpus']}: two ranks of one engine on a GPU: {gpus}")
    return found


def devices(settings: dict[str, Any], engines: int) -> list[dict[str, str]]:
    """`gpus_of` as environment variables of the engines' processes."""
    return [see_only(gpus) for gpus in gpus_of(settings, engines)]


def model_of(settings: dict[str, Any]) -> Path:
    """The model's folder, made when a shape is named. Raises UsageError unless one of both is given."""
    if (settings["model"] is None) == (settings["shape"] is None):
        raise click.UsageError("give one of --model and --shape")
    if settings["model"] is not None:
        return Path(settings["model"])
    return write_shape(settings["shape"], Path(tempfile.gettempdir(), "corun-pd-shapes"), settings["layers"])


def numbers_of(option: str, text: str) -> list[int]:
    """Whole numbers above zero, with commas between them. Raises ConfigError for anything else."""
    numbers = parse_numbers(option, text)
    if min(numbers) < 1:
        raise ConfigError(f"{option} {text}: is not all above zero")
    return numbers


def lengths_of(settings: dict[str, Any]) -> dict[str, Sequence[tuple[int, int]]]:
    """(prompt, output) lengths of the workloads whose files are given, in the files' order."""
    count = settings["requests"]
    return {
        name: [
            (request.prompt_tokens, request.output_tokens)
            for request in islice(BurstGpt(settings[name]), count)
        ]
        for name in ("burstgpt", "blazedit")
        if settings[name] is not None
    }


def _all(*options: Decorator) -> Decorator:
    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add
