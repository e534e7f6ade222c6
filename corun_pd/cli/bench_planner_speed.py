"""`corun-pd bench planner-speed`: how long simulations and searches take on this machine."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from corun_pd.bench.report import print_table, write_result
from corun_pd.planner.columns import Columns
from corun_pd.planner.cost import Profile
from corun_pd.planner.goal import Bound, Goal, Objective
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import Load, Offline, Online
from corun_pd.planner.search import Search, search
from corun_pd.planner.simulator import simulate
from corun_pd.planner.space import Space
from corun_pd.planner.traces import LogNormal, Synthetic

__all__ = ["planner_speed"]

#: Steps about as long as an 8B model's on one H200, and long-tailed lengths as BurstGPT has them.
PROFILE: Final = {
    "machine": {"gpu": "none: figures like those of an H200"},
    "versions": {},
    "fingerprint": "none",
    "prefill": {"mode": "packed", "chunk_tokens": 2048, "full_step_s": 0.05, "context_pair_s": 1e-9},
    "decode": [
        {"slots": 128, "base_s": 0.0085, "kv_token_s": 3.7e-8},
        {"slots": 256, "base_s": 0.0095, "kv_token_s": 3.7e-8},
    ],
    "kv_bytes_per_token": 147456,
    "transfer": {"latency_s": 0.002, "bytes_per_s": 2e10},
    "start_up_s": 60,
}
PROMPT, OUTPUT = LogNormal(300, 1.2, 6000), LogNormal(150, 0.9, 1500)
BLOCKS, BLOCK_TOKENS, RATE_PER_S = 43_000, 16, 60.0


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--search-requests", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--gpus", type=click.IntRange(min=1), default=14, show_default=True, help="Of a search.")
@click.option("--slots", default="128,256", show_default=True, help="N of a search.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--every", is_flag=True, help="Search again without giving up any layout.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def planner_speed(**settings: Any) -> None:
    """Simulates a long trace on a few layouts, and searches all splits of a number of GPUs."""
    profile = Profile.model_validate(PROFILE)
    rows: list[dict[str, object]] = []

    def add(row: dict[str, object]) -> None:
        rows.append(row)
        write_result(settings["out"], "planner-speed", settings, rows)
        click.echo(f"{row['what']} of {row['requests']:,} requests, {row['layouts']}: {row['wall_s']:.1f} s")

    trace = _trace(settings["requests"])
    layouts: Sequence[tuple[str, dict[str, int], Load]] = (
        ("3P + 5D, offline", {"prefill": 3, "decode": 5}, Offline()),
        ("3P + 5D, online", {"prefill": 3, "decode": 5}, Online()),
        ("8C, offline", {"colocated": 8}, Offline()),
    )
    for name, counts, load in layouts:
        layout = Layout(slots=256, blocks=BLOCKS, block_tokens=BLOCK_TOKENS, **counts)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        outcome = simulate(trace, layout, profile, load)
        add(
            {
                "what": "simulation",
                "requests": outcome.requests,
                "layouts": name,
                "simulated_to_the_end": 1,
                "processes": 1,
                "wall_s": time.perf_counter() - wall_s,
                "cpu_s": time.process_time() - cpu_s,
            }
        )
    trace = _trace(settings["search_requests"])
    slots = [int(part) for part in settings["slots"].split(",")]
    space = Space(settings["gpus"], (profile,), slots, BLOCKS, BLOCK_TOKENS)
    count = len(list(space.layouts()))
    cheap = Goal(Objective.GPU_TIME, (Bound("TTFT", 95, 1.0), Bound("TPOT", 95, 0.03)))
    searches: list[tuple[str, Goal, Load, bool]] = [
        ("search for the shortest job", Goal(), Offline(), False),
        ("search for the least GPU time that meets targets online", cheap, Online(), False),
    ]
    if settings["every"]:
        searches.append(("every layout to its end", Goal(), Offline(), True))
    for what, goal, load, every in searches:
        wall_s = time.perf_counter()
        found = search(lambda: trace, space, goal, load, Search(every=every, workers=settings["workers"]))
        add(
            {
                "what": what,
                "requests": settings["search_requests"],
                "layouts": f"{count} layouts",
                "simulated_to_the_end": len(found),
                "processes": settings["workers"],
                "wall_s": time.perf_counter() - wall_s,
                "best": found[0].layout.words,
                "makespan_s": found[0].outcome.makespan_s,
            }
        )
    print_table(
        "planner-speed",
        ("what", "requests", "layouts", "processes", "s"),
        [(r["what"], r["requests"], r["layouts"], r["processes"], r["wall_s"]) for r in rows],
    )


def _trace(requests: int) -> Columns:
    """Drawn before anything is timed: readers are not what is measured."""
    return Columns.of(Synthetic(requests, PROMPT, OUTPUT, rate_per_s=RATE_PER_S))
