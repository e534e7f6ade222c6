"""The fake KV transfer: a line over TCP where a real engine moves blocks by NIXL.

A decode engine sends `engine_id handoff_id blocks_digest` and gets `ok digest`, the digest of the prompt
whose KV cache the blocks hold, or `gone reason`. Lines are answered in order, so one connection per pair
of engines carries every pull.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from corun_pd.core import KvHandoff, prompt_digest
from corun_pd.errors import HandoffRejected

__all__ = ["PullClient", "PullServer", "blocks_digest"]

#: Answers a pull: (engine_id, handoff_id, blocks digest) to the prompt's digest, or HandoffRejected.
Take = Callable[[str, str, str], bytes]


def blocks_digest(groups: tuple[tuple[int, ...], ...]) -> str:
    """A digest of block lists, in hex: what ties a ticket to the very blocks it was issued for."""
    return ".".join(prompt_digest(group).hex() for group in groups) or "none"


class PullServer:
    """The prefill side."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, host: str) -> int:
        """Listens on a free port of `host` and returns it."""
        self._server = await asyncio.start_server(self._answer, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stops listening and drops every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._connections:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while line := await reader.readline():
                writer.write(self._reply(line))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # The peer or this engine went away; what was not taken stays until its lease ends.
        finally:
            self._connections.discard(writer)
            writer.close()

    def _reply(self, line: bytes) -> bytes:
        try:
            engine_id, handoff_id, blocks = line.decode().split()
        except ValueError:
            return b"gone malformed pull\n"
        try:
            return b"ok " + self._take(engine_id, handoff_id, blocks).hex().encode() + b"\n"
        except HandoffRejected as error:
            return f"gone {error.message}\n".encode()


class PullClient:
    """The decode side: one connection per prefill engine, opened at the first pull."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], asyncio.Task[_Peer]] = {}

    async def pull(self, handoff: KvHandoff) -> bytes:
        """The digest of the prompt whose KV cache was pulled. Raises HandoffRejected."""
        address = (handoff.host, handoff.port)
        peer_task = self._peers.get(address)
        if peer_task is None or (peer_task.done() and _is_lost(peer_task)):
            peer_task = self._peers[address] = asyncio.create_task(_Peer.connect(*address))
        try:
            peer = await asyncio.shield(peer_task)
            answer = await peer.ask(
                f"{handoff.engine_id} {handoff.handoff_id} {blocks_digest(handoff.block_groups)}"
            )
        except OSError as error:
            raise HandoffRejected(
                f"the prefill engine at {handoff.host}:{handoff.port} does not answer: {error}",
                handoff_id=handoff.handoff_id,
            ) from error
        verdict, _, rest = answer.partition(" ")
        if verdict != "ok":
            raise HandoffRejected(rest, handoff_id=handoff.handoff_id)
        return bytes.fromhex(rest)

    def close(self) -> None:
        """Drops every connection."""
        for task in self._peers.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()


class _Peer:
    """One connection; answers come in the order of the questions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked: deque[asyncio.Future[str]] = deque()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, host: str, port: int) -> "_Peer":
        return cls(*await asyncio.open_connection(host, port))

    @property
    def is_lost(self) -> bool:
        return self._reading.done()

    async def ask(self, line: str) -> str:
        if self.is_lost:
            raise ConnectionResetError("the connection was lost")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._writer.write(line.encode() + b"\n")
        return await answer

    def close(self) -> None:
        self._reading.cancel()

    async def _read(self) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while line := await self._reader.readline():
                    answer = self._asked.popleft()
                    if not answer.done():  # The leg may have been cancelled since it asked.
                        answer.set_result(line.decode().strip())
        finally:
            self._writer.close()
            for answer in self._asked:
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the connection was lost"))


def _is_lost(task: "asyncio.Task[_Peer]") -> bool:
    return task.cancelled() or task.exception() is not None or task.result().is_lost
