"""The rows of a fixed-shape decode step, advanced many steps at a time.

A step costs the same whatever its rows hold, but for the KV tokens that are read, and these grow by one a
row and step. So while no row comes or goes, k steps take k·base + slope·(k·kv + rows·k(k-1)/2) seconds;
what rows cost besides is in the base.
"""

import heapq
import math
from itertools import count

from corun_pd.planner.cost import StepCost
from corun_pd.planner.job import Job
from corun_pd.planner.timeline import Timeline

__all__ = ["Rows"]


class Rows:
    """Rows change only between steps. `now_s` is when the last step ended, in the instance's own time.

    `steps` is how many there were, `row_steps` adds up their rows, and `filled` the time of slots that hold
    one, in the simulation's time as `busy_s` is.
    """

    def __init__(self, cost: StepCost, filled: Timeline) -> None:
        self.now_s = 0.0
        self._at_s = 0.0
        self.steps = 0
        self.row_steps = 0
        self.busy_s = 0.0
        self._cost = cost
        self._kv_tokens = 0
        self._filled = filled
        self._order = count()
        self._ends: list[tuple[int, int, Job]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def resume(self, own_s: float, now_s: float) -> None:
        """No step was under way until now."""
        self.now_s, self._at_s = own_s, now_s

    def clear(self) -> None:
        """All rows are lost."""
        self._ends.clear()
        self._kv_tokens = 0

    def join(self, job: Job) -> None:
        """A row for a job that has its first token; it has two or more."""
        self._kv_tokens += job.prompt + 1
        heapq.heappush(self._ends, (self.steps + job.output - 1, next(self._order), job))

    def duration_s(self, steps: int) -> float:
        """Of the next `steps` steps."""
        base_s, kv_token_s, row_s = self._cost
        rows = len(self._ends)
        grown = rows * steps * (steps - 1) / 2
        return steps * (base_s + row_s * rows) + kv_token_s * (steps * self._kv_tokens + grown)

    def steps_until(self, at_s: float) -> int:
        """How many more steps end at `at_s` or are the first to end after it."""
        span_s = at_s - self.now_s
        if span_s <= 0:
            return 0
        base_s, kv_token_s, row_s = self._cost
        rows = len(self._ends)
        square = kv_token_s * rows / 2
        linear = base_s + row_s * rows + kv_token_s * self._kv_tokens - square
        steps = math.ceil(2 * span_s / (linear + math.sqrt(linear * linear + 4 * square * span_s)))
        while self.duration_s(steps) < span_s:  # rounding
            steps += 1
        while steps > 1 and self.duration_s(steps - 1) >= span_s:
            steps -= 1
        return steps

    @property
    def steps_to_end(self) -> int:
        """Steps until the next row ends. There is one."""
        return self._ends[0][0] - self.steps

    def advance(self, steps: int, own_s: float, now_s: float) -> None:
        """Takes `steps` steps, at most `steps_to_end`, which end at `own_s` in own time, `now_s` in all's."""
        if not steps:
            return
        rows = len(self._ends)
        self._filled.add(self._at_s, now_s, rows)
        self.busy_s += now_s - self._at_s
        self.now_s, self._at_s = own_s, now_s
        self.steps += steps
        self.row_steps += rows * steps
        self._kv_tokens += rows * steps

    def pop_ended(self) -> list[Job]:
        """Takes out the rows that have all their tokens."""
        ended: list[Job] = []
        while self._ends and self._ends[0][0] == self.steps:
            job = heapq.heappop(self._ends)[2]
            self._kv_tokens -= job.prompt + job.output
            ended.append(job)
        return ended
