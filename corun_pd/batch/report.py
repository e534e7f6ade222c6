"""What a job did, in numbers that add up: total = completed + failed + unanswered."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from corun_pd.batch.job import Answer

__all__ = ["Tally", "summary_table"]


@dataclass(slots=True)
class Tally:
    """Counts the answers of a job of `total` lines, `refused` of which were bad from the start."""

    total: int
    refused: int
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kv_moved_bytes: int = 0
    _began_s: float = field(default_factory=time.monotonic)

    def add(self, answer: Answer) -> None:
        """Counts one."""
        self.failed += answer.failed
        self.completed += not answer.failed
        self.prompt_tokens += answer.usage.prompt_tokens
        self.completion_tokens += answer.usage.completion_tokens
        self.kv_moved_bytes += answer.kv_moved_bytes

    @property
    def answered(self) -> int:
        """Lines that are in one of the two files."""
        return self.completed + self.failed

    @property
    def unanswered(self) -> int:
        """Lines that are in neither, because the job was stopped."""
        return self.total - self.answered

    @property
    def elapsed_s(self) -> float:
        """Since the job began, in seconds."""
        return time.monotonic() - self._began_s

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens by elapsed time."""
        return self.completion_tokens / max(self.elapsed_s, 1e-9)

    def as_json(self) -> dict[str, int | float]:
        """The counts by name."""
        return {
            "line_count": self.total,
            "completed_count": self.completed,
            "failed_count": self.failed,
            "refused_count": self.refused,
            "unanswered_count": self.unanswered,
            "prompt_token_count": self.prompt_tokens,
            "completion_token_count": self.completion_tokens,
            "kv_moved_byte_count": self.kv_moved_bytes,
            "elapsed_s": round(self.elapsed_s, 3),
            "completion_tokens_per_s": round(self.tokens_per_s, 1),
        }

    def __str__(self) -> str:
        counts = f"{self.answered} of {self.total} lines, {self.failed} failed"
        return f"{counts}, {self.completion_tokens} tokens, {self.tokens_per_s:.0f} tokens/s"


def summary_table(summary: Mapping[str, str | int | float]) -> str:
    """The summary as two columns; values are whole at any width, since digests are there to be copied."""
    width = max(map(len, summary)) + 2
    rows = ((name, value if isinstance(value, str) else f"{value:,}") for name, value in summary.items())
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)
