"""`corun-pd plan`: how many prefill and decode instances a workload takes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click
import orjson

from corun_pd.cli.plan_inputs import FORMATS, length_rule, open_trace, parse_load, parse_numbers
from corun_pd.errors import ConfigError
from corun_pd.planner.goal import Goal, Objective
from corun_pd.planner.memory import MemoryPlan, plan_memory
from corun_pd.planner.model_shape import ModelShape
from corun_pd.planner.profiles import open_profile
from corun_pd.planner.search import Plan, search
from corun_pd.planner.space import Space
from corun_pd.planner.traces import take

__all__ = ["plan"]

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
@click.option("--ttft-p95-s", type=float, help="A bound on the time to the first token.")
@click.option("--tpot-p95-s", type=float, help="A bound on the time per further token.")
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
    ttft_p95_s: float | None,
    tpot_p95_s: float | None,
    as_json: bool,
) -> None:
    """Simulates layouts on a workload and says which is best, or why none will do."""
    goal = Goal(Objective(objective), ttft_p95_s, tpot_p95_s)
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
    found = search(
        lambda: trace if requests is None else take(trace, requests, repeat=repeat),
        Space(gpus, costs, slots, kv_blocks, block_tokens, gpus_per_instance),
        goal,
        load,
        max_tokens=max_tokens,
    )
    if as_json:
        report = {"trace": trace.report.lines(), "memory": memory, "plans": [_row(one) for one in found]}
        click.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return
    click.echo("\n".join([*trace.report.lines(), *(memory.lines() if memory else ()), *_table(found)]))
    best = found[0]
    click.echo(
        f"best: {best.layout.words} on {best.gpus} GPUs, N = {best.layout.slots}; "
        f"start-up of {best.outcome.start_up_s:g} s comes on top"
    )


def _row(one: Plan) -> dict[str, object]:
    return {
        "layout": dataclasses.asdict(one.layout),
        "prefill": one.profile.prefill.model_dump(include={"mode", "chunk_tokens"}),
        "fingerprint": one.profile.fingerprint,
        "gpus": one.gpus,
        "least_makespan_s": one.least_makespan_s,
        "output_tokens_per_s": one.outcome.output_tokens_per_s,
        **dataclasses.asdict(one.outcome),
    }


def _table(plans: Sequence[Plan]) -> list[str]:
    """The ten best, in 80 columns; times in seconds."""
    head = ("makespan", "bound", "tokens/s", "TTFT p95", "TPOT p95", "P busy", "D slots")
    lines = [f"{'layout':<9} {'prefill':<13} {'N':>4} " + " ".join(f"{name:>8}" for name in head)]
    for one in plans[:10]:
        outcome, layout, prefill = one.outcome, one.layout, one.profile.prefill
        words = f"{layout.colocated}C" if layout.colocated else f"{layout.prefill}P + {layout.decode}D"
        cells = (
            f"{outcome.makespan_s:.1f}",
            f"{one.least_makespan_s:.1f}",
            f"{outcome.output_tokens_per_s:.0f}",
            f"{outcome.ttft.p95:.2f}",
            f"{outcome.tpot.p95:.4f}",
            f"{outcome.prefill.busy_ratio:.0%}",
            f"{outcome.decode.use_ratio:.0%}",
        )
        name = f"{prefill.mode} {prefill.chunk_tokens}"
        lines.append(f"{words:<9} {name:<13} {layout.slots:>4} " + " ".join(f"{c:>8}" for c in cells))
    return lines
