"""A plan in words: which pool limits, what is lost to padding, how far the ideal is, what comes next."""

from collections.abc import Sequence

from corun_pd.planner.goal import Goal
from corun_pd.planner.load import Load, Online
from corun_pd.planner.outcome import PoolUse
from corun_pd.planner.search import Plan

__all__ = ["explain"]

#: A pool that is used above this share of the time limits the job; the rest is its start and its tail.
_FULL = 0.9


def explain(plans: Sequence[Plan], goal: Goal, load: Load) -> list[str]:
    """Sentences on the first of `plans`, which is the best, against the others."""
    best = plans[0]
    lines = [_limit(best), *_padding(best), _distance(best, load)]
    lines += [
        f"The {b.percentile}th percentile of {b.metric} is {found:.4g} s of {b.seconds:g} s allowed."
        for b, found in goal.bounds(best.outcome)
    ]
    if len(plans) > 1:
        lines.append(_next(best, plans[1], goal))
    return lines


def _limit(plan: Plan) -> str:
    layout, prefill, decode = plan.layout, plan.outcome.prefill, plan.outcome.decode
    if layout.colocated:
        more = "prefill" if prefill.busy_ratio > decode.busy_ratio else "decode"
        return (
            f"Each instance spends {prefill.busy_ratio:.0%} of the time in prefill steps and "
            f"{decode.busy_ratio:.0%} in decode steps, with {decode.use_ratio:.0%} of the slots in use: "
            f"{more} is what most of the time goes to."
        )
    facts = (
        f"prefill computes {prefill.busy_ratio:.0%} of the time, and {decode.use_ratio:.0%} of the decode "
        f"slots hold a row"
    )
    busiest = max(prefill.busy_ratio, decode.use_ratio)
    if busiest < _FULL:
        reason = "arrivals, the job's start and its tail leave room in both"
        return f"No pool limits throughout: {facts}; {reason}."
    name, count = (
        ("prefill", layout.prefill)
        if prefill.busy_ratio >= decode.use_ratio
        else (
            "decode",
            layout.decode,
        )
    )
    instances = "instance" if count == 1 else "instances"
    return f"The {name} pool limits ({count} {instances}): {facts}."


def _padding(plan: Plan) -> list[str]:
    pools: list[tuple[str, PoolUse, str]] = [
        ("prefill computes", plan.outcome.prefill, "tokens"),
        ("decode computes", plan.outcome.decode, "rows"),
    ]
    shares = [f"of what {verb}, {use.padding_ratio:.0%} is padding {what}" for verb, use, what in pools]
    text = "; ".join(shares)
    return [f"{text[0].upper()}{text[1:]}."]


def _distance(plan: Plan, load: Load) -> str:
    took_s, least_s = plan.outcome.makespan_s, plan.least_makespan_s
    if isinstance(load, Online):
        return f"It takes {took_s:.4g} s, which the requests' arrivals bound too."
    if least_s <= 0:
        return f"It takes {took_s:.4g} s."
    return (
        f"It takes {took_s:.4g} s; no schedule on these instances takes less than {least_s:.4g} s, so "
        f"{took_s / least_s - 1:.0%} at most is left to win."
    )


def _next(best: Plan, other: Plan, goal: Goal) -> str:
    further = other.cost / best.cost - 1 if best.cost else 0.0
    prefill = other.profile.prefill
    return (
        f"Next best is {other.layout.words} with N = {other.layout.slots} and {prefill.mode} prefill of "
        f"{prefill.chunk_tokens} tokens, {further:.1%} behind in {goal.objective.value}."
    )
