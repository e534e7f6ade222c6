"""The engine process's own side: feeds an engine with jobs and collects what its steps give."""

import asyncio
import time
from multiprocessing.connection import Connection
from pathlib import Path

from corun_pd.bench.records import Job, Record, Run
from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import EngineConfig
from corun_pd.core import FirstToken, RngState, Role, TokenLogprobs
from corun_pd.engine.base import Engine, EngineInfo, LegOutput, LegWork
from corun_pd.engine.factory import build_engine
from corun_pd.errors import CorunError

__all__ = ["serve"]


def serve(pipe: Connection, model: Path, role: Role, config: EngineConfig) -> None:
    """Starts an engine, says what it is, and runs jobs until the pipe is closed."""
    asyncio.run(_run_jobs(pipe, build_engine(model, role, config, "127.0.0.1")))


async def _run_jobs(pipe: Connection, engine: Engine) -> None:
    try:
        info = await engine.start()
    except CorunError as error:
        pipe.send(str(error))
        raise
    pipe.send(info)
    driver = _Driver(engine, info)
    pump = asyncio.create_task(driver.pump())
    while True:
        try:
            job = await asyncio.to_thread(pipe.recv)
        except EOFError:
            break
        try:
            pipe.send(await driver.run(job))
        except CorunError as error:
            pipe.send(str(error))
    await engine.close()
    await pump


class _Driver:
    """Submits a job's requests when they are due and sorts what the steps give to them."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.engine, self.info = engine, info
        self.outputs: dict[str, list[LegOutput]] = {}
        self.times: dict[str, list[float]] = {}
        self.done: dict[str, asyncio.Future[None]] = {}
        self.timeline: list[tuple[float, int]] = []
        self.firsts: list[int] = []
        self.jobs = 0

    async def pump(self) -> None:
        """Sorts every step's rows to their legs."""
        try:
            async for rows in self.engine.steps():
                now = time.perf_counter()
                self.timeline.append((now, sum(len(row.token_ids) for row in rows)))
                self.firsts.append(sum(not self.outputs[row.leg] for row in rows))
                for row in rows:
                    self.outputs[row.leg].append(row)
                    self.times[row.leg].append(now)
                    if row.is_last:
                        self.done[row.leg].set_result(None)
        except CorunError as error:
            for waiting in self.done.values():
                if not waiting.done():
                    waiting.set_exception(error)

    async def run(self, job: Job) -> Run:
        """All of a job's requests."""
        self.jobs += 1
        self.timeline.clear()
        self.firsts.clear()
        before = await self.engine.load()
        gate = asyncio.Semaphore(job.concurrency or len(job.requests))
        start = time.perf_counter()

        async def one(index: int, request: EngineRequest) -> Record:
            if job.arrivals_s is not None:
                await asyncio.sleep(start + job.arrivals_s[index] - time.perf_counter())
            async with gate:
                return await self._one(f"{self.jobs}-{index}", request, job, index, start)

        records = await asyncio.gather(*(one(i, r) for i, r in enumerate(job.requests)))
        wall = time.perf_counter() - start
        after = await self.engine.load()
        timeline = tuple((at - start, tokens) for at, tokens in self.timeline)
        return Run(tuple(records), wall, before, after, timeline, tuple(self.firsts))

    async def _one(self, leg: str, request: EngineRequest, job: Job, index: int, start: float) -> Record:
        resume = None
        if job.resume is not None:
            given = job.resume[index]
            assert given.handoff is not None
            state = RngState(self.info.rng_scheme, request.sampling.seed, 1)
            resume = (FirstToken(given.token_ids[0], state), given.handoff)
        self.outputs[leg], self.times[leg] = [], []
        self.done[leg] = asyncio.get_running_loop().create_future()
        submitted = time.perf_counter()
        self.engine.submit(LegWork(leg, request.prompt, request.sampling, job.hand_off, resume))
        await self.done[leg]
        del self.done[leg]
        rows, times = self.outputs.pop(leg), self.times.pop(leg)
        if rows[-1].error is not None:
            raise rows[-1].error
        return Record(
            token_ids=tuple(token for row in rows for token in row.token_ids),
            logprobs=tuple(_flat(entry) for row in rows for entry in row.logprobs),
            finish=rows[-1].finish_reason,
            submitted_s=submitted - start,
            first_s=times[0] - start,
            last_s=times[-1] - start,
            handoff=rows[-1].handoff,
            prompt_logprobs=tuple(_flat(entry) for row in rows for entry in row.prompt_logprobs or ()),
        )


def _flat(entry: TokenLogprobs) -> tuple[float, ...]:
    return (entry.sampled, *(value for pair in entry.top for value in pair))
