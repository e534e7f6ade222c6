"""What instances tell the cluster that they are part of."""

from collections.abc import Iterable
from typing import Protocol

from corun_pd.planner.events import Event
from corun_pd.planner.job import Job

__all__ = ["Events", "Host"]

Events = Iterable[Event]


class Host(Protocol):
    """The simulated router. Instances call it at the moment in question; it gives what follows."""

    def prompt_computed(self, job: Job, now_s: float) -> Events:
        """A prefill instance has the first token."""

    def prompt_pulled(self, job: Job, now_s: float) -> Events:
        """A decode instance has the KV cache, and the prefill instance its blocks back."""

    def decode_started(self, job: Job, now_s: float) -> None:
        """The job is a row from its next step on."""

    def finished(self, job: Job, now_s: float) -> Events:
        """The last token is there."""
