"""A job: work in, answers out as they come.

    source ─► look-ahead ─► up to `concurrency` calls ─► answers

Nothing here knows of files. `FileJob` puts a journal of finished lines around it, so that what is
finished is not run again, and the output is in the order of the input.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from corun_pd.batch.answers import encode, failure_line, result_line, status_of
from corun_pd.batch.body import openai_error
from corun_pd.batch.inputs import InputFiles, as_inputs
from corun_pd.batch.line import BatchLine, Json
from corun_pd.batch.order import LookAhead, Order
from corun_pd.batch.report import Measure, measure_result
from corun_pd.batch.source import BatchSource, Refusal, Served, Work
from corun_pd.client import AsyncClient, GenerationResult, Route
from corun_pd.errors import ContractMismatch, CorunError, InvalidRequest, Overloaded, Unavailable

__all__ = ["Answer", "answer_all", "refusal_answer", "run_job"]


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
    ahead = LookAhead(iter(source), order, concurrency or served.concurrency)
    answers = answer_all(ahead, client, served, concurrency or served.concurrency, timeout_s, stop)
    try:
        async for answer in answers:
            yield answer
    finally:
        await answers.aclose()


async def answer_all(
    ahead: LookAhead,
    client: AsyncClient,
    served: Served,
    concurrency: int,
    timeout_s: float | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[Answer, None]:
    """`run_job` for lines that were read before."""
    async with (
        client.shared() as calls,
        aclosing(_run(ahead, calls, served, concurrency, timeout_s, stop)) as run,
    ):
        async for answer in run:
            yield answer


async def _run(
    ahead: LookAhead,
    client: AsyncClient,
    served: Served,
    concurrency: int,
    timeout_s: float | None,
    stop: asyncio.Event | None,
) -> AsyncGenerator[Answer, None]:
    answers: asyncio.Queue[Answer | None] = asyncio.Queue()
    # Answers that nobody has taken yet hold up new calls, so that a slow reader bounds what is kept.
    room = asyncio.Semaphore(2 * concurrency)

    async def work() -> None:
        while True:
            await room.acquire()
            if (stop is not None and stop.is_set()) or (item := ahead.take()) is None:
                room.release()
                return
            answer = await _answer(item, client, served, timeout_s)
            if isinstance(item, Work) and answer.result is not None:
                ahead.learn(item, answer.measure.completion_tokens / len(answer.result.choices))
            answers.put_nowait(answer)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    whole = asyncio.gather(*workers)
    whole.add_done_callback(lambda _: answers.put_nowait(None))
    try:
        while (answer := await answers.get()) is not None:
            room.release()
            yield answer
        await _end(workers)
        while not answers.empty():
            if (answer := answers.get_nowait()) is not None:
                yield answer
        await whole
    finally:
        await _end(workers)
        await asyncio.gather(whole, return_exceptions=True)


async def _end(workers: list["asyncio.Task[None]"]) -> None:
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def _answer(
    item: Work | Refusal, client: AsyncClient, served: Served, timeout_s: float | None
) -> Answer:
    if isinstance(item, Refusal):
        return refusal_answer(item, served)
    line = item.line
    try:
        result = await client.run(item.request, timeout_s=timeout_s)
        _check_contract(served, result)
    except (Unavailable, Overloaded, ContractMismatch):
        raise
    except CorunError as error:
        named = error
        if isinstance(error, InvalidRequest):
            named = openai_error(line.endpoint, line.body, error)
        return _failure(line, item.key, served, named)
    data = encode(result_line(item, result))
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
