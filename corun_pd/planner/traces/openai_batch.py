"""OpenAI batch files as a trace: completions and chat, n samples of a prompt each; no times."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from corun_pd.planner.traces.files import Json, json_rows
from corun_pd.planner.traces.lengths import LengthRule
from corun_pd.planner.traces.report import Drop, Note, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["OpenAiBatch"]


class OpenAiBatch(Trace):
    """Token ids are counted exactly, text by the rule; the tokens of a chat template are not counted.

    A batch file does not say how long answers are: max_tokens stands for it, an upper bound. A line
    without takes `default_output_tokens`, or is dropped when that is None.
    """

    def __init__(self, path: Path, lengths: LengthRule, *, default_output_tokens: int | None = None) -> None:
        super().__init__(
            str(path), f"no times; {lengths.words}, no chat template; output is max_tokens, an upper bound"
        )
        self._path = path
        self._count = lengths.count
        self._default = default_output_tokens

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        for row in json_rows(self._path, report):
            body = row.get("body")
            if not isinstance(body, dict):
                report.drop(Drop.NOT_JSON)
                continue
            prompt = self._prompt_tokens(body, report)
            output = body.get("max_completion_tokens", body.get("max_tokens"))
            samples = body.get("n") or 1
            if output is None and self._default is not None:
                report.notes[Note.DEFAULT_LIMIT] += 1
                output = self._default
            if prompt is None:
                report.drop(Drop.NOT_TEXT)
            elif not prompt:
                report.drop(Drop.NO_PROMPT)
            elif output is None:
                report.drop(Drop.NO_LIMIT)
            elif type(output) is not int or type(samples) is not int:
                report.drop(Drop.NOT_A_NUMBER)
            elif output <= 0 or samples <= 0:
                report.drop(Drop.NEGATIVE if output < 0 or samples < 0 else Drop.FAILED)
            else:
                group = report.rows if samples > 1 else None
                requests = [TraceRequest(None, prompt, output, group=group)] * samples
                report.keep(*requests)
                yield from requests

    def _prompt_tokens(self, body: Mapping[str, Json], report: TraceReport) -> int | None:
        """The prompt's length; None when it is neither text nor token ids."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
            return len(prompt)
        if isinstance(prompt, str):
            return self._count(prompt)
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        contents = [message.get("content") for message in messages if isinstance(message, dict)]
        return sum(self._content_tokens(content, report) for content in contents)

    def _content_tokens(self, content: Json, report: TraceReport) -> int:
        if isinstance(content, str):
            return self._count(content)
        tokens = 0
        for part in content if isinstance(content, list) else ():
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                tokens += self._count(text)
            else:
                report.notes[Note.NOT_ONLY_TEXT] += 1
        return tokens
