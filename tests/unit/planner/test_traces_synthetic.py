"""Synthetic requests and prompts."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from corun_pd.errors import ConfigError
from corun_pd.planner.traces import Fixed, LogNormal, Synthetic, TraceRequest, Uniform, prompt_ids
from tests.unit.planner.make import read

SCRIPT = """
import json
from corun_pd.planner.traces import *
trace = Synthetic(50, LogNormal(300, 1.2, 4000), Uniform(1, 9), rate_per_s=3.0, seed=5)
requests = [request._replace(prefix=(index % 3, 1 << 40)) for index, request in enumerate(trace)]
requests = [r if r.prompt_tokens <= 1024 else r._replace(prefix=None) for r in requests]
print(json.dumps([(r, prompt_ids(r, i, vocabulary=1000, block_tokens=512)) for i, r in enumerate(requests)]))
"""


def test_requests_and_prompts_are_the_same_in_every_process() -> None:
    """Python's own hash of text is salted; nothing here rests on it."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())) == 50


def test_prompts_are_those_of_every_release() -> None:
    """Pinned: a change would make old results incomparable."""
    ids = prompt_ids(TraceRequest(None, 40, 1, (3, 4, 5)), 0, vocabulary=32000, block_tokens=16)
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] == "3b58320fe9c8063e"


def test_equal_prefix_names_are_equal_tokens_and_others_are_not() -> None:
    """A prefix is shared as far as the names agree, into a last block that is cut."""
    first = prompt_ids(TraceRequest(None, 40, 1, (1, 2, 3)), 0, vocabulary=32000, block_tokens=16)
    second = prompt_ids(TraceRequest(None, 48, 1, (1, 2, 4)), 1, vocabulary=32000, block_tokens=16)
    assert (len(first), len(second)) == (40, 48)
    assert first[:32] == second[:32]
    assert first[32:] != second[32:40]


def test_lengths_keep_to_their_bounds_and_arrivals_to_their_rate() -> None:
    """Two thousand draws."""
    trace = Synthetic(2000, LogNormal(300, 1.5, 2000, least=10), Fixed(7), rate_per_s=20.0)
    requests = read(trace)
    prompts = sorted(request.prompt_tokens for request in requests)
    assert prompts[0] >= 10
    assert prompts[-1] == 2000
    assert prompts[1000] == pytest.approx(300, rel=0.15)
    assert requests[0].arrival_s == 0.0
    assert trace.report.last_arrival_s == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize("make", [lambda: Fixed(0), lambda: Uniform(5, 4), lambda: LogNormal(-1, 1, 9)])
def test_distribution_of_no_lengths_is_refused(make: object) -> None:
    """Where it is made."""
    assert callable(make)
    with pytest.raises(ConfigError, match="no distribution of lengths"):
        make()
