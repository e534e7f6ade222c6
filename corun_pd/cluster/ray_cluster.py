"""A cluster whose roles Ray places: what `corun-pd up --ray` runs, on one node or many.

    connect ─► placement group: one bundle an instance ─► one actor a role ─► as every cluster (supervisor.py)
                   │
                   └── place_timeout_s passes: SetupError, with what was asked for and what the nodes have

The router runs on this process's own node, so that clients know its address, and takes no resources; it
and the instances are reached at their nodes' IP addresses, whatever hosts the configuration names.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from corun_pd.cluster.command import Command, role_command
from corun_pd.cluster.packages import installed_packages
from corun_pd.cluster.placement import Bundle, bundles, node_names, not_placed
from corun_pd.cluster.preflight import check_router, free_port
from corun_pd.cluster.ray_role import RayRole, RoleActor
from corun_pd.cluster.supervisor import Supervisor, role_file
from corun_pd.config import ClusterConfig
from corun_pd.errors import ConfigError, SetupError

__all__ = ["RayCluster"]

T = TypeVar("T")

#: How long the head of a Ray cluster gets to answer: `ray.init` itself tries for minutes. In seconds.
CONNECT_S: Final = 5.0

#: How long one look at a placement group takes, and so a Ctrl-C during the wait. In seconds.
PLACE_POLL_S: Final = 0.2


class RayCluster(Supervisor):
    """Roles as Ray actors.

    `address` is that of a Ray cluster that this machine is a node of; None takes RAY_ADDRESS or the one
    that `ray start` began here, and starts one for itself when there is none. A process that is connected to
    Ray already stays so.
    """

    def __init__(
        self, config: ClusterConfig, *, address: str | None = None, command: Command = role_command
    ) -> None:
        super().__init__(config)
        self._address = address
        self._command = command
        # One thread for all calls of Ray that block: what Ray starts is killed when the thread that started
        # it ends (PR_SET_PDEATHSIG), so that thread must live as long as the cluster.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._is_guest = False
        self._group: PlacementGroup | None = None
        self._placed: list[RayRole] = []

    @property
    def places(self) -> dict[str, str]:
        """The roles' nodes, for people, by the roles' names."""
        return {role.name: role.node for role in self._placed}

    async def stop(self, grace_s: float) -> None:
        """Ends the router, then the instances, each after at most `grace_s` seconds; then leaves Ray."""
        try:
            await super().stop(grace_s)
        finally:
            await self._call(self._leave)
            self._thread.shutdown(wait=False)

    async def _start(self) -> None:
        for instance in self.config.instances:
            if instance.gpus is not None:
                raise ConfigError(
                    f"instances: {instance.role}: gpus {list(instance.gpus)}: Ray deals out GPUs itself; say "
                    "how many in resources"
                )
        await self._connect()
        here: str = ray.get_runtime_context().get_node_id()
        host: str = ray.util.get_node_ip_address()
        router = self.config.router
        if router.host not in ("0.0.0.0", "[::]"):
            router = router.model_copy(update={"host": host})
        config = self.config.model_copy(update={"router": router})
        check_router(config)
        address = self.router_address = f"{host}:{router.port or free_port(host)}"
        folder = self._log_folder(config)
        asked = bundles(config, gpus="vllm" in installed_packages())
        group = await self._place(config, asked)
        self._roles = self._placed = [
            RayRole(name, folder / f"{name}.log", _actor(name, here, group, asked, number - 1))
            for number, (name, _, _) in enumerate(self._named())
        ]
        nodes = node_names(await self._call(ray.nodes))
        text = role_file(config)
        try:
            async with asyncio.timeout(config.ready_timeout_s):
                await asyncio.gather(
                    *(
                        started.start(role, instance, text, address, self._command, nodes)
                        for started, (_, role, instance) in zip(self._placed, self._named(), strict=True)
                    )
                )
        except TimeoutError as error:
            late = ", ".join(f"{role.name} on node {role.node}" for role in self._placed if not role.pid)
            raise SetupError(f"after {config.ready_timeout_s:g} s Ray has not started {late}") from error

    async def _connect(self) -> None:
        self._is_guest = ray.is_initialized()
        if self._is_guest:
            return
        # What is started for this cluster alone tells nobody of it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            await self._call(_init, self._address)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
            where = self._address or os.environ.get("RAY_ADDRESS") or "of this machine"
            problem = lines[0] if lines else type(error).__name__
            raise SetupError(f"the Ray cluster {where} cannot be used: {problem}") from error
        if threading.current_thread() is threading.main_thread():
            # Ray's core has taken SIGTERM for itself; whoever had it before gets it back.
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    async def _place(self, config: ClusterConfig, asked: list[Bundle]) -> PlacementGroup:
        group: PlacementGroup = await self._call(placement_group, asked, config.ray.strategy)
        self._group = group
        deadline = asyncio.get_running_loop().time() + config.ray.place_timeout_s
        while not await self._call(group.wait, PLACE_POLL_S):
            if asyncio.get_running_loop().time() > deadline:
                nodes, free = await self._call(ray.nodes), await self._call(ray.available_resources)
                raise SetupError(not_placed(config, asked, nodes, free))
        return group

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls what blocks, in the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _leave(self) -> None:
        if self._group is not None:
            with contextlib.suppress(RayError):
                remove_placement_group(self._group)
        if not self._is_guest:
            ray.shutdown()


def _init(address: str | None) -> None:
    """`ray.init`, but for its minutes of trying where nobody listens."""
    found = canonicalize_bootstrap_address(address)
    if found is not None:
        host, _, port = found.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    ray.init(
        address=found or "local",
        include_dashboard=None if found else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _actor(name: str, here: str, group: PlacementGroup, asked: list[Bundle], bundle: int) -> Any:
    """An actor for a role; `bundle` is the instance's place in the group, negative for the router."""
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0}
    if bundle < 0:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
    else:
        # Ray shows a process the GPUs that it asks for; all else is set aside by the bundle.
        options = {"num_cpus": asked[bundle].get("CPU", 0), "num_gpus": asked[bundle].get("GPU", 0)}
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
    return ray.remote(RoleActor).options(**options).remote(name)
