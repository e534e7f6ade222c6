"""Offline jobs: lines of OpenAI's batch format in, answers out, the same bytes on every run.

    async for answer in run_job(Path("prompts.jsonl"), client):
        ...

`FileJob` is the job of `corun-pd run-batch`: it writes files in the order of the input, and a journal
beside them by which it goes on where it was stopped. It reads its inputs twice. The first pass finds
every bad line before anything is computed; the second runs the good ones. Bad lines get a 400 answer in
the error file, so that each input line has exactly one answer, in one of the two files.
"""

from corun_pd.batch.file_job import FileJob, JobOptions
from corun_pd.batch.inputs import InputFiles, InputRows
from corun_pd.batch.job import Answer, run_job
from corun_pd.batch.order import Order
from corun_pd.batch.output import OutputFiles
from corun_pd.batch.reader import MAX_LINE_BYTES
from corun_pd.batch.report import Measure, Tally
from corun_pd.batch.source import BatchSource, Refusal, Served, Work

__all__ = [
    "MAX_LINE_BYTES",
    "Answer",
    "BatchSource",
    "FileJob",
    "InputFiles",
    "InputRows",
    "JobOptions",
    "Measure",
    "Order",
    "OutputFiles",
    "Refusal",
    "Served",
    "Tally",
    "Work",
    "run_job",
]
