"""What a reader made of a trace: every row is kept, or dropped for a stated reason."""

import enum
from collections import Counter
from dataclasses import dataclass, field

from corun_pd.planner.traces.request import TraceRequest

__all__ = ["Drop", "Note", "TraceReport"]


class Drop(enum.StrEnum):
    """Why a row gives no request."""

    FAILED = "failed: no output tokens"
    NO_PROMPT = "no prompt tokens"
    NOT_A_NUMBER = "a count or time stamp that is no number"
    NEGATIVE = "a negative count"
    NO_TIME = "no time stamp, where others have one"
    SHORT = "fewer columns than the header"
    NOT_JSON = "not a JSON object"
    NO_ANSWER = "no answer to a user's turn"
    EMPTY_TURN = "an empty turn"
    UNKNOWN_SPEAKER = "a speaker that is not known"
    NO_LIMIT = "no max_tokens, and no default was given"
    NOT_TEXT = "a prompt that is neither text nor token ids"


class Note(enum.StrEnum):
    """What is odd about a row that was kept."""

    FAILED = "failed, kept with one output token"
    WRONG_TOTAL = "total is not the sum of prompt and output"
    BACKWARDS = "time stamp before the row above, taken as equal to it"
    WRONG_BLOCKS = "hash ids do not cover the prompt at this block size, read without them"
    UNTIMED = "time stamp left out, since the first row has none"
    IMAGES = "has images; tokens as the row gives them"
    NOT_ONLY_TEXT = "parts of the prompt that are not text, not counted"
    DEFAULT_LIMIT = "no max_tokens, the given default taken"


@dataclass(slots=True)
class TraceReport:
    """Counts of one pass; `rows == kept + sum(dropped)` at every moment. `unit` is for people.

    A row can give several requests (the turns of a dialogue, n > 1); `requests` counts these. Times are in
    seconds from the first request; `last_arrival_s` is None when the trace has none.
    """

    source: str
    unit: str
    rows: int = 0
    kept: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    last_arrival_s: float | None = None
    dropped: Counter[Drop] = field(default_factory=Counter)
    notes: Counter[Note] = field(default_factory=Counter)

    def drop(self, reason: Drop) -> None:
        """Counts a row that gives no request."""
        self.rows += 1
        self.dropped[reason] += 1

    def keep(self, request: TraceRequest, *more: TraceRequest) -> None:
        """Counts a row that gives these requests."""
        self.rows += 1
        self.kept += 1
        self.last_arrival_s = request[0]
        for _, prompt, output, *_ in (request, *more) if more else (request,):
            self.requests += 1
            self.prompt_tokens += prompt
            self.output_tokens += output

    def lines(self) -> list[str]:
        """The report in lines of text."""
        head = f"{self.source}: {self.rows} rows, {self.kept} kept, {self.requests} requests; {self.unit}"
        return [
            head,
            *(f"  dropped {count}: {reason}" for reason, count in sorted(self.dropped.items())),
            *(f"  kept {count}: {note}" for note, count in sorted(self.notes.items())),
        ]
