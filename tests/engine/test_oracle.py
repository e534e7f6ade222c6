"""The oracle: one answer to a request, colocated and apart, by SDK and file, in any company and order.

Model: qwen3-wide (hidden size 1536), bfloat16, one thread. test_controls shows that the same requests
tell a broken contract from a kept one.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from corun_pd.bench.compare import compare
from corun_pd.client import AsyncClient, FinishReason, GenerationRequest, GenerationResult, Route
from corun_pd.core import Role
from tests.engine.lines import as_line, in_answer, in_file
from tests.engine.workload import grown, make_requests, member, run_file, send, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT = 208
ORDERS = {
    "forward": list(range(COUNT)),
    "reversed": list(range(COUNT))[::-1],
    "shuffled": random.Random(11).sample(range(COUNT), COUNT),
}


@pytest.fixture(scope="session")
def requests() -> list[GenerationRequest]:
    return make_requests(COUNT)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reference(client: AsyncClient, requests: list[GenerationRequest]) -> list[GenerationResult]:
    """What a colocated engine answers when all come at once, in order."""
    return await send(client, requests, Route.COLOCATED)


async def test_the_requests_reach_every_end(reference: list[GenerationResult]) -> None:
    """At the limit, at EOS, a stop token and a stop string; with the first token, and later."""
    choices = [choice for result in reference for choice in result.choices]
    ends = Counter((choice.finish_reason, type(choice.stop_reason)) for choice in choices)
    assert all(
        ends[end] >= 5
        for end in (
            (FinishReason.LENGTH, type(None)),
            (FinishReason.STOP, type(None)),
            (FinishReason.STOP, int),
            (FinishReason.STOP, str),
        )
    ), ends
    assert sum(c.finish_reason is FinishReason.STOP and len(c.token_ids) == 1 for c in choices) >= 3


@pytest.mark.parametrize(("order", "at_once"), [("shuffled", 5), ("reversed", COUNT)])
async def test_colocated_answers_do_not_depend_on_order_and_company(
    client: AsyncClient,
    requests: list[GenerationRequest],
    reference: list[GenerationResult],
    order: str,
    at_once: int,
) -> None:
    """The reference is one: whatever runs beside a request."""
    found = await send(client, requests, Route.COLOCATED, ORDERS[order], at_once)
    assert not compare(order, reference, found).differences


async def test_colocated_answers_are_those_of_a_request_alone(
    client: AsyncClient, requests: list[GenerationRequest], reference: list[GenerationResult]
) -> None:
    """Decode of one row among seven of padding, for every third request."""
    found = await send(client, requests[::3], Route.COLOCATED, at_once=1)
    assert not compare("alone", reference[::3], found).differences


@pytest.mark.parametrize(("order", "at_once"), [("forward", COUNT), ("reversed", 5), ("shuffled", COUNT)])
async def test_apart_is_colocated_in_every_bit_and_every_prompt_moves(
    client: AsyncClient,
    requests: list[GenerationRequest],
    reference: list[GenerationResult],
    order: str,
    at_once: int,
) -> None:
    """Tokens, logprobs, ends, usage and text; and the engines' own counts prove the way (C04)."""
    before = await until_idle(client)
    found = await send(client, requests, Route.DISAGGREGATED, ORDERS[order], at_once)
    after = await until_idle(client)
    assert not compare(order, reference, found).differences
    check_placements(found, member(after, Role.DECODE).instance.block_bytes)
    choices = [choice for result in found for choice in result.choices]
    prompts = sum(result.usage.prompt_tokens for result in found)  # once, however many samples
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == prompts
    assert grown(before, after, Role.DECODE, "prefilled_tokens") == 0
    assert grown(before, after, Role.COLOCATED, "sampled_tokens") == 0
    assert grown(before, after, Role.PREFILL, "sampled_tokens") == len(choices)
    # What NIXL says that it moved, against what the answers say.
    moved = sum(choice.placement.kv_moved_bytes for choice in choices)
    assert grown(before, after, Role.DECODE, "kv_pulled_bytes") == moved > 0


def check_placements(results: Sequence[GenerationResult], block_bytes: int) -> None:
    """A sample that reached decode moved the blocks of its prompt; one that did not moved nothing."""
    for result in results:
        for choice in result.choices:
            place, blocks = choice.placement, -(-result.usage.prompt_tokens // 32)
            assert place.prefill.startswith("prefill-")
            assert bool(place.decode) == (len(choice.token_ids) > 1)
            assert place.kv_moved_bytes == (blocks * block_bytes if place.decode else 0)


@pytest.mark.parametrize(("route", "at_once"), [(Route.DISAGGREGATED, 64), (Route.COLOCATED, 7)])
async def test_a_batch_file_gets_the_same_bits(
    client: AsyncClient,
    requests: list[GenerationRequest],
    reference: list[GenerationResult],
    tmp_path: Path,
    model: Path,
    route: Route,
    at_once: int,
) -> None:
    """run-batch's job on the same cluster: answers in the file's order, read back from their JSON."""
    rows = (as_line(at, request, model.name) for at, request in enumerate(requests))
    found = await run_file(client, tmp_path / "in.jsonl", rows, route, at_once)
    assert [row["custom_id"] for row in found] == [f"r{at}" for at in range(COUNT)]
    for row, request, expected in zip(found, requests, reference, strict=True):
        body = row["response"]["body"]
        assert row["response"]["status_code"] == 200, body
        assert body["system_fingerprint"] == expected.system_fingerprint
        assert body["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
        assert body["usage"]["completion_tokens"] == expected.usage.completion_tokens
        assert in_file(body) == in_answer(request, expected)
    await until_idle(client)
