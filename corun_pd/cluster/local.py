"""A cluster of local processes: what `corun-pd up` runs, and tests, demo and verify.

    start ─► waiting until every instance is a member and the router serves ─► ready ─► stop
                 │                                                               │
                 └── a role ends, or ready_timeout_s passes: SetupError ◄── a role ends

Whichever way it ends, no process is left behind.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import yaml

from corun_pd.cluster.preflight import check_cluster, free_port
from corun_pd.cluster.process import RoleProcess, python_module
from corun_pd.cluster.watcher import Watcher
from corun_pd.config import ClusterConfig, InstanceConfig
from corun_pd.errors import SetupError

__all__ = ["Command", "LocalCluster", "role_command"]

POLL_S = 0.1

#: Roles that end together are noticed in any order, and within this time of each other. In seconds.
SETTLE_S = 0.1

#: What a role gets, beyond the time to drain, to close what it has open. In seconds.
CLOSE_S = 5.0

#: The command line of a role: its role ("router" or a Role), the instance's part of the configuration
#: (None for the router), the cluster file and the router's address.
Command = Callable[[str, InstanceConfig | None, Path, str], Sequence[str]]


def role_command(role: str, instance: InstanceConfig | None, file: Path, router: str) -> Sequence[str]:
    """The role as a command of this package, supervised."""
    options = ["--config", str(file), "--supervised"]
    if instance is None:
        options += ["--port", router.rpartition(":")[2]]
    else:
        options += ["--router", router, "--host", instance.host]
        if instance.cores is not None:
            options += ["--cores", ",".join(str(core) for core in instance.cores)]
        if instance.gpus is not None:
            options += ["--gpus", ",".join(str(gpu) for gpu in instance.gpus)]
    return python_module("corun_pd.cli.main", "--log-level", "info", role, *options)


class LocalCluster:
    """An asynchronous context manager: entered, the cluster is ready; left, it is gone.

    Port 0 of the router takes a free one; `router_address` tells which. Entering raises SetupError (or
    ConfigError) that names the role, and its port, path or exit code, within `ready_timeout_s`.
    """

    def __init__(self, config: ClusterConfig, *, command: Command = role_command) -> None:
        self.config = config
        self.router_address = ""
        self._command = command
        self._roles: list[RoleProcess] = []
        self._waits_for: set[str] = {"router"}

    async def __aenter__(self) -> Self:
        check_cluster(self.config)
        router = self.config.router
        self.router_address = f"{router.host}:{router.port or free_port(router.host)}"
        try:
            await self._start()
            await self._until_ready()
        except BaseException:
            await self.stop(grace_s=0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A failure has broken what is under way already; there is nothing to drain.
        drains = error is None or isinstance(error, asyncio.CancelledError)
        await self.stop(self.config.drain_timeout_s + CLOSE_S if drains else 0)

    @property
    def pids(self) -> dict[str, int]:
        """The roles' process ids, by name."""
        return {role.name: role.process.pid for role in self._roles}

    async def wait_for_failure(self) -> NoReturn:
        """Returns never; raises SetupError when a role ends."""
        exits = {asyncio.create_task(role.wait()): role for role in self._roles}
        try:
            await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(SETTLE_S)
        finally:
            for task in exits:
                task.cancel()
        # In the order of start: a router that fails takes instances down with it.
        role = next(role for role in self._roles if not role.is_running)
        raise SetupError(f"{role.name} {role.ended()}; {role.tail()}", role=role.name)

    async def stop(self, grace_s: float) -> None:
        """Ends the router, then the instances, each after at most `grace_s` seconds."""
        roles, self._roles = self._roles, []
        try:
            for group in (roles[:1], roles[1:]):
                await asyncio.gather(*(role.stop(grace_s) for role in group))
        except asyncio.CancelledError:
            # A second Ctrl-C: no more waiting.
            await asyncio.gather(*(role.stop(0) for role in roles))
            raise

    async def _start(self) -> None:
        folder = self.config.log_dir.absolute()
        file = folder / "cluster.yaml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(_as_yaml(self.config), encoding="utf-8")
        except OSError as error:
            raise SetupError(f"log_dir: {folder} cannot be written: {error.strerror}") from error
        await self._start_role("router", "router", None, file)
        numbers: Counter[str] = Counter()
        for instance in self.config.instances:
            for number in range(instance.count):
                name = f"{instance.role}-{numbers[instance.role]}"
                numbers[instance.role] += 1
                one = instance.one(number, self.config.engine.tensor_parallel_size)
                await self._start_role(name, instance.role, one, file)

    async def _start_role(self, name: str, role: str, instance: InstanceConfig | None, file: Path) -> None:
        argv = self._command(role, instance, file, self.router_address)
        self._roles.append(await RoleProcess.start(name, argv, file.parent / f"{name}.log"))

    async def _until_ready(self) -> None:
        failure = asyncio.create_task(self.wait_for_failure())
        ready = asyncio.create_task(self._poll())
        try:
            done, _ = await asyncio.wait(
                (failure, ready), timeout=self.config.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise self._not_ready()
            await (failure if failure in done else ready)
        finally:
            failure.cancel()
            ready.cancel()

    async def _poll(self) -> None:
        """Returns once the router serves and every instance is a member; notes which roles it waits for."""
        wanted = Counter(instance.role for instance in self.config.instances for _ in range(instance.count))
        async with Watcher(self.router_address) as watcher:
            while True:
                members = await watcher.member_roles()
                self._waits_for = {"router"} if members is None else set(wanted - members)
                if not self._waits_for and await watcher.is_serving():
                    return
                await asyncio.sleep(POLL_S)

    def _not_ready(self) -> SetupError:
        # Which instances of a role have joined, its name does not tell; their logs do.
        late = [role for role in self._roles if role.name.partition("-")[0] in self._waits_for]
        lines = "; ".join(f"{role.name} is not ready; {role.tail()}" for role in late or self._roles[:1])
        return SetupError(f"after {self.config.ready_timeout_s:g} s {lines}")


def _as_yaml(config: ClusterConfig) -> str:
    """The configuration as the roles read it: paths absolute, since the file lies in the log folder."""
    absolute = config.model_copy(
        update={"model": config.model.absolute(), "log_dir": config.log_dir.absolute()}
    )
    return yaml.safe_dump(absolute.model_dump(mode="json"), sort_keys=False)
