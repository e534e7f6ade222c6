"""Legs over the wire: prefill, decode, colocated, by raw calls."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from corun_pd.core import Role
from corun_pd.v1 import legs_pb2, sampling_pb2
from corun_pd.wire.status import error_from_rpc

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 512)

STOP = sampling_pb2.FINISH_REASON_STOP
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize("stream", [False, True])
async def test_handed_over_equals_colocated(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any, stream: bool
) -> None:
    """Tokens, logprobs and reasons; the KV moved, P computed the prompt, D none of it, and all is freed."""
    prefill, decode, colocated = [await launch(role) for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED)]
    assert prefill.info.fingerprint == decode.info.fingerprint == colocated.info.fingerprint
    calls = prefill.prefills(), decode.decodes(), colocated.generations()
    legs = [
        leg(n, range(n), stream=stream, seed=n, logprobs=2 if n % 2 else None, max_tokens=1 + n % 9)
        for n in LENGTHS
    ]
    await calls[0].send(*map(prefill_start, legs))
    await calls[2].send(*legs)
    for start in legs:
        n = start.leg_id
        reference = await calls[2].finish(n)
        first = await calls[0].finish(n)
        tokens, logprobs = [first.first_token.token_id], [first.first_token.logprobs]
        reason = first.finish_reason
        if start.sampling.max_tokens == 1:
            assert reason == LENGTH
            assert not first.HasField("handoff")
        else:
            assert not reason
            await calls[1].send(decode_start(start, first))
            rest = await calls[1].finish(n)
            tokens += calls[1].tokens[n] if stream else rest.token_ids
            logprobs += calls[1].logprobs.get(n, []) if stream else [rest.logprobs]
            reason = rest.finish_reason
            assert rest.kv_pulled_byte_count == -(-n // 16) * prefill.info.block_bytes
        assert tokens == list(calls[2].tokens[n] if stream else reference.token_ids)
        assert reason == reference.finish_reason
        expected = calls[2].logprobs.get(n, []) if stream else [reference.logprobs]
        assert [v for entry in logprobs for v in entry.sampled] == [v for e in expected for v in e.sampled]
        assert [v for entry in logprobs for v in entry.top] == [v for e in expected for v in e.top]
    loads = [await instance.until_idle() for instance in (prefill, decode, colocated)]
    assert loads[0].prefilled_tokens == sum(LENGTHS)
    assert loads[1].prefilled_tokens == 0
    assert loads[1].kv_pulled_bytes > 0
    assert loads[0].open_handoffs == 0


async def test_rows_of_many_legs_share_a_message(launch: Any, leg: Any) -> None:
    """A step of N rows is one message, not N."""
    colocated = await launch(Role.COLOCATED, decode_step_s=0.02)
    call = colocated.generations()
    await call.send(*(leg(n, stream=True, max_tokens=20) for n in range(4)))
    messages = 0
    while len(call.finishes) < 4:
        assert await call.read()
        messages += 1
    assert sum(map(len, call.tokens.values())) == 80
    assert messages <= 30


async def test_a_prefill_leg_that_ends_with_its_first_token_keeps_no_blocks(
    launch: Any, leg: Any, prefill_start: Any
) -> None:
    """Stop tokens are looked at on the first token; there is nothing to hand over then."""
    prefill = await launch(Role.PREFILL)
    call = prefill.prefills()
    await call.send(prefill_start(leg(1, logit_bias={30: 100}, stop_token_ids=(30,))))
    finish = await call.finish(1)
    assert (finish.finish_reason, finish.stop_token_id, finish.first_token.token_id) == (STOP, 30, 30)
    assert not finish.HasField("handoff")
    await prefill.until_idle()


async def test_a_prefill_leg_without_hand_off_gives_the_same_first_token(
    launch: Any, leg: Any, prefill_start: Any
) -> None:
    """Its generation is not over, and its blocks are free at once."""
    prefill = await launch(Role.PREFILL)
    call = prefill.prefills()
    await call.send(prefill_start(leg(1)), prefill_start(leg(2), hand_off=False))
    kept, freed = await call.finish(1), await call.finish(2)
    assert kept.first_token == freed.first_token
    assert not freed.finish_reason
    assert not freed.HasField("handoff")
    assert (await prefill.load()).open_handoffs == 1


def without_handoff(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.ClearField("handoff")


def without_first_token(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.ClearField("first_token")


def other_count(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.token_count += 1


def other_prompt(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.leg.prompt.ids[0] += 1


def other_contract(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.fingerprint = "0" * 64


def other_engine(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.engine_id = "fake-of-yesterday"


def other_blocks(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.block_groups[0].ids[0] = 1 << 20


def other_ticket(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.handoff_id += "0"


def nobody_there(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.side_channel_port = 1


def other_rng_scheme(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.first_token.rng.scheme = "mersenne"


def other_rng_step(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.first_token.rng.step = 2


def other_seed(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.first_token.rng.seed += 1


def little_lease(start: legs_pb2.RunDecodesRequest.Start) -> None:
    start.handoff.lease_duration.CopyFrom(Duration(nanos=1000))


@pytest.mark.parametrize(
    "spoil",
    [
        without_handoff,
        without_first_token,
        other_count,
        other_prompt,
        other_contract,
        other_engine,
        other_blocks,
        other_ticket,
        nobody_there,
        other_rng_scheme,
        other_rng_step,
        other_seed,
        little_lease,
    ],
)
async def test_decode_refuses_what_it_cannot_prove(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any, spoil: Callable[[Any], None]
) -> None:
    """ABORTED, no token, no local prefill, no block lost; the other leg of the call goes on."""
    prefill, decode = await launch(Role.PREFILL), await launch(Role.DECODE)
    first, second = prefill.prefills(), decode.decodes()
    await first.send(prefill_start(leg(1)), prefill_start(leg(2)))
    spoilt, good = [decode_start(leg(n), await first.finish(n)) for n in (1, 2)]
    spoil(spoilt)
    await second.send(spoilt, good)
    refusal = await second.finish(1)
    assert (refusal.error.code, refusal.error.reason) == (10, "HANDOFF_REJECTED")
    assert not refusal.token_ids
    assert len((await second.finish(2)).token_ids) == 7
    assert (await decode.until_idle()).prefilled_tokens == 0
    assert (await prefill.load()).open_handoffs == 1
    await first.send(release_handoff_ids=[first.finishes[1].handoff.handoff_id])
    await prefill.until_idle()


async def test_a_handoff_is_single_use_over_all_calls(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any
) -> None:
    """A second decode instance is refused by the prefill side, a second leg by the decode side itself."""
    prefill, decode, other = await launch(Role.PREFILL), await launch(Role.DECODE), await launch(Role.DECODE)
    first = prefill.prefills()
    await first.send(prefill_start(leg(1)))
    start = decode_start(leg(1), await first.finish(1))
    for instance, problem in ((decode, None), (decode, "used before"), (other, "unknown here")):
        call = instance.decodes()
        await call.send(start)
        finish = await call.finish(1)
        assert finish.HasField("error") == (problem is not None)
        assert (problem or "") in finish.error.message
    await prefill.until_idle()


async def test_an_expired_handoff_is_freed_and_refused(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any
) -> None:
    """Its blocks come back by themselves, and a pull that comes later gets nothing."""
    prefill, decode = await launch(Role.PREFILL, lease_s=0.1), await launch(Role.DECODE)
    first, second = prefill.prefills(), decode.decodes()
    await first.send(prefill_start(leg(1)))
    start = decode_start(leg(1), await first.finish(1))
    assert 0 < start.handoff.lease_duration.ToTimedelta().total_seconds() <= 0.1
    assert (await prefill.load()).open_handoffs == 1
    await prefill.until_idle()
    start.handoff.lease_duration.CopyFrom(Duration(seconds=60))
    await second.send(start)
    assert "expired" in (await second.finish(1)).error.message


async def test_another_prompts_kv_is_never_decoded(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any
) -> None:
    """Blocks that were used again in between show by their digest."""
    prefill, decode = await launch(Role.PREFILL), await launch(Role.DECODE)
    prefill.engine.faults.corrupt_handoffs = True
    first, second = prefill.prefills(), decode.decodes()
    await first.send(prefill_start(leg(1)))
    await second.send(decode_start(leg(1), await first.finish(1)))
    finish = await second.finish(1)
    assert "another prompt" in finish.error.message
    assert not finish.token_ids
    await decode.until_idle()


async def test_a_leg_that_does_not_stream_tells_of_its_pull(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any
) -> None:
    """Long before its end: the prefill side's blocks are free by then."""
    prefill, decode = await launch(Role.PREFILL), await launch(Role.DECODE, decode_step_s=0.05)
    first, second = prefill.prefills(), decode.decodes()
    await first.send(prefill_start(leg(1, max_tokens=1000)))
    await second.send(decode_start(leg(1, max_tokens=1000), await first.finish(1)))
    while not second.pulled:
        assert await second.read()
    assert second.pulled == [1]
    assert not second.finishes
    await prefill.until_idle()


@pytest.mark.parametrize("how", ["cancel", "end of the call"])
@pytest.mark.parametrize("point", ["in the queue", "in prefill", "handed off"])
async def test_prefill_gives_blocks_back_at_every_point(
    launch: Any, leg: Any, prefill_start: Any, how: str, point: str
) -> None:
    """Whatever the leg was doing when its router went away or changed its mind."""
    prefill = await launch(Role.PREFILL, prefill_s_per_token=0 if point == "handed off" else 0.02)
    call = prefill.prefills()
    ids = range(3) if point == "in the queue" else range(1)
    await call.send(*(prefill_start(leg(n, range(10))) for n in ids))
    if point == "handed off":
        await call.finish(0)
    loaded = await prefill.until(lambda load: load.free_blocks < prefill.info.blocks)
    assert loaded.open_handoffs == (point == "handed off")
    if how == "end of the call":
        call.call.cancel()
    elif point == "handed off":
        await call.send(release_handoff_ids=[call.finishes[0].handoff.handoff_id, "unknown"])
    else:
        await call.send(cancel_leg_ids=[*ids, 77])
    await prefill.until_idle()
    assert (await prefill.load()).open_handoffs == 0


@pytest.mark.parametrize("how", ["cancel", "end of the call"])
@pytest.mark.parametrize("point", ["waits for room", "in transfer", "waits for a row", "in decode"])
async def test_decode_gives_blocks_back_at_every_point(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any, how: str, point: str
) -> None:
    """Both sides are back at their base, once the router has released what was not pulled."""
    prefill = await launch(Role.PREFILL, slots=1)
    decode = await launch(
        Role.DECODE,
        slots=1,
        decode_step_s=0.05,
        transfer_s=0.2 if point == "in transfer" else 0.0,
        kv_cache_bytes=7 * 16 * 1024,  # room for one such leg when others wait for it
        max_model_tokens=2048,
    )
    first, second = prefill.prefills(), decode.decodes()
    length = 90 if point == "waits for room" else 20
    legs = [leg(n, stream=True, max_tokens=length) for n in range(2 if point.startswith("waits") else 1)]
    await first.send(*map(prefill_start, legs))
    await second.send(*[decode_start(start, await first.finish(start.leg_id)) for start in legs])
    if point == "in transfer":
        await decode.until(lambda load: load.waiting == 1)
    else:
        await second.first_token(0)
        load = await decode.load()
        assert (load.running, load.waiting) == (1, len(legs) - 1)
        assert (await prefill.load()).open_handoffs == point.startswith("waits")
    if how == "cancel":
        await second.send(cancel_leg_ids=[start.leg_id for start in legs])
    else:
        second.call.cancel()
    await decode.until_idle()
    await first.send(release_handoff_ids=[finish.handoff.handoff_id for finish in first.finishes.values()])
    await prefill.until_idle()


async def test_a_cancelled_leg_leaves_the_others_alone(launch: Any, leg: Any) -> None:
    """The other answer is what it is alone; the cancelled leg has no finish."""
    colocated = await launch(Role.COLOCATED, decode_step_s=0.002)
    call = colocated.generations()
    await call.send(leg(1, stream=True, max_tokens=50), leg(2, stream=True, max_tokens=50))
    await call.first_token(1)
    await call.send(cancel_leg_ids=[1])
    await call.finish(2)
    await call.send(leg(3, stream=True, max_tokens=50))
    await call.finish(3)
    assert call.tokens[3] == call.tokens[2]
    assert 1 not in call.finishes
    await colocated.until_idle()


async def test_standard_answers_depend_on_co_runners(launch: Any, leg: Any) -> None:
    """The control: a check of determinism that passes this role checks nothing."""
    answers = {}
    for role in (Role.STANDARD, Role.COLOCATED):
        instance = await launch(role)
        alone, crowd = instance.generations(), instance.generations()
        await alone.send(leg(1))
        await alone.finish(1)
        await crowd.send(*(leg(n, seed=n) for n in range(2, 9)), leg(1))
        await crowd.finish(1)
        answers[role] = alone.finishes[1].token_ids == crowd.finishes[1].token_ids
    assert answers == {Role.STANDARD: False, Role.COLOCATED: True}


async def test_an_ablation_is_another_contract_and_fails_the_control(launch: Any, leg: Any) -> None:
    """A mechanism that is off shows in the fingerprint as well as in the answers."""
    whole = await launch(Role.COLOCATED)
    ablated = await launch(Role.COLOCATED, ablate=("fixed_shape_decode",))
    assert whole.info.fingerprint != ablated.info.fingerprint
    call = ablated.generations()
    await call.send(leg(1), leg(2))
    await call.finish(1)
    await call.finish(2)
    await call.send(leg(3))
    assert (await call.finish(3)).token_ids != call.finishes[1].token_ids


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": range(2041)}, "sampling.max_tokens"),
    ],
)
async def test_legs_that_could_never_run_fail_at_once(
    launch: Any, leg: Any, prefill_start: Any, changes: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT that names the field, on prefill and colocated alike: their limits are one."""
    for instance, call in [
        (prefill := await launch(Role.PREFILL), prefill.prefills()),
        (colocated := await launch(Role.COLOCATED), colocated.generations()),
    ]:
        start = leg(1, **changes)
        await call.send(prefill_start(start) if instance is prefill else start)
        error = (await call.finish(1)).error
        assert (error.code, error.metadata["field"]) == (3, field)


async def test_prompt_and_output_that_just_fit_are_served(launch: Any, leg: Any) -> None:
    """The limit itself is allowed."""
    colocated = await launch(Role.COLOCATED)
    call = colocated.generations()
    await call.send(leg(1, range(2040)))
    assert len((await call.finish(1)).token_ids) == 8


async def test_a_leg_with_an_unset_scalar_is_refused_by_name(launch: Any, leg: Any) -> None:
    """Zero and unset stay apart; the instance guesses nothing."""
    colocated = await launch(Role.COLOCATED)
    call = colocated.generations()
    start = leg(1)
    start.sampling.ClearField("temperature")
    await call.send(start)
    assert (await call.finish(1)).error.metadata["field"] == "sampling.temperature"


async def test_a_leg_id_in_use_ends_the_call(launch: Any, leg: Any) -> None:
    """INVALID_ARGUMENT on the call itself, and all its legs are gone."""
    colocated = await launch(Role.COLOCATED, decode_step_s=0.05)
    call = colocated.generations()
    await call.send(leg(1, max_tokens=500), leg(1))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.finish(1)
    assert "1 is in use" in str(error_from_rpc(failure.value))
    await colocated.until_idle()


async def test_a_caller_that_has_sent_all_gets_all(launch: Any, leg: Any) -> None:
    """Half-closed, the call ends with its last leg."""
    colocated = await launch(Role.COLOCATED)
    call = colocated.generations()
    await call.send(leg(1), leg(2))
    await call.call.done_writing()
    async with asyncio.timeout(10):
        while await call.read():
            pass
    assert set(call.finishes) == {1, 2}
    assert await call.call.code() is grpc.StatusCode.OK


async def test_a_failed_leg_fails_alone(launch: Any, leg: Any, prefill_start: Any) -> None:
    """The engine's failure on one leg is that leg's error, INTERNAL, and its blocks are free."""
    prefill = await launch(Role.PREFILL)
    prefill.engine.faults.fail_leg = lambda work: work.sampling.seed == 13
    call = prefill.prefills()
    await call.send(prefill_start(leg(1, seed=13)), prefill_start(leg(2), hand_off=False))
    assert (await call.finish(1)).error.reason == "ENGINE_FAILED"
    assert not (await call.finish(2)).HasField("error")
    await prefill.until_idle()
