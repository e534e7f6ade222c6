"""How a plan stands when what it assumed is off by a fifth: lengths, rate, costs."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from corun_pd.planner.cost import Profile
from corun_pd.planner.failures import Failures
from corun_pd.planner.goal import Goal
from corun_pd.planner.load import Load, Online
from corun_pd.planner.outcome import Outcome
from corun_pd.planner.search import Plan
from corun_pd.planner.simulator import simulate
from corun_pd.planner.traces import TraceRequest

__all__ = ["CHANGES", "Sensitivity", "sensitivity"]

#: Each assumption is taken so many times.
CHANGES: Final = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What becomes of a plan with `factor` times `assumption`.

    `makespan_ratio` is to the plan's own makespan; 1 where nothing ran. `meets_goal` is False as well when
    `outcome.refused` requests no longer fit an instance.
    """

    assumption: str
    factor: float
    outcome: Outcome
    makespan_ratio: float
    meets_goal: bool


def sensitivity(
    requests: Callable[[], Iterable[TraceRequest]],
    plan: Plan,
    goal: Goal,
    load: Load,
    *,
    max_tokens: int = 0,
    failures: Failures | None = None,
) -> Iterator[Sensitivity]:
    """One row for each assumption and each of CHANGES; the rate counts where requests come in time alone.

    `requests` gives the workload anew at each call.
    """

    def row(assumption: str, factor: float, outcome: Outcome) -> Sensitivity:
        own = plan.outcome.makespan_s
        ratio = outcome.makespan_s / own if own else 1.0
        return Sensitivity(assumption, factor, outcome, ratio, not outcome.refused and goal.is_met(outcome))

    def run(profile: Profile, load: Load, prompt: float = 1.0, output: float = 1.0) -> Outcome:
        changed = requests() if prompt == output == 1.0 else _lengths(requests(), prompt, output)
        limit = round(max_tokens * output)
        return simulate(changed, plan.layout, profile, load, max_tokens=limit, failures=failures)

    for factor in CHANGES:
        yield row("prompt lengths", factor, run(plan.profile, load, prompt=factor))
        yield row("output lengths", factor, run(plan.profile, load, output=factor))
        if isinstance(load, Online):
            faster = dataclasses.replace(load, speed=load.speed * factor)
            yield row("request rate", factor, run(plan.profile, faster))
        yield row("prefill cost", factor, run(plan.profile.scaled(prefill=factor), load))
        yield row("decode cost", factor, run(plan.profile.scaled(decode=factor), load))
        if not plan.layout.colocated:
            yield row("transfer cost", factor, run(plan.profile.scaled(transfer=factor), load))


def _lengths(requests: Iterable[TraceRequest], prompt: float, output: float) -> Iterator[TraceRequest]:
    for one in requests:
        yield one._replace(
            prompt_tokens=max(1, round(one.prompt_tokens * prompt)),
            output_tokens=max(1, round(one.output_tokens * output)),
        )
