"""`corun-pd up`: a cluster on this machine, or on the nodes of a Ray cluster."""

from pathlib import Path

import click

from corun_pd.cli.options import config_option
from corun_pd.cli.run import serve
from corun_pd.cluster.local import LocalCluster
from corun_pd.cluster.supervisor import Supervisor
from corun_pd.config import ClusterConfig, load_cluster
from corun_pd.errors import SetupError

__all__ = ["up"]


@click.command()
@config_option
@click.option("--port", type=click.IntRange(0, 65535), help="The router's port instead of the file's.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Where logs go instead of the file's.")
@click.option("--ray", "use_ray", is_flag=True, help="Let Ray place the roles, on one node or many.")
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help="The Ray cluster, which this machine is a node of; implies --ray.  [default: RAY_ADDRESS, or the "
    "one that runs here, or a new one]",
)
def up(
    config_file: Path, port: int | None, log_dir: Path | None, use_ray: bool, ray_address: str | None
) -> None:
    """Starts a router and instances, as local processes or by Ray; Ctrl-C ends them, a second one at once.

    Exit code 2 when a role does not get ready or ends; nothing is left running then.
    """
    config = load_cluster(config_file)
    if port is not None:
        config = config.model_copy(update={"router": config.router.model_copy(update={"port": port})})
    if log_dir is not None:
        config = config.model_copy(update={"log_dir": log_dir})
    serve(_up(_on_ray(config, ray_address) if use_ray or ray_address else LocalCluster(config)))


def _on_ray(config: ClusterConfig, address: str | None) -> Supervisor:
    try:
        from corun_pd.cluster.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise SetupError("--ray needs Ray: pip install 'corun-pd[ray]'") from error
    return RayCluster(config, address=address)


async def _up(cluster: Supervisor) -> None:
    click.echo(f"starting; logs are in {cluster.config.log_dir}")
    async with cluster:
        click.echo(f"ready: router at {cluster.router_address}, {len(cluster.pids) - 1} instances")
        for name, place in cluster.places.items():
            click.echo(f"  {name} on node {place}")
        await cluster.wait_for_failure()
