"""One role under Ray: an actor that runs its process on a node, and the supervisor's view of it.

The actor belongs to the process that runs the cluster, so Ray ends it with that process, or with its node;
and the role's lifeline is held by the actor's process, so the role ends with that. The log is written on
the node and copied to the supervisor as it grows.
"""

import asyncio
import contextlib
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from corun_pd.cluster.command import Command
from corun_pd.cluster.preflight import check_instance
from corun_pd.cluster.process import RoleProcess, last_lines
from corun_pd.config import InstanceConfig, load_cluster
from corun_pd.errors import SetupError

__all__ = ["RayRole", "RoleActor"]

#: How often an actor looks for what its role has logged, in seconds.
LOG_POLL_S: Final = 0.1

#: The most that it hands over at once.
LOG_BYTES: Final = 1 << 20

#: What an actor gets to answer, beyond the time that its role gets to end. In seconds.
ANSWER_S: Final = 5.0


class RoleActor:
    """Runs in a process of Ray's on the role's node. The supervisor calls place, start, read and stop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: RoleProcess | None = None

    async def place(self) -> tuple[str, str]:
        """Its node: Ray's id, and the IP address at which the other nodes reach it."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    async def start(
        self, role: str, instance: InstanceConfig | None, host: str, text: str, router: str, command: Command
    ) -> int:
        """Starts the process, with `text` as its cluster file; returns its id here.

        Raises SetupError, or ConfigError that names the place, when this node cannot run it.
        """
        folder = Path(tempfile.mkdtemp(prefix=f"corun-pd-{self._name}-"))
        try:
            file = folder / "cluster.yaml"
            file.write_text(text, encoding="utf-8")
            if instance is not None:
                check_instance(load_cluster(file), instance)
                instance = instance.model_copy(update={"host": host})
            argv = command(role, instance, file, router)
            self._process = await RoleProcess.start(self._name, argv, folder / "log")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return self._process.pid

    async def read(self, offset: int) -> tuple[bytes, str]:
        """Waits for log beyond `offset` bytes; when all of it was read and the role has ended, says how."""
        assert self._process is not None
        while True:
            # Looked at first: what it wrote before its end is read below.
            ended = "" if self._process.is_running else self._process.ended()
            with self._process.log.open("rb") as source:
                source.seek(offset)
                if chunk := source.read(LOG_BYTES):
                    return chunk, ""
            if ended:
                shutil.rmtree(self._process.log.parent, ignore_errors=True)
                return b"", ended
            await asyncio.sleep(LOG_POLL_S)

    async def stop(self, grace_s: float) -> None:
        """As RoleProcess.stop."""
        if self._process is not None:
            await self._process.stop(grace_s)


class RayRole:
    """A SupervisedRole that an actor runs. `log` is the supervisor's copy; `node` is where, for people."""

    def __init__(self, name: str, log: Path, actor: Any) -> None:
        self.name = name
        self.log = log
        self.node = "a node that Ray has not told yet"
        self.pid = 0
        self._actor = actor
        self._follower: asyncio.Task[str] | None = None

    async def start(
        self,
        role: str,
        instance: InstanceConfig | None,
        text: str,
        router: str,
        command: Command,
        nodes: dict[str, str],
    ) -> None:
        """Starts it. Raises SetupError that names role and node when the node cannot run it, or is lost."""
        try:
            self.log.write_bytes(b"")
            node, host = await self._actor.place.remote()
            self.node = nodes.get(node, node)
            self.pid = await self._actor.start.remote(role, instance, host, text, router, command)
        except OSError as error:
            raise SetupError(f"{self.name} cannot be started: {error}", role=self.name) from error
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else None
            if cause is not None and not isinstance(cause, SetupError):
                raise
            problem = cause.message if isinstance(cause, SetupError) else _reason(error)
            raise SetupError(f"{self.name} on node {self.node}: {problem}", role=self.name) from error
        self._follower = asyncio.create_task(self._follow(), name=f"log of {self.name}")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as this process knows."""
        return self._follower is None or not self._follower.done()

    async def wait(self) -> None:
        """Returns once it has ended, or its actor is lost; its log has been copied by then."""
        if self._follower is not None:
            await asyncio.wait((self._follower,))

    def ended(self) -> str:
        """How it ended and on which node; after `wait`."""
        assert self._follower is not None
        return f"on node {self.node} {self._follower.result()}"

    def tail(self) -> str:
        """The last lines of its log, indented; names the file."""
        return last_lines(self.log)

    async def stop(self, grace_s: float) -> None:
        """Asks it to end, waits `grace_s` seconds, then kills it, all that it started and the actor."""
        if self._follower is not None:
            # An actor that is lost, or does not answer, takes its role along.
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(grace_s + ANSWER_S):
                    await self._actor.stop.remote(grace_s)
                    await asyncio.wait((self._follower,))
            self._follower.cancel()
        ray.kill(self._actor)

    async def _follow(self) -> str:
        """Copies the log until the role has ended; returns how it did."""
        offset = 0
        with self.log.open("wb", buffering=0) as copy:
            while True:
                try:
                    chunk, ended = await self._actor.read.remote(offset)
                except ActorUnavailableError:
                    # Out of reach, and nothing more is known. Asked again, Ray says that it is back or dead.
                    await asyncio.sleep(1.0)
                    continue
                except RayActorError as error:
                    return f"is lost: {_reason(error)}"
                if ended:
                    return str(ended)
                offset += len(chunk)
                # A full disk here costs lines of the log, not the cluster.
                with contextlib.suppress(OSError):
                    copy.write(chunk)


def _reason(error: RayError) -> str:
    """The last line of what Ray says, where the cause is, without its hints."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[-1].partition(" Some common causes")[0], 300)
