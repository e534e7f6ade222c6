"""What a job did, in numbers that add up: total = completed + failed + unanswered."""

import math
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from corun_pd.batch.line import Json
from corun_pd.client import GenerationResult

__all__ = ["Measure", "Tally"]

PERCENTILES: Final = (50, 90, 99)

#: Fields of a tally by the name that is in summaries, less "_count".
_COUNTS: Final = {
    "total": "line",
    "refused": "refused",
    "completed": "completed",
    "failed": "failed",
    "prompt_tokens": "prompt_token",
    "completion_tokens": "completion_token",
    "kv_moved_bytes": "kv_moved_byte",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """What one answer came to. `status` is its line's; times are in seconds, NaN when there are none.

    `first_token_s` runs from arrival at the router (TTFT), `per_token_s` is the mean time between later
    tokens (TPOT).
    """

    status: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kv_moved_bytes: int = 0
    first_token_s: float = math.nan
    per_token_s: float = math.nan

    @property
    def is_failure(self) -> bool:
        """Whether the line failed."""
        return self.status >= 400

    @property
    def is_accident(self) -> bool:
        """Whether it failed by no fault of its own: another try may succeed."""
        return self.status >= 500


def measure_result(result: GenerationResult) -> Measure:
    """That of a whole answer."""
    steps = max(len(choice.token_ids) for choice in result.choices) - 1
    times = result.timings
    return Measure(
        200,
        result.usage.prompt_tokens,
        result.usage.completion_tokens,
        sum(choice.placement.kv_moved_bytes for choice in result.choices),
        times.first_token_s,
        (times.total_s - times.first_token_s) / steps if steps > 0 else math.nan,
    )


@dataclass(slots=True)
class Tally:
    """Counts the answers of a job of `total` lines, `refused` of which were bad from the start.

    Answers of an earlier run of the job are `resumed`. They count like the others, but not for the rate,
    which is that of this run.
    """

    total: int = 0
    refused: int = 0
    resumed: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kv_moved_bytes: int = 0
    run_tokens: int = 0
    _first_token_s: "array[float]" = field(default_factory=lambda: array("f"))
    _per_token_s: "array[float]" = field(default_factory=lambda: array("f"))
    _began_s: float = field(default_factory=time.monotonic)

    def add(self, measure: Measure, *, resumed: bool = False) -> None:
        """Counts one."""
        self.failed += measure.is_failure
        self.completed += not measure.is_failure
        self.prompt_tokens += measure.prompt_tokens
        self.completion_tokens += measure.completion_tokens
        self.kv_moved_bytes += measure.kv_moved_bytes
        self.resumed += resumed
        self.run_tokens += 0 if resumed else measure.completion_tokens
        for times, time_s in (
            (self._first_token_s, measure.first_token_s),
            (self._per_token_s, measure.per_token_s),
        ):
            if not math.isnan(time_s):
                times.append(time_s)

    @property
    def answered(self) -> int:
        """Lines that have their answer."""
        return self.completed + self.failed

    @property
    def unanswered(self) -> int:
        """Lines that have none, because the job was stopped."""
        return self.total - self.answered

    @property
    def elapsed_s(self) -> float:
        """Since this run began, in seconds."""
        return time.monotonic() - self._began_s

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens of this run by elapsed time."""
        return self.run_tokens / max(self.elapsed_s, 1e-9)

    @classmethod
    def of_ended(cls, counts: Mapping[str, int]) -> Self:
        """That of a job that ended in an earlier run, from its `counts`."""
        tally = cls()
        for name, key in _COUNTS.items():
            setattr(tally, name, counts[f"{key}_count"])
        tally.resumed = tally.answered
        return tally

    def counts(self) -> dict[str, int]:
        """What does not depend on a clock, by name."""
        return {f"{key}_count": getattr(self, name) for name, key in _COUNTS.items()}

    def as_json(self) -> dict[str, Json]:
        """The counts, rates and times by name."""
        return {
            **self.counts(),
            "unanswered_count": self.unanswered,
            "resumed_count": self.resumed,
            "elapsed_s": round(self.elapsed_s, 3),
            "run_completion_token_count": self.run_tokens,
            "completion_tokens_per_s": round(self.tokens_per_s, 1),
            "ttft_s": percentiles(self._first_token_s),
            "tpot_s": percentiles(self._per_token_s),
        }

    def __str__(self) -> str:
        counts = f"{self.answered} of {self.total} lines, {self.failed} failed"
        return f"{counts}, {self.completion_tokens} tokens, {self.tokens_per_s:.0f} tokens/s"


def percentiles(times_s: "array[float]") -> Json:
    """By nearest rank, to the microsecond; null without times."""
    if not times_s:
        return None
    ranked = sorted(times_s)
    return {f"p{p}": round(ranked[-(-len(ranked) * p // 100) - 1], 6) for p in PERCENTILES}
