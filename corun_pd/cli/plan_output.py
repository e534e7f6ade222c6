"""What `corun-pd plan` found, as tables and JSON."""

import dataclasses
from collections.abc import Sequence

from corun_pd.planner.goal import Goal, Objective
from corun_pd.planner.search import Plan
from corun_pd.planner.sensitivity import Sensitivity

__all__ = ["plan_row", "plan_table", "sensitivity_table", "unit_of"]


def unit_of(goal: Goal) -> str:
    """What the objective is called in a table; empty where that is the makespan, which has its columns."""
    return {Objective.MAKESPAN: "", Objective.GPU_TIME: "GPU s", Objective.COST: "cost"}[goal.objective]


def plan_row(one: Plan) -> dict[str, object]:
    """A plan as JSON has it."""
    return {
        "layout": dataclasses.asdict(one.layout),
        "prefill": one.profile.prefill.model_dump(include={"mode", "chunk_tokens"}),
        "fingerprint": one.profile.fingerprint,
        "gpus": one.gpus,
        "least_makespan_s": one.least_makespan_s,
        "cost": one.cost,
        "least_cost": one.least_cost,
        "output_tokens_per_s": one.outcome.output_tokens_per_s,
        **dataclasses.asdict(one.outcome),
    }


def plan_table(plans: Sequence[Plan], most: int = 10, unit: str = "") -> list[str]:
    """The `most` best; times in seconds. An objective with a `unit` is shown with its bound."""
    head = (
        *((unit, "bound") if unit else ()),
        "makespan",
        "bound",
        "tokens/s",
        "TTFT p95",
        "TPOT p95",
        "P busy",
        "D slots",
    )
    lines = [f"{'layout':<9} {'prefill':<13} {'N':>4} " + " ".join(f"{name:>8}" for name in head)]
    for one in plans[:most]:
        outcome, layout, prefill = one.outcome, one.layout, one.profile.prefill
        words = f"{layout.colocated}C" if layout.colocated else f"{layout.prefill}P + {layout.decode}D"
        cells = (
            *((f"{one.cost:.4g}", f"{one.least_cost:.4g}") if unit else ()),
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


def sensitivity_table(rows: Sequence[Sensitivity]) -> list[str]:
    """What becomes of the best plan when an assumption is off."""
    lines = [f"{'when this is off':<16} {'by':>5} {'makespan':>9} {'TTFT p95':>9} {'TPOT p95':>9}  goal"]
    lines += [
        f"{row.assumption:<16} {row.factor - 1:>+5.0%} {row.makespan_ratio - 1:>+9.1%} "
        f"{row.outcome.ttft.p95:>9.3g} {row.outcome.tpot.p95:>9.3g}  "
        f"{'met' if row.meets_goal else 'missed'}"
        for row in rows
    ]
    return lines
