"""Controls: with one mechanism off, a request alone differs from itself in a batch; with all on, none does.

Seen on qwen3-wide (hidden size 1536), bfloat16, one thread, x86-64 with oneDNN, where a matrix product of
one row takes another path than one of several. Narrower models give every shape the same bits there and
make only the random scheme's control fail. docs/determinism.md has the counts.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from corun_pd.bench.bits import Agreement, differences
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.config import Ablation
from corun_pd.core import Role
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import as_engine_request, make_requests

#: Of the oracle's requests those that say their logprobs, with outputs long enough for company to change.
REQUESTS = [
    as_engine_request(replace(request, max_tokens=20, ignore_eos=True, stop_token_ids=()))
    for request in make_requests(40)
    if request.logprobs is not None and request.max_tokens == 10
][:20]

CONTROLS: dict[str, tuple[Role, tuple[Ablation, ...]]] = {
    "none off": (Role.COLOCATED, ()),
    "standard scheduling": (Role.STANDARD, ()),
    "sampler padding": (Role.COLOCATED, (Ablation.SAMPLER_PADDING,)),
    "request-bound variates": (Role.COLOCATED, (Ablation.REQUEST_RNG,)),
    "fixed-shape decode": (Role.COLOCATED, (Ablation.FIXED_SHAPE_DECODE,)),
}


@pytest.fixture(scope="module")
def agreements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Agreement]]:
    """For each control, how many requests are the same alone and all at once."""
    logs = tmp_path_factory.mktemp("controls")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        engines = [
            stack.enter_context(
                EngineProcess(model_of("qwen3"), role, engine_config(ablate=ablate), logs / f"{name}.log")
            )
            for name, (role, ablate) in CONTROLS.items()
        ]
        found = dict(zip(CONTROLS, pool.map(compare_company, CONTROLS, engines), strict=True))
        for agreement in found.values():
            print(agreement)
        yield found


def compare_company(name: str, engine: EngineProcess) -> Agreement:
    """Runs all at once, then one after the other."""
    engine.ready()
    together = engine.run(Job(REQUESTS)).records
    alone = engine.run(Job(REQUESTS, concurrency=1)).records
    return differences(name, together, alone)


def test_with_every_mechanism_none_differs(agreements: dict[str, Agreement]) -> None:
    """The same requests on the same kind of engine: the controls' failures are the mechanisms' doing."""
    agreement = agreements["none off"]
    assert agreement.same_bits == agreement.requests == len(REQUESTS)


def test_standard_scheduling_breaks_the_contract(agreements: dict[str, Agreement]) -> None:
    """vLLM's own mixing of prompts and decode rows gives other logprobs, and now and then other tokens."""
    assert agreements["standard scheduling"].same_bits < len(REQUESTS)


def test_without_sampler_padding_the_contract_breaks(agreements: dict[str, Agreement]) -> None:
    """The LM head sees as many rows as there are requests, and gives other logprobs."""
    assert agreements["sampler padding"].same_bits < len(REQUESTS)


def test_without_request_bound_variates_the_contract_breaks(agreements: dict[str, Agreement]) -> None:
    """Variates that belong to slots and steps give other tokens in other company."""
    assert agreements["request-bound variates"].same_tokens < len(REQUESTS)


def test_without_fixed_shape_decode_the_contract_breaks(agreements: dict[str, Agreement]) -> None:
    """A decode step of as many rows as there are requests gives other logprobs."""
    assert agreements["fixed-shape decode"].same_bits < len(REQUESTS)
