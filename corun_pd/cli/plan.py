"""`corun-pd plan`: how many prefill and decode instances a workload takes."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import click
import orjson

from corun_pd.cli.plan_inputs import FORMATS, length_rule, open_trace, parse_load, parse_numbers
from corun_pd.cli.plan_output import plan_row, plan_table, sensitivity_table, unit_of
from corun_pd.client import AsyncClient
from corun_pd.errors import ConfigError
from corun_pd.planner.deploy import cluster_config, write_cluster
from corun_pd.planner.failures import Failures
from corun_pd.planner.goal import Bound, Goal, Objective
from corun_pd.planner.memory import MemoryPlan, confirm_blocks, plan_memory
from corun_pd.planner.model_shape import ModelShape
from corun_pd.planner.outcome import PERCENTILES
from corun_pd.planner.page import write_page
from corun_pd.planner.profiles import open_profile
from corun_pd.planner.search import Search, search
from corun_pd.planner.sensitivity import Sensitivity, sensitivity
from corun_pd.planner.space import Space
from corun_pd.planner.traces import TraceRequest, take
from corun_pd.planner.words import explain

__all__ = ["plan"]

#: What a target may be set on: the options --ttft-p95-s and so on.
TARGETS: Final[dict[str, tuple[Literal["TTFT", "TPOT"], int]]] = {
    **{f"ttft_p{percentile}_s": ("TTFT", percentile) for percentile in PERCENTILES},
    **{f"tpot_p{percentile}_s": ("TPOT", percentile) for percentile in PERCENTILES},
}


async def _started_blocks(router: str) -> dict[str, int]:
    """KV blocks of each instance of a running cluster."""
    async with AsyncClient(router, timeout_s=10.0) as client:
        members = (await client.describe()).members
    if not members:
        raise ConfigError(f"--router {router}: no instance has joined")
    return {member.instance.instance_id: member.instance.blocks for member in members}


def _targets(command: Any) -> Any:
    """An option for each target."""
    words = {"TTFT": "the time to the first token", "TPOT": "the time per further token"}
    for name, (metric, _) in reversed(TARGETS.items()):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, type=float, help=f"A bound on {words[metric]}.")(command)
    return command


def _bounds(targets: Mapping[str, float | None]) -> Iterator[Bound]:
    for name, seconds in targets.items():
        if seconds is not None:
            metric, percentile = TARGETS[name]
            yield Bound(metric, percentile, seconds)


FilePath = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    required=True,
    help="A cost profile: a file, or the name of one that ships; may repeat.",
)
@click.option("--trace", "source", required=True, help="The trace's file; PROMPT/OUTPUT[@RATE] if synthetic.")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="The trace's format.")
@click.option("--requests", type=click.IntRange(min=1), help="So many of the trace; all without.")
@click.option("--repeat", is_flag=True, help="Start the trace over when it has fewer.")
@click.option("--tokenizer", type=FilePath, help="A tokenizer.json for traces of text.")
@click.option("--characters-per-token", type=click.FloatRange(min=0, min_open=True))
@click.option(
    "--load", "load_text", default="offline", show_default=True, help="Or online[:SPEED], closed:N."
)
@click.option(
    "--max-tokens", type=int, default=0, help="What clients ask for and room is reserved for; 0: the answer."
)
@click.option("--gpus", type=int, required=True, help="The budget.")
@click.option("--gpus-per-instance", type=int, default=1, show_default=True)
@click.option("--slots", "slots_text", default="256", show_default=True, help="N to try, as 64,256.")
@click.option("--block-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--kv-blocks", type=click.IntRange(min=1), help="KV blocks of an instance, as a started one has."
)
@click.option("--model", type=FilePath, help="A config.json, to plan the KV blocks from memory instead.")
@click.option("--device-gib", type=click.FloatRange(min=0, min_open=True), help="Memory of a GPU.")
@click.option("--memory-ratio", type=float, default=0.85, show_default=True)
@click.option(
    "--weight-bytes", type=click.IntRange(min=1), default=2, show_default=True, help="Per parameter."
)
@click.option("--kv-element-bytes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--max-model-tokens", type=click.IntRange(min=1), default=8192, show_default=True)
@click.option(
    "--objective", type=click.Choice([one.value for one in Objective]), default="makespan", show_default=True
)
@click.option(
    "--gpu-hour-price",
    "prices",
    type=float,
    multiple=True,
    help="What a GPU hour costs, for --objective cost: one for all profiles, or one for each in turn.",
)
@_targets
@click.option("--mtbf-s", type=float, help="Instances fail: the mean time that one runs.")
@click.option("--restart-s", type=float, help="Until a failed one is back; else the profile's start-up.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--router", help="A cluster that runs, whose KV blocks are held against the plan.")
@click.option("--explain", "in_words", is_flag=True, help="Say in words which pool limits and why.")
@click.option(
    "--sensitivity", "fifths", is_flag=True, help="Try the plan with each assumption 20 % less and more."
)
@click.option("--every-layout", is_flag=True, help="Simulate those too that cannot win, for the figures.")
@click.option("--html", "page", type=FilePath, help="Write a report with figures.")
@click.option(
    "--config", "cluster_file", type=FilePath, help="Write the plan as a file that `up` takes; needs --model."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plan(
    profiles: Sequence[str],
    source: str,
    form: str,
    requests: int | None,
    repeat: bool,
    tokenizer: Path | None,
    characters_per_token: float | None,
    load_text: str,
    max_tokens: int,
    gpus: int,
    gpus_per_instance: int,
    slots_text: str,
    block_tokens: int,
    kv_blocks: int | None,
    model: Path | None,
    device_gib: float | None,
    memory_ratio: float,
    weight_bytes: int,
    kv_element_bytes: int,
    max_model_tokens: int,
    objective: str,
    prices: tuple[float, ...],
    mtbf_s: float | None,
    restart_s: float | None,
    workers: int,
    router: str | None,
    in_words: bool,
    fifths: bool,
    every_layout: bool,
    page: Path | None,
    cluster_file: Path | None,
    as_json: bool,
    **targets: float | None,
) -> None:
    """Simulates layouts on a workload and says which is best, or why none will do."""
    if cluster_file is not None and model is None:
        raise ConfigError("--config names a model's folder: give --model, the config.json in it")
    goal = Goal(Objective(objective), tuple(_bounds(targets)))
    if goal.objective is Objective.COST and not prices:
        raise ConfigError("--objective cost takes --gpu-hour-price")
    load = parse_load(load_text)
    trace = open_trace(form, source, length_rule(tokenizer, characters_per_token), requests)
    costs = [open_profile(name) for name in profiles]
    slots = parse_numbers("--slots", slots_text)
    memory: MemoryPlan | None = None
    if kv_blocks is None:
        if model is None or device_gib is None:
            raise ConfigError("the KV cache's size is not given: --kv-blocks, or --model and --device-gib")
        memory = plan_memory(
            ModelShape.from_config(model),
            device_bytes=int(device_gib * (1 << 30)),
            memory_ratio=memory_ratio,
            weight_bytes=weight_bytes,
            kv_element_bytes=kv_element_bytes,
            slots=max(slots),
            step_tokens=max(cost.prefill.chunk_tokens for cost in costs),
            max_model_tokens=max_model_tokens,
            block_tokens=block_tokens,
            tensor_parallel_size=gpus_per_instance,
        )
        kv_blocks = memory.kv_blocks

    def requests_anew() -> Iterable[TraceRequest]:
        return trace if requests is None else take(trace, requests, repeat=repeat)

    space = Space(gpus, costs, slots, kv_blocks, block_tokens, gpus_per_instance, prices=prices)
    failures = None
    if mtbf_s is not None:
        failures = Failures(mtbf_s, max(one.start_up_s for one in costs) if restart_s is None else restart_s)
    how = Search(max_tokens=max_tokens, failures=failures, every=every_layout, workers=workers)
    found = search(requests_anew, space, goal, load, how)
    best = found[0]
    words = explain(found, goal, load)
    rows: list[Sensitivity] = []
    if fifths or page is not None:
        rows = list(sensitivity(requests_anew, best, goal, load, max_tokens=max_tokens, failures=failures))
    inputs = [*trace.report.lines(), *(memory.lines() if memory else ())]
    if router is not None:
        inputs.append(confirm_blocks(kv_blocks, asyncio.run(_started_blocks(router))))
    table = plan_table(found, unit=unit_of(goal))
    if page is not None:
        write_page(
            page,
            inputs=inputs,
            plans=found,
            table=plan_table(found, 40, unit_of(goal)),
            words=words,
            rows=rows,
        )
    if cluster_file is not None and model is not None:
        config = cluster_config(
            best,
            model.resolve().parent,
            gpus_per_instance=gpus_per_instance,
            max_model_tokens=max_model_tokens,
            memory_ratio=memory_ratio if memory else None,
        )
        write_cluster(config, cluster_file, f"{best.layout.words}: `corun-pd up {cluster_file.name}`")
    if as_json:
        report = {
            "trace": trace.report.lines(),
            "memory": memory,
            "words": words,
            "plans": [plan_row(one) for one in found],
            "sensitivity": rows,
        }
        click.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return
    said = [*inputs, *table, *(words if in_words else ()), *(sensitivity_table(rows) if fifths else ())]
    click.echo("\n".join(said))
    click.echo(
        f"best: {best.layout.words} on {best.gpus} GPUs, N = {best.layout.slots}; "
        f"start-up of {best.outcome.start_up_s:g} s comes on top"
    )
