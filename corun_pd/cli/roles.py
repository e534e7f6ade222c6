"""One role in the foreground: what `corun-pd up` starts, and what Kubernetes, Slurm or a shell can."""

import os
from pathlib import Path

import click

from corun_pd.cli.options import config_option, router_option
from corun_pd.cli.run import serve
from corun_pd.cluster import lifeline
from corun_pd.config import load_cluster
from corun_pd.core import InstanceInfo, Role
from corun_pd.engine.devices import see_only

__all__ = ["colocated", "decode", "prefill", "router", "standard"]

port_option = click.option(
    "--port", type=click.IntRange(0, 65535), help="The port to serve on; 0 takes a free one."
)
supervised_option = click.option(
    "--supervised", is_flag=True, hidden=True, help="End with the process that holds standard input."
)


class Places(click.ParamType[tuple[int, ...]]):
    """CPU cores or GPUs as `0,2-3`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, each once, as they come."""
        found: dict[int, None] = {}
        for part in str(value).split(","):
            first, _, last = part.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                self.fail(f"{value!r} is no list of {self.name} such as 0,2-3", param, ctx)
            found |= dict.fromkeys(range(int(first), int(last or first) + 1))
        return tuple(found)


@click.command()
@config_option
@port_option
@supervised_option
def router(config_file: Path, port: int | None, supervised: bool) -> None:
    """Serves the router: clients call it, instances join it."""
    from corun_pd.router.server import serve_router

    if supervised:
        lifeline.hold()
    config = load_cluster(config_file)
    settings = config.router if port is None else config.router.model_copy(update={"port": port})
    serve(
        serve_router(
            config.model,
            settings,
            drain_timeout_s=config.drain_timeout_s,
            serving=lambda built: click.echo(f"router serves on {built.address}"),
        )
    )


def _instance_command(role: Role, summary: str) -> click.Command:
    @click.command(role.value, help=summary)
    @config_option
    @router_option
    @click.option("--host", default="127.0.0.1", show_default=True, help="The address that peers dial.")
    @port_option
    @click.option("--cores", type=Places("cores"), metavar="LIST", help="The CPU cores to run on, as 0,2-3.")
    @click.option("--gpus", type=Places("GPUs"), metavar="LIST", help="The GPUs to run on, as 0,2-3.")
    @supervised_option
    def command(
        config_file: Path,
        router: str,
        host: str,
        port: int | None,
        cores: tuple[int, ...] | None,
        gpus: tuple[int, ...] | None,
        supervised: bool,
    ) -> None:
        # Cores and GPUs are set before anything counts them: thread pools are sized at import.
        if cores is not None:
            _pin(cores)
        os.environ.update(see_only(gpus))
        if supervised:
            lifeline.hold()
        from corun_pd.cluster.instance import serve_instance

        config = load_cluster(config_file)
        serve(
            serve_instance(
                role,
                config.model,
                config.engine,
                host=host,
                port=port or 0,
                router=router,
                drain_timeout_s=config.drain_timeout_s,
                on_ready=_say_ready,
            )
        )

    return command


def _pin(cores: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise click.BadParameter(f"{error.strerror}: {cores}", param_hint="--cores") from error


def _say_ready(info: InstanceInfo) -> None:
    click.echo(f"{info.instance_id} serves on {info.address}, contract {info.fingerprint[:16]}")


prefill = _instance_command(Role.PREFILL, "Serves a prefill instance: prompts in, KV caches out.")
decode = _instance_command(Role.DECODE, "Serves a decode instance: pulls KV caches and decodes.")
colocated = _instance_command(Role.COLOCATED, "Serves a colocated instance of the contract: the reference.")
standard = _instance_command(Role.STANDARD, "Serves a standard engine, outside the contract: the control.")
