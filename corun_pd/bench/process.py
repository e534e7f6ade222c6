"""An engine in a process of its own, driven without any service: what the engine experiments run on.

The parent sends jobs over a pipe and gets records back. A process holds one engine for its life, so
that configurations are compared from equal starts and a restart is a restart.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import EngineConfig
from corun_pd.core import FirstToken, InstanceLoad, KvHandoff, RngState, Role
from corun_pd.engine.base import Engine, EngineInfo, LegOutput, LegWork
from corun_pd.engine.factory import build_engine
from corun_pd.errors import CorunError, EngineFailed

__all__ = ["EngineProcess", "Job", "Record", "Run"]


@dataclass(frozen=True, slots=True)
class Job:
    """Requests to run, at most `concurrency` at once; None submits all at the start.

    With `hand_off` each is a prefill leg; with `resume` (one entry a request) a decode leg.
    """

    requests: Sequence[EngineRequest]
    concurrency: int | None = None
    hand_off: bool = False
    resume: Sequence["Record"] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What one request gave. Times are in seconds from the start of the job.

    `logprobs` has a tuple a token: the sampled token's, then the likeliest ones' ids and values.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[float, ...], ...]
    finish: str | None
    submitted_s: float
    first_s: float
    last_s: float
    handoff: KvHandoff | None = None

    def bits(self) -> tuple[object, ...]:
        """What must be equal: tokens, logprobs, finish reason."""
        return (self.token_ids, self.logprobs, self.finish)

    def joined(self, later: "Record") -> "Record":
        """The prefill leg's record and the decode leg's as one."""
        return replace(
            later,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            submitted_s=self.submitted_s,
            first_s=self.first_s,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A job's records in the order of its requests, its wall time, and (time, tokens) of every step."""

    records: tuple[Record, ...]
    wall_s: float
    load_before: InstanceLoad
    load_after: InstanceLoad
    timeline: tuple[tuple[float, int], ...]

    @property
    def output_tokens(self) -> int:
        """Sampled tokens over all requests."""
        return sum(len(record.token_ids) for record in self.records)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the job's wall time."""
        return self.output_tokens / self.wall_s


class EngineProcess:
    """Starts the engine; `run` takes jobs one after the other. Its output goes to `log`."""

    def __init__(
        self,
        model: Path,
        role: Role,
        config: EngineConfig,
        log: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, model, role, config, log, environment or {})
        self._process = context.Process(target=_serve, args=arguments, daemon=False)
        self._process.start()
        theirs.close()
        self.log = log

    def ready(self, timeout_s: float = 300.0) -> EngineInfo:
        """Waits for the engine. Raises EngineFailed, naming the log, when it does not come up."""
        info = self._receive(timeout_s)
        assert isinstance(info, EngineInfo)
        return info

    def run(self, job: Job, timeout_s: float = 600.0) -> Run:
        """Runs a job. Raises EngineFailed when a request fails or the process dies."""
        self._pipe.send(job)
        run = self._receive(timeout_s)
        assert isinstance(run, Run)
        return run

    def _receive(self, timeout_s: float) -> object:
        try:
            if not self._pipe.poll(timeout_s):
                raise EngineFailed(f"no answer within {timeout_s:.0f} s; see {self.log}")
            answer = self._pipe.recv()
        except EOFError as error:
            raise EngineFailed(f"the engine process ended; see {self.log}") from error
        if isinstance(answer, str):
            raise EngineFailed(f"{answer}; see {self.log}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(
    pipe: Connection, model: Path, role: Role, config: EngineConfig, log: Path, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
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
    """Feeds an engine and collects what its steps give."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.engine, self.info = engine, info
        self.outputs: dict[str, list[LegOutput]] = {}
        self.times: dict[str, list[float]] = {}
        self.done: dict[str, asyncio.Future[None]] = {}
        self.timeline: list[tuple[float, int]] = []
        self.jobs = 0

    async def pump(self) -> None:
        """Sorts every step's rows to their legs."""
        try:
            async for rows in self.engine.steps():
                now = time.perf_counter()
                self.timeline.append((now, sum(len(row.token_ids) for row in rows)))
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
        before = await self.engine.load()
        gate = asyncio.Semaphore(job.concurrency or len(job.requests))
        start = time.perf_counter()

        async def one(index: int, request: EngineRequest) -> Record:
            async with gate:
                return await self._one(f"{self.jobs}-{index}", request, job, index, start)

        records = await asyncio.gather(*(one(i, r) for i, r in enumerate(job.requests)))
        wall = time.perf_counter() - start
        after = await self.engine.load()
        timeline = tuple((at - start, tokens) for at, tokens in self.timeline)
        return Run(tuple(records), wall, before, after, timeline)

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
            logprobs=tuple(
                (entry.sampled, *(value for pair in entry.top for value in pair))
                for row in rows
                for entry in row.logprobs
            ),
            finish=rows[-1].finish_reason,
            submitted_s=submitted - start,
            first_s=times[0] - start,
            last_s=times[-1] - start,
            handoff=rows[-1].handoff,
        )
