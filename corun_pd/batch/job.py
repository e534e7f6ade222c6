"""A job: work in, answers out as they come.

    source ─► look-ahead ─► up to `concurrency` calls ─► answers

Lines of one prompt, such as the samples of a rollout group, are started together where the look-ahead holds
them together. They then travel in one message, and their prompt is computed once.

Nothing here knows of files. `FileJob` puts a journal of finished lines around it, so that what is
finished is not run again, and the output is in the order of the input.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from corun_pd.batch.answers import encode, failure_line, result_line, status_of
from corun_pd.batch.body import openai_error
from corun_pd.batch.inputs import InputFiles, as_inputs
from corun_pd.batch.journal import Entry
from corun_pd.batch.line import BatchLine, Json
from corun_pd.batch.order import LookAhead, Order
from corun_pd.batch.report import Measure, measure_result
from corun_pd.batch.source import BatchSource, Refusal, Served, Work
from corun_pd.client import AsyncClient, GenerationResult, Route
from corun_pd.errors import ContractMismatch, CorunError, InvalidRequest, Overloaded, Unavailable

__all__ = ["Answer", "answer_all", "most_together", "refusal_answer", "run_job"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one line. `data` is its line for the output file, or for the error file.

    `index` counts the lines that are not blank from 0, `number` the physical ones from 1; `crc` is the
    CRC-32 of the line. `result` is
    None when the line failed, and `error` when it did not.
    """

    index: int
    number: int
    crc: int
    custom_id: str | None
    data: bytes
    measure: Measure
    result: GenerationResult | None = None
    error: CorunError | None = None

    @property
    def entry(self) -> Entry:
        """What a journal keeps of it."""
        return Entry(self.index, self.crc, self.measure, self.data)


async def run_job(
    requests: InputFiles | Path | Iterable[Mapping[str, Json]],
    client: AsyncClient,
    *,
    seed: int = 0,
    route: Route | None = None,
    concurrency: int | None = None,
    order: Order = Order.LONGEST_FIRST,
    timeout_s: float | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[Answer, None]:
    """Answers every request, as the answers come: `index` tells whose each is.

    `requests` is a batch file or several, or mappings of custom_id, method, url and body, taken as they
    are needed. `concurrency` is how many run at once, twice the fleet's slots unless given; `timeout_s`
    bounds each. When `stop` is set no further one is started, and the job ends with those under way.

    A request that cannot be served gets its failure as the answer. An outage is no answer: Unavailable
    and Overloaded, once the client has given up on them, and ContractMismatch, when another contract has
    come into force, are raised and end the job. Closing the generator cancels what runs.
    """
    served = Served.of(await client.describe())
    source = BatchSource(as_inputs(requests), served, seed=seed, route=route)
    concurrency = concurrency or served.concurrency
    ahead = LookAhead(iter(source), order, concurrency, most_together(concurrency))
    async with aclosing(answer_all(ahead, client, served, concurrency, timeout_s, stop)) as run:
        async for answers in run:
            for answer in answers:
                yield answer


def most_together(concurrency: int) -> int:
    """How many lines of one prompt are started together.

    They wait until there is room for all. Half of what may run at once is enough to keep a fleet busy
    meanwhile, when that is twice its slots; a quarter of it costs few computations of a prompt more.
    """
    return max(1, min(concurrency // 2, max(8, concurrency // 4)))


async def answer_all(
    ahead: LookAhead,
    client: AsyncClient,
    served: Served,
    concurrency: int,
    timeout_s: float | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[Sequence[Answer], None]:
    """`run_job` for lines that were read before; what came together is yielded together."""
    async with client.shared() as calls:
        run = _Run(ahead, calls, served, concurrency, timeout_s, stop)
        try:
            while answers := await run.next():
                yield answers
        finally:
            await run.close()


class _Run:
    """The lines under way. Each runs in a task of its own, and the end of one starts the next."""

    def __init__(
        self,
        ahead: LookAhead,
        client: AsyncClient,
        served: Served,
        concurrency: int,
        timeout_s: float | None,
        stop: asyncio.Event | None,
    ) -> None:
        self._ahead = ahead
        self._client = client
        self._served = served
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._stop = stop
        self._next: Sequence[Work | Refusal] = ()
        self._running: set[asyncio.Task[Answer]] = set()
        self._answers: list[Answer] = []
        self._given = 0
        self._fault: BaseException | None = None
        self._news = asyncio.Event()

    async def next(self) -> Sequence[Answer]:
        """What has come since the last time, waiting for something; nothing at the end.

        Raises what ended the run, once all answers that came before have been given.
        """
        self._given = 0
        self._fill()
        while not self._answers and (self._running or self._fault is not None):
            if self._fault is not None:
                raise self._fault
            self._news.clear()
            await self._news.wait()
        answers, self._answers = self._answers, []
        self._given = len(answers)
        return answers

    async def close(self) -> None:
        """Cancels what runs."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _fill(self) -> None:
        """Starts lines, those of one prompt together, as far as there is room for them.

        Answers that the reader is not done with hold up new lines, so that a slow one bounds what is kept.
        """
        while self._fault is None and not (self._stop is not None and self._stop.is_set()):
            if len(self._running) + len(self._answers) + self._given >= 2 * self._concurrency:
                return
            if not self._next:
                try:
                    self._next = self._ahead.take()
                except CorunError as error:  # inputs that cannot be read, or are others than before
                    self._end(error)
                    return
            if not self._next or len(self._running) + len(self._next) > self._concurrency:
                return
            for item in self._next:
                if isinstance(item, Refusal):
                    self._answers.append(refusal_answer(item, self._served))
                    continue
                task = asyncio.create_task(_answer(item, self._client, self._served, self._timeout_s))
                self._running.add(task)
                task.add_done_callback(partial(self._done, item))
            self._next = ()

    def _done(self, work: Work, task: "asyncio.Task[Answer]") -> None:
        self._running.discard(task)
        self._news.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._end(error)
            return
        answer = task.result()
        if answer.result is not None:
            self._ahead.learn(work, answer.measure.completion_tokens / len(answer.result.choices))
        self._answers.append(answer)
        self._fill()

    def _end(self, fault: BaseException) -> None:
        self._fault = self._fault or fault
        for task in self._running:
            task.cancel()


async def _answer(work: Work, client: AsyncClient, served: Served, timeout_s: float | None) -> Answer:
    line = work.line
    try:
        result = await client.run(work.request, timeout_s=timeout_s)
        _check_contract(served, result)
    except (Unavailable, Overloaded, ContractMismatch):
        raise
    except CorunError as error:
        named = error
        if isinstance(error, InvalidRequest):
            named = openai_error(line.endpoint, line.body, error)
        return _failure(line, work.key, served, named)
    data = encode(result_line(work, result))
    return Answer(line.index, line.number, line.crc, line.custom_id, data, measure_result(result), result)


def refusal_answer(refusal: Refusal, served: Served) -> Answer:
    """The answer to a bad line; its id is made of where the line is and what is wrong with it."""
    key = f"{refusal.place}: {refusal.error}".encode("utf-8", "backslashreplace")
    return _failure(refusal, key, served, refusal.error)


def _failure(line: BatchLine | Refusal, key: bytes, served: Served, error: CorunError) -> Answer:
    data = encode(failure_line(served.fingerprint, key, line.custom_id, error))
    measure = Measure(status_of(error))
    return Answer(line.index, line.number, line.crc, line.custom_id, data, measure, error=error)


def _check_contract(served: Served, result: GenerationResult) -> None:
    if result.system_fingerprint != served.fingerprint:
        differences = {"fingerprint": (served.fingerprint, result.system_fingerprint)}
        raise ContractMismatch("the fleet's contract changed while the job ran", differences)
