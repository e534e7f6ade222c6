"""`corun-pd run-batch`: lines of OpenAI's batch format in, answers in input order out."""

import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import Final

import click
import orjson
import uvloop
from rich.console import Console

from corun_pd.batch import FileJob, InputFiles, JobOptions, Order, OutputFiles
from corun_pd.batch.disk import disk_errors
from corun_pd.batch.journal import journal_path
from corun_pd.batch.line import Json
from corun_pd.batch.spool import spool, spool_path
from corun_pd.batch.table import summary_table
from corun_pd.cli.options import router_option
from corun_pd.cli.progress import Progress
from corun_pd.client import AsyncClient, RetryPolicy, Route
from corun_pd.core import SEED_LIMIT
from corun_pd.errors import Cancelled, SetupError

__all__ = ["run_batch"]

SOME_FAILED: Final = 1
INTERRUPTED: Final = 130

STDIN: Final = Path("-")

#: A job outlives a router's restart: some four minutes of outage.
RETRY: Final = RetryPolicy(max_attempts=60)


@click.command("run-batch")
@click.option(
    "-i",
    "--input",
    "sources",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    metavar="FILE",
    help="Plain, gzip or zstd; - is standard input. May be given again.",
)
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option(
    "--errors", type=click.Path(path_type=Path), metavar="FILE", help="Failures.  [default: OUT.errors.jsonl]"
)
@click.option("--summary", type=click.Path(path_type=Path), metavar="FILE", help="Write the summary as JSON.")
@router_option
@click.option(
    "--seed",
    type=click.IntRange(0, SEED_LIMIT - 1),
    default=0,
    show_default=True,
    help="A line without a seed gets one that is made of this and of its content.",
)
@click.option("--route", type=click.Choice([*map(str, Route)]), help="Which instances may run the lines.")
@click.option(
    "--concurrency", type=click.IntRange(1), help="Lines at once.  [default: twice the fleet's slots]"
)
@click.option(
    "--timeout-s", type=click.FloatRange(0, min_open=True), help="The longest that a line may take."
)
@click.option(
    "--keep-order",
    is_flag=True,
    help="Start lines in input order, not the longest first; answers are either way.",
)
@click.option(
    "--accept-new-contract",
    is_flag=True,
    help="Drop what a job of another contract, input or seed has left at the output, and start over.",
)
def run_batch(
    sources: tuple[Path, ...],
    out: Path,
    errors: Path | None,
    summary: Path | None,
    router: str,
    seed: int,
    route: str | None,
    concurrency: int | None,
    timeout_s: float | None,
    keep_order: bool,
    accept_new_contract: bool,
) -> None:
    """Runs files of /v1/completions and /v1/chat/completions lines in OpenAI's batch format.

    Every line is checked before any is run. Bad lines are listed and get a 400 line in the error file;
    the others run. Answers are in the order of the input, and the same bytes on every run under one
    contract and --seed. Files have the suffix .part until every line is answered.

    A job that was stopped, by Ctrl-C or kill -9, goes on when the same command is given again: what is
    finished is in OUT.journal. Ctrl-C (or SIGTERM) once ends the lines under way and starts no others;
    twice stops at once.

    Exit codes: 0 every line succeeded; 1 some failed; 2 the job could not run to its end; 130 it was
    interrupted.
    """
    files = OutputFiles(out, errors)
    paths = [path.resolve() for path in (*sources, files.out.path, files.errors.path)]
    if len(set(paths)) < len(paths):
        raise SetupError(f"{out}: each input, output and errors must be a file of its own")
    order = Order.INPUT if keep_order else Order.LONGEST_FIRST
    wanted = None if route is None else Route(route)
    options = JobOptions(seed, wanted, concurrency, order, timeout_s, accept_new_contract)
    try:
        with files:
            if STDIN in sources:
                stdin = spool(sys.stdin.buffer, out, start_over=accept_new_contract)
                sources = tuple(stdin if path == STDIN else path for path in sources)
            try:
                code = uvloop.run(_run(InputFiles(*sources), files, router, options, summary))
            finally:
                if files.is_ended or not journal_path(out).exists():
                    spool_path(out).unlink(missing_ok=True)
    except KeyboardInterrupt:  # before the job listened to signals
        code = INTERRUPTED
    sys.exit(code)


async def _run(
    inputs: InputFiles, files: OutputFiles, router: str, options: JobOptions, path: Path | None
) -> int:
    # Lines leave few cycles behind, and what was imported lives as long as the job.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    stop = asyncio.Event()
    async with AsyncClient(router, retry=RETRY) as client:
        job = FileJob(inputs, files, client, options, stop=stop, say=_say)
        task = asyncio.create_task(_finish(job, path))
        _on_signals(task, stop)
        try:
            await task
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
        except Cancelled as error:
            _say(error.message)
    if stop.is_set() and (job.tally.unanswered or not job.tally.total):
        _say("interrupted; the same command goes on with what is missing")
        return INTERRUPTED
    return SOME_FAILED if job.tally.failed else 0


async def _finish(job: FileJob, path: Path | None) -> None:
    """Runs the job, and reports it however it ends once it has begun."""
    async with job:
        try:
            with Progress(job.tally, Console(stderr=True)) as progress:
                async for _ in job.answers():
                    progress.update()
        finally:
            summary = await job.summary()
            click.echo(summary_table(summary), err=True)
            if path is not None:
                _write(path, summary)


def _write(path: Path, summary: dict[str, Json]) -> None:
    with disk_errors(path):
        path.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _on_signals(task: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    """The first signal drains, the second one ends the task at once."""

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        else:
            stop.set()
            _say("stopping: lines under way are ended, no others are started; once more stops at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


def _say(text: str) -> None:
    click.echo(text.encode("utf-8", "backslashreplace"), err=True)
