"""What every cluster does with its roles, wherever they run: waits for them, watches them, ends them.

    start ─► waiting until every instance is a member and the router serves ─► ready ─► stop
                 │                                                               │
                 └── a role ends, or ready_timeout_s passes: SetupError ◄── a role ends

Whichever way it ends, no process is left behind.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol, Self

import yaml

from corun_pd.cluster.watcher import Watcher
from corun_pd.config import ClusterConfig, InstanceConfig
from corun_pd.errors import SetupError

__all__ = ["SupervisedRole", "Supervisor", "role_file"]

POLL_S = 0.1

#: Roles that end together are noticed in any order, and within this time of each other. In seconds.
SETTLE_S = 0.1

#: What a role gets, beyond the time to drain, to close what it has open. In seconds.
CLOSE_S = 5.0


class SupervisedRole(Protocol):
    """A started role. The supervisor calls; `stop` is always its last call."""

    @property
    def name(self) -> str:
        """Its role and number, as `prefill-0`; the router's is `router`."""

    @property
    def pid(self) -> int:
        """Its process id, where it runs."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""

    async def wait(self) -> object:
        """Returns once it has ended."""

    def ended(self) -> str:
        """How it ended, for people; after `wait`."""

    def tail(self) -> str:
        """The last lines of its log, for people; names the file."""

    async def stop(self, grace_s: float) -> None:
        """Asks it to end, waits `grace_s` seconds, then kills it and all that it started."""


class Supervisor(ABC):
    """An asynchronous context manager: entered, the cluster is ready; left, it is gone.

    Entering raises SetupError (or ConfigError) that names the role, and its port, path or exit code, within
    `ready_timeout_s` of the roles' start. `router_address` is where clients call.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.router_address = ""
        self._roles: Sequence[SupervisedRole] = ()
        self._waits_for: set[str] = {"router"}

    async def __aenter__(self) -> Self:
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
        return {role.name: role.pid for role in self._roles}

    @property
    def places(self) -> dict[str, str]:
        """The nodes that the roles are on, for people, by name; empty where there is but one."""
        return {}

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
        roles, self._roles = self._roles, ()
        try:
            for group in (roles[:1], roles[1:]):
                await asyncio.gather(*(role.stop(grace_s) for role in group))
        except asyncio.CancelledError:
            # A second Ctrl-C: no more waiting.
            await asyncio.gather(*(role.stop(0) for role in roles))
            raise

    @abstractmethod
    async def _start(self) -> None:
        """Checks, sets `router_address`, and starts all of `_named()` into `_roles`, in that order."""

    def _named(self) -> Iterator[tuple[str, str, InstanceConfig | None]]:
        """Every role to start: its name, its role and its instance's configuration. The router is first."""
        yield "router", "router", None
        numbers: Counter[str] = Counter()
        for instance in self.config.instances:
            for number in range(instance.count):
                one = instance.one(number, self.config.engine.tensor_parallel_size)
                yield f"{instance.role}-{numbers[instance.role]}", instance.role, one
                numbers[instance.role] += 1

    def _log_folder(self, config: ClusterConfig) -> Path:
        """The folder for logs, made, with the configuration in force written into it."""
        folder = config.log_dir.absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cluster.yaml").write_text(role_file(config), encoding="utf-8")
        except OSError as error:
            raise SetupError(f"log_dir: {folder} cannot be written: {error.strerror}") from error
        return folder

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


def role_file(config: ClusterConfig) -> str:
    """The configuration as the roles read it: paths absolute, since the file lies in another folder."""
    absolute = config.model_copy(
        update={"model": config.model.absolute(), "log_dir": config.log_dir.absolute()}
    )
    return yaml.safe_dump(absolute.model_dump(mode="json"), sort_keys=False)
