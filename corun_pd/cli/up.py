"""`corun-pd up`: a cluster on this machine."""

from pathlib import Path

import click

from corun_pd.cli.options import config_option
from corun_pd.cli.run import serve
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, load_cluster

__all__ = ["up"]


@click.command()
@config_option
@click.option("--port", type=click.IntRange(0, 65535), help="The router's port instead of the file's.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Where logs go instead of the file's.")
def up(config_file: Path, port: int | None, log_dir: Path | None) -> None:
    """Starts a router and instances as local processes; Ctrl-C ends them all, a second one at once.

    Exit code 2 when a role does not get ready or ends; nothing is left running then.
    """
    config = load_cluster(config_file)
    if port is not None:
        config = config.model_copy(update={"router": config.router.model_copy(update={"port": port})})
    if log_dir is not None:
        config = config.model_copy(update={"log_dir": log_dir})
    serve(_up(config))


async def _up(config: ClusterConfig) -> None:
    click.echo(f"starting; logs are in {config.log_dir}")
    async with LocalCluster(config) as cluster:
        click.echo(f"ready: router at {cluster.router_address}, {len(cluster.pids) - 1} instances")
        await cluster.wait_for_failure()
