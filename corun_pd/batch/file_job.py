"""A job that reads files and writes files, and that can be stopped at any instant and started again.

    lock ─► digests of the inputs ─► journal: continue, or begin ─► check of every line ─► run what is missing
                                                 │                                              │
                                                 └──────────── answers, in any order ◄──────────┘
                                     .part files, in input order ─► their names ─► receipt

The output is a function of inputs, contract and seed: how often the job was stopped on its way cannot be
told from it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from corun_pd.batch.disk import disk_errors
from corun_pd.batch.inputs import InputFiles
from corun_pd.batch.job import Answer, answer_all, most_together, refusal_answer
from corun_pd.batch.journal import SYNC_INTERVAL_S, Checked, Entry, Journal, Receipt
from corun_pd.batch.line import Json
from corun_pd.batch.load import fleet_work
from corun_pd.batch.order import LookAhead, Order
from corun_pd.batch.output import OutputFiles
from corun_pd.batch.report import Tally
from corun_pd.batch.resume import job_header, open_journal
from corun_pd.batch.source import BatchSource, Served
from corun_pd.client import AsyncClient, Fleet, Route
from corun_pd.errors import Cancelled, CorunError

__all__ = ["FileJob", "JobOptions"]

#: Between two turns of the event loop while files are read: signals are heard that often.
TURN_LINES: Final = 256

#: How long the router may take to describe its fleet, before the job and after it.
DESCRIBE_TIMEOUT_S: Final = 10.0
LAST_DESCRIBE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job runs. `seed` and `route` are part of what it is; the others may change between runs of it.

    `accept_new_contract` drops what another job, of other inputs, parameters or contract, has left.
    """

    seed: int = 0
    route: Route | None = None
    concurrency: int | None = None
    order: Order = Order.LONGEST_FIRST
    timeout_s: float | None = None
    accept_new_contract: bool = False


class FileJob:
    """Within `async with`: checked, and ready to run what is missing. `files` must be entered before.

    Entering raises ContractMismatch when the output's journal is of another job, and Cancelled when
    `stop` is set meanwhile. `say` gets what a person should know: refused lines, what was resumed, what was
    repaired.
    """

    def __init__(
        self,
        inputs: InputFiles,
        files: OutputFiles,
        client: AsyncClient,
        options: JobOptions = JobOptions(),
        *,
        stop: asyncio.Event | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.inputs = inputs
        self.files = files
        self.options = options
        self.tally = Tally()
        self._client = client
        self._stop = stop or asyncio.Event()
        self._say = say
        self._next = 0
        self._had_accidents = False
        self._fleet: Fleet
        self._served: Served
        self._source: BatchSource
        self._journal: Journal

    async def __aenter__(self) -> Self:
        self._fleet = await self._client.describe(timeout_s=DESCRIBE_TIMEOUT_S)
        self._served = Served.of(self._fleet)
        options = self.options
        for _ in self.inputs.read():
            await self._turn()
        self._source = BatchSource(self.inputs, self._served, seed=options.seed, route=options.route)
        header = job_header(self._served, self.inputs.digests, options.seed, options.route)
        with disk_errors(self.files.out.path):
            self._journal, self.tally = open_journal(
                self.files, header, start_over=options.accept_new_contract, say=self._say
            )
            try:
                await self._prepare()
            except BaseException:
                self._journal.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()

    async def answers(self) -> AsyncGenerator[Answer, None]:
        """Runs what is missing; each answer is in the journal when it is yielded.

        When all are there, the output gets its name. Raises what `run_job` raises; whatever ends it, the
        job can be started again.
        """
        if self._journal.receipt is not None:
            return
        concurrency = self.options.concurrency or self._served.concurrency
        missing = self._source.remaining(self._journal.has)
        ahead = LookAhead(missing, self.options.order, concurrency, most_together(concurrency))
        run = answer_all(ahead, self._client, self._served, concurrency, self.options.timeout_s, self._stop)
        with disk_errors(self.files.out.path):
            syncer = asyncio.create_task(self._keep_synced())
            try:
                async with aclosing(run):
                    async for answers in run:
                        self._record(answers)
                        for answer in answers:
                            yield answer
                        if syncer.done():  # it ends by a failure of the disk alone
                            syncer.result()
            finally:
                syncer.cancel()
                await asyncio.gather(syncer, return_exceptions=True)
                self._journal.sync()
            if not self.tally.unanswered:
                self._finish()

    async def summary(self) -> dict[str, Json]:
        """What was read, done and written. Facts of the clock are here alone, never in the output."""
        work: dict[str, Json] = {}
        if self.tally.run_tokens:
            try:
                after = await self._client.describe(timeout_s=LAST_DESCRIBE_TIMEOUT_S)
                work = fleet_work(self._fleet, after)
            except CorunError as error:  # the answers are there; only what it took is not known
                self._say(f"the fleet's load is not known: {error}")
        out, errors = self.files.out, self.files.errors
        receipt = self._journal.receipt
        return {
            **self.tally.as_json(),
            **work,
            "seed": self.options.seed,
            "route": None if self.options.route is None else self.options.route.value,
            "order": self.options.order.value,
            "system_fingerprint": self._served.fingerprint,
            "contract": dict(self._served.settings),
            "inputs": [
                {"path": str(path), "sha256": digest}
                for path, digest in zip(self.inputs.paths, self.inputs.digests, strict=True)
            ],
            "output": str(out.path),
            "output_sha256": receipt.output_sha256 if receipt else out.sha256,
            "errors": str(errors.path),
            "errors_sha256": receipt.errors_sha256 if receipt else errors.sha256,
        }

    async def _prepare(self) -> None:
        journal = self._journal
        if journal.receipt is not None:
            self.files.is_ended = True
            return
        if journal.checked is None:
            await self._check()
        else:
            self._say(f"going on: {self.tally.answered} of {journal.checked.total} lines are finished")
        if journal.checked is not None:
            self.tally.total, self.tally.refused = journal.checked.total, journal.checked.refused
        await self._catch_up()

    async def _check(self) -> None:
        """Every line, before any is run; the bad ones are answered at once."""
        journal, tally = self._journal, Tally()
        total = 0
        for total, refusal in enumerate(self._source.check(), 1):
            if refusal is not None:
                self._say(f"refused: {refusal}")
                answer = refusal_answer(refusal, self._served)
                journal.append(answer.entry)
                tally.add(answer.measure)
            if not total % TURN_LINES:
                await self._turn()
        journal.mark_checked(Checked(total, tally.failed))
        if tally.failed:
            self._say(f"{tally.failed} of {total} lines are refused; the others run")
        self.tally = tally

    async def _catch_up(self) -> None:
        """Makes the .part files anew, as far as the finished lines go without a gap."""
        self.files.begin()
        while self._journal.is_finished(self._next):
            self._write_next()
            if not self._next % TURN_LINES:
                await self._turn()
        self.files.flush()

    def _record(self, answers: Sequence[Answer]) -> None:
        self._journal.append(*(answer.entry for answer in answers))
        for answer in answers:
            self.tally.add(answer.measure)
            self._had_accidents |= answer.measure.is_accident
        at_hand = {answer.index: answer.entry for answer in answers}
        if self._next in at_hand:
            while self._journal.is_finished(self._next):
                self._write_next(at_hand.get(self._next))
            self.files.flush()

    def _write_next(self, entry: Entry | None = None) -> None:
        """Writes the next line, which is read from the journal unless it is at hand."""
        entry = entry or self._journal.read(self._next)
        self.files.write(entry.data, is_failure=entry.measure.is_failure)
        self._next += 1

    def _finish(self) -> None:
        """A job with accidents keeps its journal, so that the same command tries those lines again."""
        self.files.finish()
        if not self._had_accidents:
            out, errors = self.files.out.sha256, self.files.errors.sha256
            self._journal.seal(Receipt(out, errors, self.tally.counts()))
            self.files.is_ended = True

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            await asyncio.to_thread(self._journal.sync)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self._stop.is_set():
            raise Cancelled("stopped before the first line was run")
