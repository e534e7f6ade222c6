"""What instances share: two engines on the hardware threads of one core, or on one GPU, slow each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corun_pd.planner.cost import Beside
from corun_pd.planner.events import Event

if TYPE_CHECKING:
    from corun_pd.planner.instances.steps import Instance

__all__ = ["Device"]


class Device:
    """A step takes `beside` times as long as alone while any other of `members` computes."""

    def __init__(self, beside: Beside, members: Sequence["Instance"]) -> None:
        self._beside = beside
        self._members = members
        self._computing: set[Instance] = set()
        for member in members:
            member.device = self

    def slowness(self, member: "Instance", *, decodes: bool) -> float:
        """How many times as long as alone a decode step, or a prefill step, of the member takes now."""
        others = len(self._computing) - (member in self._computing)
        if not others:
            return 1.0
        return self._beside.decode if decodes else self._beside.prefill

    def changed(self, member: "Instance", now_s: float) -> list[Event]:
        """The member may compute now or no more; what the others have planned comes at other times then."""
        computes = member.computes
        if computes == (member in self._computing):
            return []
        (self._computing.add if computes else self._computing.remove)(member)
        return [event for other in self._members if other is not member for event in other.repace(now_s)]
