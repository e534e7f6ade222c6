"""What the fleet did between two descriptions of it: the work and the padding of each instance."""

from dataclasses import astuple

from corun_pd.batch.line import Json
from corun_pd.client import Fleet, FleetMember
from corun_pd.core import InstanceLoad, Role

__all__ = ["fleet_work"]


def fleet_work(before: Fleet, after: Fleet) -> dict[str, Json]:
    """Counters' growth by instance, and the share of padding among the rows of all decode steps.

    Other callers' work counts too: instances do not tell whose a row is. An instance that restarted in
    between counts from its start, and one that left is named and counts no more.
    """
    loads = {member.instance.instance_id: member.load for member in before.members}
    rows: list[tuple[FleetMember, InstanceLoad]] = []
    for member in after.members:
        if member.load is not None:
            rows.append((member, _growth(loads.get(member.instance.instance_id), member.load)))  # noqa: PERF401
    left = sorted(loads.keys() - {member.instance.instance_id for member in after.members})
    decode = [load for member, load in rows if member.instance.role is not Role.PREFILL]
    return {
        "padding_ratio": _ratio(sum(load.padding_rows for load in decode), sum(load.rows for load in decode)),
        "instances": [_row(member, load) for member, load in rows],
        "instances_left": list[Json](left),
    }


def _growth(before: InstanceLoad | None, after: InstanceLoad) -> InstanceLoad:
    if before is None or before.steps > after.steps:
        return after
    return InstanceLoad(*(new - old for new, old in zip(astuple(after), astuple(before), strict=True)))


def _row(member: FleetMember, load: InstanceLoad) -> dict[str, Json]:
    return {
        "instance_id": member.instance.instance_id,
        "role": member.instance.role.value,
        "step_count": load.steps,
        "row_count": load.rows,
        "padding_ratio": _ratio(load.padding_rows, load.rows),
        "prefilled_token_count": load.prefilled_tokens,
        "reused_token_count": load.reused_tokens,
        "sampled_token_count": load.sampled_tokens,
        "kv_pulled_byte_count": load.kv_pulled_bytes,
    }


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
