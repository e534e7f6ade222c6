"""A cluster of prefill and decode instances."""

from collections.abc import Sequence
from itertools import chain
from typing import cast

from corun_pd.core import Edge, Role
from corun_pd.planner.cluster import Cluster
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.decode import DecodeInstance
from corun_pd.planner.instances.prefill import PrefillInstance
from corun_pd.planner.instances.steps import Instance
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.record import Record
from corun_pd.planner.source import Source
from corun_pd.router.policy import most_together, pick_decode, pick_prefill, room_for

__all__ = ["Apart"]

#: Stands for a line of any length before a decode instance's slots, which siblings may stand in.
_ANY_LINE = 1 << 30


class _Prompt:
    """A prompt on a prefill instance; each of `samples` goes on from it. `left` of them need its blocks."""

    __slots__ = ("blocks", "held", "is_computed", "left", "life", "prefill", "samples")

    def __init__(self, prefill: PrefillInstance, samples: list[Job]) -> None:
        self.prefill = prefill
        self.life = prefill.lives
        self.samples = samples
        self.left = len(samples)
        self.is_computed = False
        self.blocks = prefill.info.blocks_for(samples[0].prompt)  # the router's
        self.held = 0  # the engine's


class _Place:
    """Where a sample runs. `decode` is None when its first token is known to be the last."""

    __slots__ = ("blocks", "decode", "is_pulled", "life", "prompt")

    def __init__(self, prompt: _Prompt, decode: DecodeInstance | None, job: Job) -> None:
        self.prompt = prompt
        self.decode = decode
        self.is_pulled = False
        self.blocks = self.life = 0
        if decode is not None:
            self.life = decode.lives
            self.blocks = decode.info.blocks_for(job.demand.total_tokens)
            decode.legs += 1
            decode.blocks += self.blocks

    def close(self) -> None:
        """Gives the room on the decode instance back."""
        if self.decode is not None and self.decode.lives == self.life:
            self.decode.legs -= 1
            self.decode.blocks -= self.blocks


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
        """A prefill instance has the first tokens of all samples of the prompt."""
        prompt = self._places[job].prompt
        prompt.is_computed = True
        prompt.prefill.legs -= 1
        prompt.prefill.prompt_tokens -= job.prompt
        events: list[Event] = []
        for sample in prompt.samples:
            decode = self._places[sample].decode
            self._record.first_token(sample, now_s)
            if decode is None or sample.output == 1:
                events += self._left(prompt, now_s)
                events += self.finished(sample, now_s)
                continue
            self._record.edge(Edge.HANDED_OFF, sample, now_s)
            if decode.lives == self._places[sample].life:
                events += decode.submit(sample, now_s)
            else:
                events += self._lost(sample, now_s)
        return events

    def prompt_pulled(self, job: Job, now_s: float) -> Events:
        """A decode instance has the KV cache, and the prefill instance its blocks back with the last pull."""
        place = self._places[job]
        place.is_pulled = True
        events = self._left(place.prompt, now_s)
        if self._waits_for_decode:  # room for prompts does not help the head of the queue
            return events
        return events + self._place(now_s)

    def finished(self, job: Job, now_s: float) -> Events:
        """The last token is there."""
        self._places.pop(job).close()
        return self._end(job, now_s)

    def _left(self, prompt: _Prompt, now_s: float) -> list[Event]:
        """A sample needs the prompt's blocks no more."""
        prompt.left -= 1
        if prompt.left or prompt.prefill.lives != prompt.life:
            return []
        prompt.prefill.blocks -= prompt.blocks
        return prompt.prefill.release(prompt.held, now_s)

    def _instances(self) -> Sequence[Instance]:
        return [*self._prefill, *self._decode]

    def _pool_of(self, instance: Instance) -> list[Instance]:
        is_prefill = isinstance(instance, PrefillInstance)
        return cast(list[Instance], self._prefill if is_prefill else self._decode)

    def _submit(self, job: Job, now_s: float) -> list[Event] | None:
        lookahead, demand, siblings = self._layout.lookahead, job.demand, job.siblings
        count, decode = 1 + len(siblings), None
        if demand.max_tokens > 1:
            decode = pick_decode(self._decode, demand, lookahead)
            if decode is not None and siblings:
                count = min(count, most_together(self._decode, demand))
                if room_for(self._decode, demand) < count:
                    decode = None
            self._waits_for_decode = decode is None
            if decode is None:
                return None
        prefill = pick_prefill(self._prefill, demand)
        if prefill is None:
            return None
        self._source.take()
        samples = [job, *siblings[: count - 1]] if siblings else [job]
        prompt = _Prompt(prefill, samples)
        prefill.legs += 1
        prefill.blocks += prompt.blocks
        prefill.prompt_tokens += job.prompt
        for sample in samples:
            if sample is not job and decode is not None:
                decode = pick_decode(self._decode, demand, _ANY_LINE)
            self._places[sample] = _Place(prompt, decode, sample)
            self._started(sample, now_s)
        rest, job.siblings = siblings[count - 1 :], []
        if rest:  # the first of those that found no room asks for the others
            rest[0].siblings = rest[1:]
            self._source.requeue(rest[0])
        events = prefill.submit(job, now_s)
        prompt.held = job.blocks
        return events

    def _lose(self, instance: Instance, now_s: float) -> list[Event]:
        self._pool_of(instance).remove(instance)
        if isinstance(instance, PrefillInstance):
            lost = [job for job, place in self._places.items() if self._hangs_on(place, instance)]
        else:  # samples whose prompts are under way go on until they are handed off
            lost = [
                job
                for job, place in self._places.items()
                if place.decode is instance and place.life == instance.lives and place.prompt.is_computed
            ]
        events = instance.fail(now_s)
        gone = set(lost)
        for decode in self._decode:
            events += decode.drop(gone, now_s)
        return [*events, *chain.from_iterable(self._lost(job, now_s) for job in lost)]

    def _hangs_on(self, place: _Place, prefill: Instance) -> bool:
        """Whether the sample still needs what is on the prefill instance."""
        return place.prompt.prefill is prefill and place.prompt.life == prefill.lives and not place.is_pulled

    def _lost(self, job: Job, now_s: float) -> list[Event]:
        """A fault ended the sample's run: what it holds on instances that live is given back."""
        place = self._places.pop(job)
        place.close()
        events = [] if place.is_pulled else self._left(place.prompt, now_s)
        return [*events, self._replay(job, now_s)]
