"""ShareGPT dialogues: one JSON array, or one object a line. No times; lengths by a rule that is given.

A request is an answer that follows a user's turn; its prompt is everything before it, with a leading
system turn or greeting. Without `all_turns` a dialogue gives its first such answer, with it every one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from corun_pd.planner.traces.files import Json, json_rows
from corun_pd.planner.traces.lengths import LengthRule
from corun_pd.planner.traces.report import Drop, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["ShareGpt"]

_USER: Final = frozenset({"human", "user"})
_ANSWER: Final = frozenset({"gpt", "assistant", "bot", "chatbot", "model"})
_CONTEXT: Final = frozenset({"system", "tool", "function", "observation"})


class ShareGpt(Trace):
    """The tokens of a chat template are not counted, since it is the model's."""

    def __init__(self, path: Path, lengths: LengthRule, *, all_turns: bool = False) -> None:
        turns = "every answer" if all_turns else "the first answer"
        super().__init__(str(path), f"no times; {lengths.words}, no chat template; {turns} of a dialogue")
        self._path = path
        self._count = lengths.count
        self._all_turns = all_turns

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        for row in json_rows(self._path, report):
            requests = self._requests(row.get("conversations"))
            if isinstance(requests, Drop):
                report.drop(requests)
                continue
            report.keep(*requests)
            yield from requests

    def _requests(self, turns: Json) -> list[TraceRequest] | Drop:
        """What the dialogue gives, or why it gives nothing. An empty turn ends it."""
        found: list[TraceRequest] = []
        fault, before, asked = Drop.NO_ANSWER, 0, False
        for turn in turns if isinstance(turns, list) else ():
            speaker = turn.get("from") if isinstance(turn, dict) else None
            value = turn.get("value") if isinstance(turn, dict) else None
            if not isinstance(speaker, str) or speaker not in _USER | _ANSWER | _CONTEXT:
                fault = Drop.UNKNOWN_SPEAKER
                break
            if not isinstance(value, str) or not value.strip():
                fault = Drop.EMPTY_TURN
                break
            tokens = self._count(value)
            if speaker in _ANSWER and asked:
                found.append(TraceRequest(None, before, tokens))
                if not self._all_turns:
                    break
            before += tokens
            asked = speaker in _USER
        return found or fault
