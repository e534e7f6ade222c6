"""The KV handoff in the router's hand."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from corun_pd.core import KvHandoff, prompt_digest
from corun_pd.errors import HandoffRejected
from corun_pd.router.admission import Reservation
from corun_pd.router.fleet import Member

__all__ = ["Ticket"]

#: A ticket with less of its lease left than this is not passed on, in seconds: the pull takes time too.
LEASE_MARGIN_S: Final = 1.0


class Ticket:
    """Pulled by a decode instance, or released on the way out."""

    def __init__(
        self,
        handoff: KvHandoff | None,
        prefill: Member,
        room: Reservation[Member],
        on_pulled: Callable[[], None],
    ) -> None:
        """`on_pulled` is called once the KV cache is known to have been pulled."""
        self._handoff = handoff
        self._on_pulled = on_pulled
        self._prefill = prefill
        self._room = room
        self._received_at = time.monotonic()
        self._is_open = handoff is not None

    def show(self, prompt: Sequence[int]) -> KvHandoff:
        """The ticket, with the time that it was held taken off its lease.

        Raises HandoffRejected when there is none, when its lease is nearly over, or when it is for another
        prompt or contract.
        """
        handoff = self._handoff
        if handoff is None:
            raise HandoffRejected("the prefill instance gave neither an end nor a handoff")
        left_s = handoff.lease_s - (time.monotonic() - self._received_at)
        problem = None
        if handoff.token_count != len(prompt):
            problem = f"it holds {handoff.token_count} tokens of a prompt of {len(prompt)}"
        elif handoff.prompt_digest != prompt_digest(prompt):
            problem = "it was made for another prompt"
        elif handoff.fingerprint != self._prefill.info.fingerprint:
            problem = f"it was made under contract {handoff.fingerprint}"
        elif left_s < LEASE_MARGIN_S:
            problem = f"{left_s:.3f} s of its lease are left; a pull needs {LEASE_MARGIN_S} s"
        if problem is not None:
            raise HandoffRejected(f"handoff {handoff.handoff_id}: {problem}", handoff_id=handoff.handoff_id)
        return replace(handoff, lease_s=left_s)

    def pulled(self) -> None:
        """A decode instance has the KV cache; the prefill instance's blocks are free."""
        if self._is_open:
            self._is_open = False
            self._room.prompt_pulled()
            self._on_pulled()

    def close(self) -> None:
        """Releases a handoff that has not been pulled. Doing it again does nothing."""
        if self._is_open and self._handoff is not None:
            self._prefill.prefill.release(self._handoff.handoff_id)
            self._is_open = False
        self._room.prompt_pulled()
