"""`corun-pd describe`: the fleet of a router."""

import asyncio
import dataclasses

import click
import orjson
from rich.console import Console
from rich.table import Table

from corun_pd.cli.options import router_option
from corun_pd.client import AsyncClient, Fleet

__all__ = ["describe"]


@click.command()
@router_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--timeout-s", type=float, default=5.0, show_default=True, help="How long to wait for the router."
)
def describe(router: str, as_json: bool, timeout_s: float) -> None:
    """Shows the instances of a cluster, what they are doing, and the contract that they share."""
    fleet = asyncio.run(_describe(router, timeout_s))
    if as_json:
        click.echo(orjson.dumps(dataclasses.asdict(fleet), option=orjson.OPT_INDENT_2))
        return
    console = Console()
    console.print(_instances(fleet))
    console.print(f"{fleet.running} generations under way, {fleet.waiting} waiting")
    console.print(_contract(fleet) if fleet.fingerprint is not None else "no instance has joined")


async def _describe(router: str, timeout_s: float) -> Fleet:
    async with AsyncClient(router) as client:
        return await client.describe(timeout_s=timeout_s)


def _instances(fleet: Fleet) -> Table:
    table = Table(title="instances")
    table.add_column("role")
    table.add_column("instance")
    table.add_column("address")
    for name in (
        "slots",
        "running",
        "waiting",
        "KV blocks free",
        "handoffs",
        "prefilled",
        "reused",
        "sampled",
        "KV pulled",
    ):
        table.add_column(name, justify="right")
    for member in fleet.members:
        instance, load = member.instance, member.load
        doing = ("-",) * 8
        if load is not None:
            doing = (
                str(load.running),
                str(load.waiting),
                f"{load.free_blocks}/{instance.blocks}",
                str(load.open_handoffs),
                str(load.prefilled_tokens),
                str(load.reused_tokens),
                str(load.sampled_tokens),
                f"{load.kv_pulled_bytes / 2**20:.1f} MiB",
            )
        table.add_row(instance.role, instance.instance_id, instance.address, str(instance.slots), *doing)
    return table


def _contract(fleet: Fleet) -> Table:
    table = Table(title=f"contract {fleet.fingerprint}")
    table.add_column("setting")
    table.add_column("value")
    for name, value in fleet.settings.items():
        table.add_row(name, value)
    return table
