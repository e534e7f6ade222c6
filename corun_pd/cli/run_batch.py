"""`corun-pd run-batch`: an OpenAI batch file in, answers in input order out."""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
from rich.console import Console

from corun_pd.batch import BatchSource, OutputFiles, Refusal, Served, Tally, run_job
from corun_pd.batch.report import summary_table
from corun_pd.cli.options import router_option
from corun_pd.cli.progress import Progress
from corun_pd.client import AsyncClient, RetryPolicy, Route
from corun_pd.core import SEED_LIMIT
from corun_pd.errors import SetupError

__all__ = ["run_batch"]

SOME_FAILED = 1
INTERRUPTED = 130

#: A job outlives a router's restart: some four minutes of outage.
RETRY = RetryPolicy(max_attempts=60)


@dataclass(slots=True)
class _Job:
    """A run of the command. `tally` is None until the file has been checked."""

    source: Path
    files: OutputFiles
    seed: int
    route: Route | None
    concurrency: int | None
    timeout_s: float | None
    console: Console
    tally: Tally | None = None
    inputs: BatchSource | None = None

    async def run(self, router: str) -> None:
        """Checks every line, then runs the good ones."""
        async with AsyncClient(router, retry=RETRY) as client:
            served = Served.of(await client.describe(timeout_s=10))
            self.inputs = BatchSource(self.source, served, seed=self.seed, route=self.route)
            self.tally = self._check(self.inputs)
            concurrency = self.concurrency or max(8, 2 * served.slots)
            answers = run_job(self.inputs, client, served, concurrency=concurrency, timeout_s=self.timeout_s)
            with Progress(self.tally, self.console) as progress, self.files:
                async with aclosing(answers):
                    async for answer in answers:
                        self.files.write(answer)
                        self.tally.add(answer)
                        progress.update()
                self.files.finish()

    def _check(self, inputs: BatchSource) -> Tally:
        total = refused = 0
        for item in inputs:
            total += 1
            if isinstance(item, Refusal):
                refused += 1
                click.echo(f"refused: {item}".encode("utf-8", "backslashreplace"), err=True)
        if refused:
            click.echo(f"{refused} of {total} lines are refused; the others run", err=True)
        return Tally(total, refused)

    def summary(self, tally: Tally, inputs: BatchSource) -> dict[str, str | int | float]:
        """What was read, done and written."""
        return {
            **tally.as_json(),
            "seed": self.seed,
            "system_fingerprint": inputs.served.fingerprint,
            "input": str(self.source),
            "input_sha256": inputs.sha256 or "",
            "output": str(self.files.out.path),
            "output_sha256": self.files.out.sha256,
            "errors": str(self.files.errors.path),
            "errors_sha256": self.files.errors.sha256,
        }


@click.command("run-batch")
@click.option("-i", "--input", "source", type=click.Path(path_type=Path), required=True, metavar="FILE")
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
@click.option("--route", type=click.Choice(Route), help="Which instances may run the lines.")
@click.option(
    "--concurrency", type=click.IntRange(1), help="Lines at once.  [default: twice the fleet's slots]"
)
@click.option(
    "--timeout-s", type=click.FloatRange(0, min_open=True), help="The longest that a line may take."
)
def run_batch(
    source: Path,
    out: Path,
    errors: Path | None,
    summary: Path | None,
    router: str,
    seed: int,
    route: Route | None,
    concurrency: int | None,
    timeout_s: float | None,
) -> None:
    """Runs a file of /v1/completions and /v1/chat/completions lines in OpenAI's batch format.

    Every line is checked before any is run. Bad lines are listed and get a 400 line in the error file;
    the others run. Answers are in the order of the input, and the same bytes on every run under one
    contract and --seed. Files have the suffix .part until every line is answered.

    Exit codes: 0 every line succeeded; 1 some failed; 2 the job could not run to its end; 130 it was
    interrupted.
    """
    files = OutputFiles(out, errors)
    if len({source.resolve(), files.out.path.resolve(), files.errors.path.resolve()}) < 3:
        raise SetupError(f"{source}: input, output and errors must be three files")
    job = _Job(source, files, seed, route, concurrency, timeout_s, Console(stderr=True))
    try:
        asyncio.run(job.run(router))
    except KeyboardInterrupt:
        click.echo("interrupted; what was answered is in the .part files", err=True)
        sys.exit(INTERRUPTED)
    finally:
        _report(job, summary)
    if job.tally is not None and job.tally.failed:
        sys.exit(SOME_FAILED)


def _report(job: _Job, path: Path | None) -> None:
    """The summary, also of a job that was stopped; nothing for one that had not begun."""
    if job.tally is None or job.inputs is None:
        return
    summary = job.summary(job.tally, job.inputs)
    click.echo(summary_table(summary), err=True)
    if path is not None:
        path.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
