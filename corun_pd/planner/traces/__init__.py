"""Traces of public workloads as streams of requests, with a report of what became of every row."""

from corun_pd.planner.traces.azure import Azure
from corun_pd.planner.traces.burstgpt import BurstGpt
from corun_pd.planner.traces.hashed import HashedTrace, mooncake, vllm_timed
from corun_pd.planner.traces.lengths import LengthRule, characters_per_token
from corun_pd.planner.traces.openai_batch import OpenAiBatch
from corun_pd.planner.traces.prompts import prompt_ids
from corun_pd.planner.traces.report import Drop, Note, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.sharegpt import ShareGpt
from corun_pd.planner.traces.synthetic import Fixed, Lengths, LogNormal, Synthetic, Uniform
from corun_pd.planner.traces.take import take
from corun_pd.planner.traces.trace import Trace

__all__ = [
    "Azure",
    "BurstGpt",
    "Drop",
    "Fixed",
    "HashedTrace",
    "LengthRule",
    "Lengths",
    "LogNormal",
    "Note",
    "OpenAiBatch",
    "ShareGpt",
    "Synthetic",
    "Trace",
    "TraceReport",
    "TraceRequest",
    "Uniform",
    "characters_per_token",
    "mooncake",
    "prompt_ids",
    "take",
    "vllm_timed",
]
