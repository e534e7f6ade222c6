"""A job: work in, answers out, in the order of the file.

Answers come back in any order. Those that wait for an earlier one are held, `window` lines at most from
the oldest unanswered one on; when a slow line holds up so many, no new line is started until it is
answered. Nothing here knows of files, so that a journal of finished lines can stand between the source
and the job: what it has, the job need not run.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Final

from corun_pd.batch.answers import encode, failure_line, result_line
from corun_pd.batch.body import openai_error
from corun_pd.batch.source import Refusal, Served, Work
from corun_pd.client import AsyncClient, GenerationResult, Usage
from corun_pd.errors import ContractMismatch, CorunError, InvalidRequest, Overloaded, Unavailable

__all__ = ["Answer", "run_job"]


NO_USAGE: Final = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one input line. `data` is its line for the output file, or for the error file."""

    number: int
    custom_id: str | None
    data: bytes
    failed: bool
    usage: Usage = NO_USAGE
    kv_moved_bytes: int = 0


async def run_job(
    source: Iterable[Work | Refusal],
    client: AsyncClient,
    served: Served,
    *,
    concurrency: int,
    window: int | None = None,
    timeout_s: float | None = None,
) -> AsyncGenerator[Answer, None]:
    """Answers every item of `source`, in its order, with up to `concurrency` requests at once.

    `window` is 16 times that unless given; `timeout_s` bounds each request. A line that cannot be
    served gets its failure as the answer. An outage is no answer: Unavailable and Overloaded, once the
    client has given up on them, and ContractMismatch, when another contract has come into force, are
    raised and end the job. Closing the generator cancels what runs.
    """
    left = iter(source)
    width = window or 16 * concurrency
    held: deque[asyncio.Task[Answer]] = deque()
    running = 0
    outages: list[CorunError] = []
    wake = asyncio.Event()

    async def answer(item: Work | Refusal) -> Answer:
        nonlocal running
        try:
            return await _answer(item, client, served, timeout_s)
        except CorunError as error:
            outages.append(error)
            raise
        finally:
            running -= 1
            wake.set()

    try:
        item = next(left, None)
        while item or held:
            while item and running < concurrency and len(held) < width:
                running += 1
                held.append(asyncio.create_task(answer(item)))
                item = next(left, None)
            wake.clear()
            while held and held[0].done():
                yield held.popleft().result()
            if outages:
                raise outages[0]
            if running == concurrency or (held and not held[0].done()):
                await wake.wait()
    finally:
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def _answer(
    item: Work | Refusal, client: AsyncClient, served: Served, timeout_s: float | None
) -> Answer:
    if isinstance(item, Refusal):
        key = f"{item.number}: {item.error}".encode("utf-8", "backslashreplace")
        return _failure(served, item.number, item.custom_id, key, item.error)
    try:
        result = await client.run(item.request, timeout_s=timeout_s)
        _check_contract(served, result)
    except (Unavailable, Overloaded, ContractMismatch):
        raise
    except InvalidRequest as error:
        named = openai_error(item.line.endpoint, item.line.body, error)
        return _failure(served, item.line.number, item.line.custom_id, item.key, named)
    except CorunError as error:
        return _failure(served, item.line.number, item.line.custom_id, item.key, error)
    moved = sum(choice.placement.kv_moved_bytes for choice in result.choices)
    data = encode(result_line(item, result))
    return Answer(item.line.number, item.line.custom_id, data, False, result.usage, moved)


def _failure(served: Served, number: int, custom_id: str | None, key: bytes, error: CorunError) -> Answer:
    return Answer(number, custom_id, encode(failure_line(served.fingerprint, key, custom_id, error)), True)


def _check_contract(served: Served, result: GenerationResult) -> None:
    if result.system_fingerprint != served.fingerprint:
        differences = {"fingerprint": (served.fingerprint, result.system_fingerprint)}
        raise ContractMismatch("the fleet's contract changed while the job ran", differences)
