"""Fault = replay: an instance fails midway, and the reader gets what an undisturbed run gives."""

import asyncio
from typing import Any

import grpc
import pytest

from corun_pd.client import AsyncClient
from corun_pd.core import Edge, KvHandoff, Role
from corun_pd.decode.tickets import Tickets
from corun_pd.engine.base import LegWork
from corun_pd.errors import ContractBroken, CorunError, EngineFailed, HandoffRejected, Unavailable
from corun_pd.router.legs import DecodeSession
from corun_pd.router.ticket import Ticket
from corun_pd.v1 import router_pb2
from corun_pd.wire.status import error_from_rpc
from tests.integration.conftest import Cluster, MakeCluster, Node
from tests.integration.router.test_handoff import APART, WHOLE, prompt, sampling

SLOW: dict[str, Any] = {"decode": 2, "decode_step_s": 0.01}
LETTERS = dict.fromkeys(range(65, 75), 100.0)

Messages = list[router_pb2.StreamGenerateResponse]


def samples(messages: Messages) -> list[Any]:
    """What came of each sample, put together. Placements are no part of it."""
    found: dict[int, list[Any]] = {}
    for delta in (delta for message in messages for delta in message.deltas):
        text, ids, scores, *_ = found.get(delta.index, ["", [], []])
        logprobs = delta.logprobs
        scores += zip(logprobs.sampled, logprobs.ranks, strict=True)
        end = (delta.finish_reason, delta.stop_string, delta.stop_token_id, delta.seed)
        found[delta.index] = [text + delta.text, [*ids, *delta.token_ids], scores, end]
    return [found[index] for index in sorted(found)]


def replays(messages: Messages) -> list[int]:
    """How often each sample was run again."""
    ends = [d for m in messages for d in m.deltas if d.HasField("placement")]
    return [d.placement.replay_count for d in sorted(ends, key=lambda d: d.index)]


def kill(cluster: Cluster, role: Role) -> Node:
    """The instance of the role that has legs dies. It is out of the cluster's accounts."""
    dead = next(node for node in cluster.nodes if node.info.role is role and node.engine._legs)
    cluster.nodes.remove(dead)
    dead.engine.die()
    return dead


async def cut(cluster: Cluster, role: Role, after: int, salt: int = 0, **fields: Any) -> Messages:
    """A stream in which an instance dies once `after` tokens have been read; the others get a salt."""
    request = router_pb2.StreamGenerateRequest(generation=router_pb2.Generation(**fields))
    messages, seen, dead = [], 0, None
    async for message in cluster.stub.StreamGenerate(request, timeout=20.0):
        messages.append(message)
        seen += sum(len(delta.token_ids) for delta in message.deltas)
        if dead is None and seen >= after:
            assert not any(delta.HasField("placement") for delta in message.deltas)  # it is midway
            dead = kill(cluster, role)
            for node in cluster.nodes:
                node.engine.faults.salt = salt
    assert dead is not None
    await asyncio.gather(dead.task, return_exceptions=True)
    return messages


async def failure(call: Any) -> CorunError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error_from_rpc(error.value)


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ({"temperature": 0.0}, 1),
        ({"seed": 5, "logprob_count": 3}, 1),
        ({"logit_bias": {65: 100.0, 70: 100.0}, "presence_penalty": 0.5}, 1),
        ({"seed": 5, "logprob_count": 1}, 4),
    ],
    ids=["greedy", "seeded with logprobs", "biased", "siblings"],
)
async def test_stream_is_the_same_when_decode_dies_midway(
    make_cluster: MakeCluster, params: dict[str, Any], count: int
) -> None:
    """In tokens, text, logprobs and ends; each sample runs again at most once, and every block comes back."""
    fields = {
        "token_ids": prompt(33),
        "sampling": sampling(max_tokens=40, **params),
        "sample_count": count,
    }
    async with make_cluster(**SLOW) as cluster:
        undisturbed = await cluster.stream(**fields)
        disturbed = await cut(cluster, Role.DECODE, 10 * count, **fields)
        assert samples(disturbed) == samples(undisturbed)
        assert disturbed[-1].end.usage == undisturbed[-1].end.usage
        assert set(replays(undisturbed)) == {0}
        assert max(replays(disturbed)) == 1
        counts = cluster.router.service.telemetry.counts
        assert counts[Edge.REPLAYED] == sum(replays(disturbed))
        assert (counts[Edge.FINISHED], counts[Edge.FAILED]) == (2 * count, 0)
        await cluster.until_idle(within_s=2)


@pytest.mark.parametrize("where", ["decode", "ticket"])
async def test_first_token_comes_once_when_decode_cannot_start(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The instance was lost, or the ticket ran out, between the first token and the start of its leg."""
    fields = {"token_ids": prompt(20), "sampling": sampling(max_tokens=5)}
    faults = iter([Unavailable("lost") if where == "decode" else HandoffRejected("late", handoff_id="h")])
    owner, name = (DecodeSession, "decode") if where == "decode" else (Ticket, "show")
    original = getattr(owner, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        for fault in faults:
            raise fault
        return original(*args, **kwargs)

    async with make_cluster() as cluster:
        undisturbed = await cluster.generate(**fields)
        monkeypatch.setattr(owner, name, failing)
        disturbed = await cluster.generate(**fields)
        assert disturbed.choices[0].placement.replay_count == 1
        assert disturbed.choices[0].token_ids == undisturbed.choices[0].token_ids
        assert disturbed.choices[0].text == undisturbed.choices[0].text
        await cluster.until_idle(within_s=2)


async def test_stop_string_is_found_across_the_cut(make_cluster: MakeCluster) -> None:
    """Its start came from an instance that died, its end from another."""
    async with make_cluster(**SLOW) as cluster:
        params = {"max_tokens": 40, "logit_bias": LETTERS}
        text = samples(await cluster.stream(text="hello", sampling=sampling(**params)))[0][0]
        stop = text[6:26]
        fields = {"text": "hello", "sampling": sampling(**params, stop_strings=[stop])}
        disturbed = await cut(cluster, Role.DECODE, 12, **fields)
        assert replays(disturbed) == [1]
        ((got, ids, _, end),) = samples(disturbed)
        assert (got, len(ids), end[1]) == (text[:6], 26, stop)
        assert samples(await cluster.stream(**fields)) == samples(disturbed)


async def test_colocated_stream_is_the_same_when_its_instance_dies(make_cluster: MakeCluster) -> None:
    """The prompt's logprobs come once."""
    params = sampling(max_tokens=40, logprob_count=2, prompt_logprob_count=1)
    fields = {"token_ids": prompt(20), "sampling": params, "route": WHOLE}
    async with make_cluster(prefill=0, decode=0, colocated=2, decode_step_s=0.01) as cluster:
        undisturbed = await cluster.stream(**fields)
        disturbed = await cut(cluster, Role.COLOCATED, 10, **fields)
        assert samples(disturbed) == samples(undisturbed)
        assert disturbed[-1].end.prompt == undisturbed[-1].end.prompt
        assert replays(disturbed) == [1]
        await cluster.until_idle(within_s=2)


async def test_standard_instance_is_not_replayed(make_cluster: MakeCluster) -> None:
    """It is outside the contract: another run may give other tokens."""
    fields = {"token_ids": prompt(20), "sampling": sampling(max_tokens=40)}
    async with make_cluster(prefill=0, decode=0, standard=2, decode_step_s=0.01) as cluster:
        await failure(cut(cluster, Role.STANDARD, 10, **fields))
        assert cluster.router.service.telemetry.counts[Edge.REPLAYED] == 0


async def test_death_of_prefill_is_survived_by_all_samples(make_cluster: MakeCluster) -> None:
    """While it computes a prompt that three samples share."""
    fields = {"token_ids": prompt(40), "sampling": sampling(), "sample_count": 3, "route": APART}
    async with make_cluster(prefill=2, prefill_s_per_token=0.005) as cluster:
        undisturbed = await cluster.generate(**fields)
        call = asyncio.create_task(cluster.generate(**fields))
        await cluster.until(lambda: any(n.engine._legs for n in cluster.nodes))
        dead = kill(cluster, Role.PREFILL)
        disturbed = await call
        rows = [[(list(c.token_ids), c.text) for c in answer.choices] for answer in (undisturbed, disturbed)]
        assert rows[0] == rows[1]
        assert disturbed.choices[0].placement.replay_count >= 1  # the others may be none the wiser
        assert dead.info.instance_id not in {c.placement.prefill_instance_id for c in disturbed.choices}
        assert cluster.router.service.telemetry.counts[Edge.FAILED] == 0
        await asyncio.gather(dead.task, return_exceptions=True)
        await cluster.until_idle(within_s=2)


async def test_replay_that_differs_breaks_the_contract(
    make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An instance that computes other tokens is found, and both runs' instances are named."""
    async with make_cluster(**SLOW) as cluster:
        names = [node.info.instance_id for node in cluster.nodes]
        fields = {"token_ids": prompt(20), "sampling": sampling(max_tokens=40)}
        error = await failure(cut(cluster, Role.DECODE, 10, salt=1, **fields))
        assert isinstance(error, ContractBroken)
        assert all(name in error.message for name in names)
        assert ", then on " in error.message
        assert any(r.levelname == "ERROR" and error.message in r.getMessage() for r in caplog.records)
        await cluster.until_idle(within_s=2)


@pytest.mark.parametrize("way", ["whole", "many", "streamed"])
async def test_handoff_that_fails_once_is_replayed(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Unstreamed, over a shared call and streamed; the client is told."""
    real, refusals = Tickets.punch, iter([True])

    def punch(tickets: Tickets, handoff: KvHandoff, *rest: Any) -> None:
        if next(refusals, False):
            raise HandoffRejected("refused by a test", handoff_id=handoff.handoff_id)
        real(tickets, handoff, *rest)

    async with make_cluster() as cluster, AsyncClient(cluster.address) as client:
        undisturbed = await client.generate("hello", seed=7, max_tokens=8)
        monkeypatch.setattr(Tickets, "punch", punch)
        if way == "whole":
            result = await client.generate("hello", seed=7, max_tokens=8)
        elif way == "many":
            async with client.shared() as shared:
                result = await shared.generate("hello", seed=7, max_tokens=8)
        else:
            stream = client.stream("hello", seed=7, max_tokens=8)
            assert [delta async for delta in stream]
            result = stream.result
        assert result.choices == undisturbed.choices
        assert (undisturbed.choices[0].placement.replays, result.choices[0].placement.replays) == (0, 1)
        await cluster.until_idle(within_s=2)


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_replays_are_bounded(make_cluster: MakeCluster, most: int) -> None:
    """`max_replays` after the first run; then the fault is the caller's."""
    runs: list[LegWork] = []
    async with make_cluster(router={"max_replays": most}) as cluster:
        cluster.node(Role.DECODE).engine.faults.fail_leg = lambda work: not runs.append(work)  # type: ignore[attr-defined]
        error = await failure(cluster.generate(text="hello", sampling=sampling()))
        assert isinstance(error, EngineFailed)
        assert len(runs) == 1 + most
        counts = cluster.router.service.telemetry.counts
        assert (counts[Edge.REPLAYED], counts[Edge.FAILED]) == (most, 1)
        await cluster.until_idle(within_s=2)


async def test_loss_of_the_only_instance_is_what_the_caller_hears(make_cluster: MakeCluster) -> None:
    """And not that no instance has joined, which would be true as well."""
    async with make_cluster(decode_step_s=0.01) as cluster:
        fields = {"token_ids": prompt(20), "sampling": sampling(max_tokens=40)}
        error = await failure(cut(cluster, Role.DECODE, 10, **fields))
        assert "role" not in error.metadata
        assert "told to die" in error.message
        assert cluster.router.service.telemetry.counts[Edge.REPLAYED] == 1
