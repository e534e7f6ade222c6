"""The prompts of an engine: the queue, the started one, and the steps that the engine's policy takes."""

from collections import OrderedDict
from dataclasses import replace

from corun_pd.engine.policy import Candidate
from corun_pd.planner.job import Job
from corun_pd.planner.prefill_cost import IsolatedCost, PackedCost
from corun_pd.planner.timeline import Timeline

__all__ = ["Prompts"]


class Prompts:
    """`tokens` were computed in `steps` steps, `step_tokens` with their padding.

    `held_blocks` are those of the pool that started jobs have until their ends.
    """

    def __init__(self, cost: IsolatedCost | PackedCost, slots: int, blocks: int, busy: Timeline) -> None:
        self.steps = 0
        self.tokens = 0
        self.step_tokens = 0
        self.held_blocks = 0
        self._cost = cost
        self._policy = cost.policy()
        self._slots = slots
        self._blocks = blocks
        self._busy = busy
        self._waiting: OrderedDict[str, Job] = OrderedDict()
        self._partial: Job | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """The last in the queue."""
        self._waiting[job.candidate.key] = job

    def clear(self) -> None:
        """All prompts are lost, and so are the blocks."""
        self._waiting.clear()
        self._partial = None
        self.held_blocks = 0

    def computed(self, start_s: float, end_s: float) -> None:
        """A step took that time."""
        self._busy.add(start_s, end_s)

    def step(self, rows: int, patience: int) -> tuple[float, list[Job]] | None:
        """Takes the next step, beside `rows` that hold slots; None: the policy takes none.

        Gives its seconds and the jobs whose prompts are computed then.
        """
        partial = self._partial
        if partial is None and not self._waiting:
            return None
        shares = self._policy.next_step(
            None if partial is None else partial.candidate,
            (job.candidate for job in self._waiting.values()),
            self._slots - rows - (partial is not None),
            self._blocks - self.held_blocks,
            patience,
        )
        if not shares:
            return None
        done: list[Job] = []
        tokens = pairs = end = 0
        self._partial = None
        for key, count in ((share.key, share.tokens) for share in shares):
            if partial is not None and partial.candidate.key == key:
                job = partial
            else:
                job = self._waiting.pop(key)
                self.held_blocks += job.blocks
            seen: Candidate = job.candidate
            tokens += count
            pairs += count * seen.computed
            end = seen.computed + count
            if end == seen.prompt:
                done.append(job)
            else:
                job.candidate = replace(seen, computed=end, blocks=0)
                self._partial = job
        self.steps += 1
        self.tokens += tokens
        self.step_tokens += self._cost.width or tokens
        return self._cost.step_s(tokens, pairs, end), done
