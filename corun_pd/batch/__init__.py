"""Offline jobs: an OpenAI batch file in, answers in input order out, the same bytes on every run.

A job reads its file twice. The first pass finds every bad line before anything is computed; the second
runs the good ones. Bad lines get a 400 answer in the error file, so that each input line has exactly
one answer, in one of the two files.
"""

from corun_pd.batch.job import Answer, run_job
from corun_pd.batch.output import OutputFiles
from corun_pd.batch.reader import MAX_LINE_BYTES
from corun_pd.batch.report import Tally
from corun_pd.batch.source import BatchSource, Refusal, Served, Work

__all__ = [
    "MAX_LINE_BYTES",
    "Answer",
    "BatchSource",
    "OutputFiles",
    "Refusal",
    "Served",
    "Tally",
    "Work",
    "run_job",
]
