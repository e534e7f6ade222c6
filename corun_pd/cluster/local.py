"""A cluster of local processes: what `corun-pd up` runs, and tests, demo and verify."""

from corun_pd.cluster.command import Command, role_command
from corun_pd.cluster.preflight import check_cluster, free_port
from corun_pd.cluster.process import RoleProcess
from corun_pd.cluster.supervisor import Supervisor
from corun_pd.config import ClusterConfig

__all__ = ["LocalCluster"]


class LocalCluster(Supervisor):
    """Roles as child processes. Port 0 of the router takes a free one; `router_address` tells which."""

    def __init__(self, config: ClusterConfig, *, command: Command = role_command) -> None:
        super().__init__(config)
        self._command = command

    async def _start(self) -> None:
        check_cluster(self.config)
        router = self.config.router
        self.router_address = f"{router.host}:{router.port or free_port(router.host)}"
        folder = self._log_folder(self.config)
        roles: list[RoleProcess] = []
        self._roles = roles
        for name, role, instance in self._named():
            argv = self._command(role, instance, folder / "cluster.yaml", self.router_address)
            roles.append(await RoleProcess.start(name, argv, folder / f"{name}.log"))
