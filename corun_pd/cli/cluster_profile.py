"""The cost profile of a running cluster, measured through its router."""

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from corun_pd.bench.cluster_times import ClusterTimes, measure_cluster
from corun_pd.bench.report import machine_facts
from corun_pd.client import AsyncClient
from corun_pd.core import InstanceInfo, Role
from corun_pd.planner.cost import Beside, DecodePoint, Profile, RouterCost, StepCost, TransferCost
from corun_pd.planner.fit import MOST_BYTES_PER_S, fit_decode, fit_prefill, fit_transfer, with_rows
from corun_pd.planner.prefill_cost import IsolatedCost, PackedCost

__all__ = ["instances", "machine", "make_profile", "profile_cluster", "router_cost", "show_profile"]


async def profile_cluster(client: AsyncClient, longest: int, machine: dict[str, str]) -> Profile:
    """Measures an idle cluster. `longest` is of prompts, in tokens; start-up is not measured and 0."""
    return make_profile(await instances(client), await measure_cluster(client, longest), machine)


async def instances(client: AsyncClient) -> list[InstanceInfo]:
    """Those of the cluster."""
    return [member.instance for member in (await client.describe()).members]


def make_profile(infos: list[InstanceInfo], times: ClusterTimes, machine: dict[str, str]) -> Profile:
    """The cost model of what was measured on instances that are `infos`."""
    info = infos[0]
    mode = "packed" if "packed" in info.settings.get("prefill_mode", "") else "isolated"
    prefill, prefill_error = fit_prefill(mode, info.prefill_tokens, times.prompts)  # type: ignore[arg-type]
    whole, decode_error = fit_decode(info.slots, times.decode)
    point = with_rows(whole, times.one_row)
    # A pull is measured alone, and so is the step after it: of one row.
    step = StepCost(point.base_s + point.row_s, point.kv_token_s)
    transfer, transfer_error = TransferCost(latency_s=0.0, bytes_per_s=MOST_BYTES_PER_S), 0.0
    if times.transfers:
        transfer, transfer_error = fit_transfer(times.transfers, step)
    return Profile(
        machine=machine | {"used_by_others": f"{times.foreign_cores:.2f} cores at most"},
        versions=machine_facts()["versions"],
        fingerprint=info.fingerprint,
        contract=dict(info.settings),
        prefill=prefill,
        decode=(point,),
        kv_bytes_per_token=info.block_bytes // info.block_tokens,
        transfer=transfer,
        start_up_s=0.0,
        company=_company(infos),
        beside=_beside(times, prefill, whole),
        router=router_cost(times.refusal_s, times.ttft_tokens, times.ttft_s, prefill),
        residuals={"prefill": prefill_error, "decode": decode_error, "transfer": transfer_error},
        samples={
            "prefill": tuple(times.prompts),
            f"decode of {info.slots}": tuple(times.decode),
            "decode of one row": tuple(times.one_row),
            "first tokens": tuple((times.ttft_tokens, seconds) for seconds in times.ttft_s),
            "transfer": tuple(times.transfers),
            "prefill beside decode": tuple(times.beside_prefill),
            "decode beside prefill": tuple(times.beside_decode),
        },
    )


def machine(settings: Mapping[str, Any]) -> dict[str, str]:
    """What the profile says of the machine at hand."""
    facts = machine_facts()
    found = {name: str(facts[name]) for name in ("cpu", "cores", "memory_bytes", "python")}
    return found | {
        "pinned_cores": str(settings.get("cores") or "none"),
        "model": Path(settings["model"]).name if settings.get("model") else "",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": f"corun-pd {shlex.join(sys.argv[1:])}",
    }


def show_profile(profile: Profile) -> None:
    """The costs, in lines."""
    prefill, decode, beside = profile.prefill, profile.decode[0], profile.beside
    full = prefill.alone_s(prefill.chunk_tokens)
    click.echo(
        f"profile: prefill of {prefill.chunk_tokens} tokens {1e3 * full:.1f} ms, decode step "
        f"{1e3 * decode.base_s:.2f} ms and {1e9 * decode.kv_token_s:.1f} ns a KV token, transfer "
        f"{1e3 * profile.transfer.latency_s:.1f} ms"
        + f"; a row {1e3 * decode.row_s:.2f} ms, the router {1e3 * profile.router.request_s:.2f} ms "
        + f"a request and {1e3 * profile.router.latency_s:.1f} ms"
        + ("" if beside is None else f"; beside others x{beside.prefill:.2f} and x{beside.decode:.2f}")
        + "; largest errors "
        + ", ".join(f"{name} {error:.1%}" for name, error in profile.residuals.items())
    )


def _company(infos: list[InstanceInfo]) -> str:
    counts = {role: sum(info.role is role for info in infos) for role in Role}
    there = ", ".join(f"{count} {role}" for role, count in counts.items() if count)
    return f"a cluster of {there}, through its router and a streaming client; others idle but for `beside`"


def router_cost(
    refusal_s: float, tokens: int, ttft_s: Sequence[float], prefill: IsolatedCost | PackedCost
) -> RouterCost:
    """What a request takes before and after its prefill, by prompts of `tokens` tokens one at a time."""
    latency_s = median(ttft_s) - prefill.alone_s(tokens) - refusal_s
    return RouterCost(request_s=refusal_s, latency_s=max(0.0, latency_s))


def _beside(times: ClusterTimes, prefill: IsolatedCost | PackedCost, step: DecodePoint) -> Beside | None:
    """How much slower steps are beside others; None where that was not measured."""
    if not times.beside_prefill or not times.beside_decode:
        return None
    slow_prefill = median(seconds / prefill.alone_s(tokens) for tokens, _, seconds in times.beside_prefill)
    slow_decode = median(
        seconds / (step.base_s + kv * step.kv_token_s) for kv, seconds in times.beside_decode
    )
    return Beside(prefill=max(1.0, slow_prefill), decode=max(1.0, slow_decode))
