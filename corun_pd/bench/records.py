"""What engine experiments ask of an engine process and what they get back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corun_pd.bench.workloads import EngineRequest
from corun_pd.core import InstanceLoad, KvHandoff

__all__ = ["Job", "Record", "Run"]


@dataclass(frozen=True, slots=True)
class Job:
    """Requests to run, at most `concurrency` at once; None submits all at the start.

    With `arrivals_s` (one entry a request, in seconds from the start of the job) each is submitted then
    and not before. With `hand_off` each is a prefill leg; with `resume` (one entry a request) a decode leg.
    """

    requests: Sequence[EngineRequest]
    concurrency: int | None = None
    hand_off: bool = False
    resume: Sequence["Record"] | None = None
    arrivals_s: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What one request gave. Times are in seconds from the start of the job.

    `logprobs` has a tuple a token: the sampled token's, then the likeliest ones' ids and values;
    `prompt_logprobs` the same of the prompt's second token and all later ones, when asked for.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[float, ...], ...]
    finish: str | None
    submitted_s: float
    first_s: float
    last_s: float
    handoff: KvHandoff | None = None
    prompt_logprobs: tuple[tuple[float, ...], ...] = ()

    def bits(self) -> tuple[object, ...]:
        """What must be equal: tokens, logprobs, finish reason."""
        return (self.token_ids, self.logprobs, self.prompt_logprobs, self.finish)

    def joined(self, later: "Record") -> "Record":
        """The prefill leg's record and the decode leg's as one."""
        return replace(
            later,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            submitted_s=self.submitted_s,
            first_s=self.first_s,
            prompt_logprobs=self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A job's records in the order of its requests and its wall time.

    `timeline` has (time, tokens) of every step that gave tokens, and `firsts`, step by step, how many of
    these were the first of their request.
    """

    records: tuple[Record, ...]
    wall_s: float
    load_before: InstanceLoad
    load_after: InstanceLoad
    timeline: tuple[tuple[float, int], ...]
    firsts: tuple[int, ...] = ()

    @property
    def output_tokens(self) -> int:
        """Sampled tokens over all requests."""
        return sum(len(record.token_ids) for record in self.records)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the job's wall time."""
        return self.output_tokens / self.wall_s
