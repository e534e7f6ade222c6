"""The prefill side's open handoffs: each holds its blocks until it is pulled, released or expired."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corun_pd.config import EngineConfig
from corun_pd.core import KvHandoff, prompt_digest
from corun_pd.engine.fake.faults import FakeFaults
from corun_pd.engine.fake.side_channel import blocks_digest
from corun_pd.errors import HandoffRejected

__all__ = ["Handoffs"]


@dataclass(frozen=True, slots=True)
class _Open:
    ticket: KvHandoff
    blocks: tuple[int, ...]
    expiry: asyncio.TimerHandle


class Handoffs:
    """Single use: whatever ends a handoff takes it out and gives its blocks back, once."""

    def __init__(
        self,
        engine_id: str,
        config: EngineConfig,
        free: Callable[[tuple[int, ...]], None],
        faults: FakeFaults,
    ) -> None:
        self._engine_id = engine_id
        self._lease_s = config.lease_s
        self._ranks = config.tensor_parallel_size
        self._free = free
        self._faults = faults
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def issue(
        self,
        name: str,
        prompt: Sequence[int],
        blocks: tuple[int, ...],
        fingerprint: str,
        host: str,
        port: int,
    ) -> KvHandoff:
        """A ticket named `name` for the KV cache of `prompt` in `blocks`, which are now the handoff's."""
        ticket = KvHandoff(
            handoff_id=name,
            engine_id=self._engine_id,
            host=host,
            port=port,
            block_groups=(blocks,),
            token_count=len(prompt),
            prompt_digest=prompt_digest(prompt),
            fingerprint=fingerprint,
            lease_s=self._lease_s,
            tensor_parallel_size=self._ranks,
        )
        expiry = asyncio.get_running_loop().call_later(self._lease_s, self.release, name)
        self._open[name] = _Open(ticket, blocks, expiry)
        if self._faults.drop_handoffs:
            self.release(name)
        return ticket

    def take(self, engine_id: str, handoff_id: str, blocks: str) -> bytes:
        """Ends a handoff by its pull and gives the digest of its prompt. Raises HandoffRejected."""
        if engine_id != self._engine_id:
            raise HandoffRejected(f"this is engine {self._engine_id}, not {engine_id}")
        found = self._open.get(handoff_id)
        if found is None:
            raise HandoffRejected(f"handoff {handoff_id} is unknown here: used, released or expired")
        if blocks != blocks_digest(found.ticket.block_groups):
            raise HandoffRejected(f"handoff {handoff_id} was issued for other blocks")
        self.release(handoff_id)
        return prompt_digest([0]) if self._faults.corrupt_handoffs else found.ticket.prompt_digest

    def release(self, handoff_id: str) -> None:
        """Ends a handoff. One that is gone is ignored."""
        if (found := self._open.pop(handoff_id, None)) is not None:
            found.expiry.cancel()
            self._free(found.blocks)

    def close(self) -> None:
        """Ends every handoff."""
        for handoff_id in list(self._open):
            self.release(handoff_id)
