"""A cluster of prefill and decode instances."""

from corun_pd.core import Edge, Role
from corun_pd.planner.cluster import Cluster
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.decode import DecodeInstance
from corun_pd.planner.instances.prefill import PrefillInstance
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.record import Record
from corun_pd.planner.source import Source
from corun_pd.router.policy import pick_decode, pick_prefill

__all__ = ["Apart"]

#: Where a job runs, and the blocks that are reserved for it there.
_Place = tuple[PrefillInstance, int, DecodeInstance | None, int]


class Apart(Cluster):
    """Prefill and decode instances."""

    def __init__(self, source: Source, record: Record, layout: Layout, profile: Profile) -> None:
        super().__init__(source, record, layout, profile)
        self._prefill = [
            PrefillInstance(info, host=self, prompts=self._make_prompts())
            for info in layout.infos(Role.PREFILL)
        ]
        self._decode = [
            DecodeInstance(
                info,
                host=self,
                rows=self._make_rows(),
                transfer=profile.transfer,
                kv_bytes_per_token=profile.kv_bytes_per_token,
            )
            for info in layout.infos(Role.DECODE)
        ]
        self._places: dict[Job, _Place] = {}
        self._waits_for_decode = False

    def prompt_computed(self, job: Job, now_s: float) -> Events:
        """A prefill instance has the first token."""
        prefill, _, decode, _ = self._places[job]
        prefill.legs -= 1
        prefill.prompt_tokens -= job.prompt
        self._record.first_token(job, now_s)
        if decode is None or job.output == 1:
            return [*self._release_prompt(job, now_s), *self.finished(job, now_s)]
        self._record.edge(Edge.HANDED_OFF, job, now_s)
        return decode.submit(job, now_s)

    def prompt_pulled(self, job: Job, now_s: float) -> Events:
        """A decode instance has the KV cache, and the prefill instance its blocks back."""
        if self._waits_for_decode:  # room for prompts does not help the head of the queue
            return self._release_prompt(job, now_s)
        return [*self._release_prompt(job, now_s), *self._place(now_s)]

    def finished(self, job: Job, now_s: float) -> Events:
        """The last token is there."""
        _, _, decode, blocks = self._places.pop(job)
        if decode is not None:
            decode.legs -= 1
            decode.blocks -= blocks
        return self._end(job, now_s)

    def _release_prompt(self, job: Job, now_s: float) -> list[Event]:
        prefill, blocks, _, _ = self._places[job]
        prefill.blocks -= blocks
        return prefill.release(job, now_s)

    def _submit(self, job: Job, now_s: float) -> list[Event] | None:
        decode = None
        if job.demand.max_tokens > 1:
            decode = pick_decode(self._decode, job.demand, self._layout.lookahead)
            self._waits_for_decode = decode is None
            if decode is None:
                return None
        prefill = pick_prefill(self._prefill, job.demand)
        if prefill is None:
            return None
        prompt_blocks, blocks = prefill.info.blocks_for(job.prompt), 0
        prefill.legs += 1
        prefill.blocks += prompt_blocks
        prefill.prompt_tokens += job.prompt
        if decode is not None:
            blocks = decode.info.blocks_for(job.demand.total_tokens)
            decode.legs += 1
            decode.blocks += blocks
        self._places[job] = (prefill, prompt_blocks, decode, blocks)
        return prefill.submit(job, now_s)
