"""Controls: with one mechanism off, a request alone differs from itself in a batch; with all on, none does.

Seen on qwen3-wide (hidden size 1536), bfloat16, one thread, x86-64 with oneDNN, where a matrix product of
one row takes another path than one of several. Narrower models give every shape the same bits there and
make only the random scheme's control fail. docs/determinism.md has the counts.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from corun_pd.bench.bits import Agreement, differences
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import Ablation
from corun_pd.core import Role, SamplingParams
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import as_engine_request, make_prompt, make_requests

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
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineProcess]]:
    """An engine for each control."""
    logs = tmp_path_factory.mktemp("controls")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                EngineProcess(model_of("qwen3"), role, engine_config(ablate=ablate), logs / f"{name}.log")
            )
            for name, (role, ablate) in CONTROLS.items()
        }


@pytest.fixture(scope="module")
def agreements(engines: dict[str, EngineProcess]) -> dict[str, Agreement]:
    """For each control, how many requests are the same alone and all at once."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(engines, pool.map(compare_company, engines, engines.values()), strict=True))
    for agreement in found.values():
        print(agreement)
    return found


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


# ---- top-p near a boundary ---------------------------------------------------------------------------------


def boundary_requests(engine: EngineProcess) -> list[EngineRequest]:
    """Requests whose second token is drawn with a nucleus that ends within rounding of a token's share.

    Found by a first run in which the nucleus is one token: `top_p` is then the share of the likeliest token
    of the second step, a little less and a little more. Prompts stay whose first step has a likelier one, so
    that the first token is the same.
    """
    draw = SamplingParams(max_tokens=2, seed=1, top_p=1e-6, ignore_eos=True, logprobs=1)
    probes = [EngineRequest(make_prompt(9 + at % 40, at), replace(draw, seed=at)) for at in range(64)]
    found = []
    for probe, record in zip(probes, engine.run(Job(probes)).records, strict=True):
        first, second = (math.exp(entry[0]) for entry in record.logprobs)
        if first > 1.02 * second:
            shares = [second * (1 + shift * 1e-6) for shift in (-300, -1, 0, 1, 300)]
            draws = [replace(probe.sampling, max_tokens=6, top_p=share) for share in shares]
            found += [replace(probe, sampling=sampling) for sampling in draws]
    return found


def boundary_agreement(engine: EngineProcess) -> Agreement:
    """The same requests with one of N rows in use, and with N of N."""
    requests = boundary_requests(engine)
    assert len(requests) >= 50
    full = engine.run(Job(requests)).records
    single = engine.run(Job(requests, concurrency=1)).records
    assert len({record.token_ids for record in full}) > 20
    return differences("one of N", full, single)


@pytest.mark.usefixtures("agreements")
def test_top_p_near_a_boundary_does_not_see_the_occupancy(engines: dict[str, EngineProcess]) -> None:
    """A nucleus that ends within rounding holds the same tokens with one row in use and with all."""
    agreement = boundary_agreement(engines["none off"])
    print(agreement)
    assert agreement.same_bits == agreement.requests


@pytest.mark.usefixtures("agreements")
def test_without_sampler_padding_top_p_near_a_boundary_sees_the_occupancy(
    engines: dict[str, EngineProcess],
) -> None:
    """Its control: other logprobs, and here and there the nucleus holds a token more or less."""
    agreement = boundary_agreement(engines["sampler padding"])
    print(agreement)
    assert agreement.same_bits < agreement.requests
