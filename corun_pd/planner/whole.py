"""A cluster of colocated instances."""

from collections.abc import Sequence
from typing import cast

from corun_pd.core import Role
from corun_pd.planner.cluster import Cluster
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.colocated import ColocatedInstance
from corun_pd.planner.instances.steps import Instance
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.record import Record
from corun_pd.planner.source import Source
from corun_pd.router.policy import pick_decode

__all__ = ["Whole"]


class Whole(Cluster):
    """Colocated instances."""

    def __init__(self, source: Source, record: Record, layout: Layout, profile: Profile) -> None:
        super().__init__(source, record, layout, profile)
        self._colocated = [
            ColocatedInstance(info, host=self, prompts=self._make_prompts(), rows=self._make_rows())
            for info in layout.infos(Role.COLOCATED)
        ]
        self._places: dict[Job, ColocatedInstance] = {}

    def prompt_computed(self, job: Job, now_s: float) -> Events:
        """An instance has the first token, and goes on with the second."""
        self._record.first_token(job, now_s)
        return ()

    def prompt_pulled(self, job: Job, now_s: float) -> Events:
        """Nothing is pulled."""
        return ()

    def finished(self, job: Job, now_s: float) -> Events:
        """The last token is there."""
        place = self._places.pop(job)
        place.legs -= 1
        place.blocks -= place.info.blocks_for(job.demand.total_tokens)
        return self._end(job, now_s)

    def _instances(self) -> Sequence[Instance]:
        return list(self._colocated)

    def _pool_of(self, instance: Instance) -> list[Instance]:
        return cast(list[Instance], self._colocated)

    def _submit(self, job: Job, now_s: float) -> list[Event] | None:
        place = pick_decode(self._colocated, job.demand, self._layout.lookahead)
        if place is None:
            return None
        self._source.take()
        self._started(job, now_s)
        place.legs += 1
        place.blocks += place.info.blocks_for(job.demand.total_tokens)
        self._places[job] = place
        return place.submit(job, now_s)

    def _lose(self, instance: Instance, now_s: float) -> list[Event]:
        self._pool_of(instance).remove(instance)
        lost = [job for job, place in self._places.items() if place is instance]
        for job in lost:
            del self._places[job]
        return [*instance.fail(now_s), *(self._replay(job, now_s) for job in lost)]
