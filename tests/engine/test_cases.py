"""Faults that users of such systems have met, on real engines: apart gives what colocated gives."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from corun_pd.bench.compare import compare, first_difference
from corun_pd.client import AsyncClient, FinishReason, GenerationResult, Options, Prompt, Route, build_request
from corun_pd.cluster.command import python_module
from corun_pd.cluster.local import LocalCluster
from corun_pd.core import Role
from corun_pd.errors import DeadlineExceeded
from tests.engine.conftest import DEFAULTS, engine_config, model_of
from tests.engine.workload import BLOCK, EOS, grown, make_prompt, member, run_file, send, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The river ran down from the hills"


async def on_both(client: AsyncClient, prompt: Prompt | None, **options: Any) -> GenerationResult:
    """The answer apart, which is the colocated one in every bit; and nothing stays behind."""
    apart = await client.generate(prompt, route=Route.DISAGGREGATED, **options)
    together = await client.generate(prompt, route=Route.COLOCATED, **options)
    assert first_difference(0, together, apart) is None
    await until_idle(client)
    return apart


async def steps_of(client: AsyncClient, role: Role) -> int:
    """How many steps with rows an idle engine has run."""
    load = member(await until_idle(client), role).load
    assert load is not None
    return load.steps


# ---- C03, C04, C05: edges of blocks, the way that the KV cache takes, parity from the first token ----------


async def test_prompts_at_block_edges_are_right_twice(client: AsyncClient) -> None:
    """Each is sent twice: the first leaves nothing that the second would hit (C03)."""
    lengths = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 16 * BLOCK]
    requests = [
        build_request(make_prompt(n, n), {"max_tokens": 6, "seed": n, "logprobs": 2}) for n in lengths
    ]
    expected = await send(client, requests, Route.COLOCATED)
    for attempt in ("first", "second"):
        found = await send(client, requests, Route.DISAGGREGATED)
        assert not compare(attempt, expected, found).differences
        await until_idle(client, within_s=3)


async def test_a_prompt_is_computed_on_prefill_and_moves(client: AsyncClient) -> None:
    """500 tokens: all of them on prefill, none on decode, 16 blocks by NIXL's own count (C04)."""
    before = await until_idle(client)
    result = await client.generate(make_prompt(500, 1), max_tokens=4, seed=1, ignore_eos=True)
    after = await until_idle(client)
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == 500
    assert grown(before, after, Role.DECODE, "prefilled_tokens") == 0
    block_bytes = member(after, Role.DECODE).instance.block_bytes
    moved = grown(before, after, Role.DECODE, "kv_pulled_bytes")
    assert moved == 16 * block_bytes == result.choices[0].placement.kv_moved_bytes > 0


async def test_short_and_long_prompts_agree_from_the_first_token(client: AsyncClient) -> None:
    """Greedy, with every position's likeliest tokens; one prompt has 4,000 tokens (C05)."""
    lengths = [4000, *range(1, 19)]
    requests = [
        build_request(make_prompt(n, 50 + n), {"max_tokens": 6, "temperature": 0, "logprobs": 20, "seed": n})
        for n in lengths
    ]
    # Two tokens whose logits are close, at every step: a bit of another kernel would swap them.
    tie: Options = {
        "max_tokens": 16,
        "temperature": 0,
        "logprobs": 2,
        "seed": 1,
        "logit_bias": {100: 50, 101: 50},
    }
    requests += [build_request(make_prompt(40, n), tie) for n in range(4)]
    expected = await send(client, requests, Route.COLOCATED)
    found = await send(client, requests, Route.DISAGGREGATED)
    assert not compare("apart", expected, found).differences


async def test_an_instance_of_another_contract_is_refused_when_it_joins(
    client: AsyncClient, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Another model, dtype and chunk: the instance ends, naming each; the fleet goes on without it (C05)."""
    config = {
        "model": str(model_of("qwen3-moe")),
        "engine": engine_config(dtype="float32", prefill={"mode": "isolated", "chunk_tokens": 96}).model_dump(
            mode="json"
        ),
        "instances": [{"role": "colocated"}],
    }
    file = tmp_path / "other.yaml"
    file.write_text(json.dumps(config))
    argv = python_module(
        "corun_pd.cli.main", "colocated", "--config", str(file), "--router", cluster.router_address
    )
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    text = output.decode()
    assert process.returncode == 2, text
    for field in ("model_digest", "dtype", "prefill_chunk_tokens"):
        assert field in text
    assert '"torch.bfloat16" != "torch.float32"' in text
    assert len((await client.describe()).members) == 3


# ---- C09: limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "count", "finish"),
    [
        ({"max_tokens": 1, "ignore_eos": True}, 1, "length"),
        ({"max_tokens": 2, "ignore_eos": True}, 2, "length"),
        ({"max_tokens": 7, "ignore_eos": True}, 7, "length"),
        ({"ignore_eos": True}, 16, "length"),
        ({"max_tokens": 1, "min_tokens": 1, "logit_bias": {EOS: 100.0}}, 1, "length"),
        ({"max_tokens": 9, "min_tokens": 9, "logit_bias": {EOS: 100.0}}, 9, "length"),
        ({"max_tokens": 50, "min_tokens": 1, "logit_bias": {EOS: 100.0}}, 2, "stop"),
        ({"max_tokens": 500, "min_tokens": 100, "logit_bias": {EOS: 100.0}}, 101, "stop"),
        ({"max_tokens": 50, "min_tokens": 12, "stop_token_ids": [9], "logit_bias": {9: 100.0}}, 13, "stop"),
        ({"max_tokens": 7, "ignore_eos": True, "logit_bias": {EOS: 100.0}}, 7, "length"),
    ],
    ids=str,
)
async def test_counts_are_exact(client: AsyncClient, options: Options, count: int, finish: str) -> None:
    """The first token counts once, min_tokens holds on both sides, absent is the router's default (C09)."""
    result = await on_both(client, PROMPT, seed=4, logprobs=1, **options)
    assert len(result.choices[0].token_ids) == result.usage.completion_tokens == count
    assert result.choices[0].finish_reason == finish
    stream = client.stream(PROMPT, seed=4, logprobs=1, **options)
    async with aclosing(stream):
        _ = [delta async for delta in stream]
    assert stream.result == result


async def test_one_token_never_asks_decode(client: AsyncClient) -> None:
    """No leg, no pull, no step there; not for four samples either (C09)."""
    before = await steps_of(client, Role.DECODE)
    result = await client.generate(PROMPT, route=Route.DISAGGREGATED, max_tokens=1, n=4, seed=1)
    assert [choice.placement.decode for choice in result.choices] == [""] * 4
    assert await steps_of(client, Role.DECODE) == before


async def test_max_completion_tokens_alone_is_the_limit_of_a_chat(
    client: AsyncClient, model: Path, tmp_path: Path
) -> None:
    """OpenAI's name for it in a file; the answer is that of max_tokens by SDK (C09)."""
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "I see"}],
        "seed": 3,
        "ignore_eos": True,
    }
    body = {"model": model.name, "max_completion_tokens": 5, "return_token_ids": True, **chat}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (row,) = await run_file(client, tmp_path / "in", [line], None, at_once=1)
    result = await on_both(client, None, max_tokens=5, **chat)
    answer, (choice,) = row["response"]["body"], result.choices
    assert answer["choices"][0]["token_ids"] == list(choice.token_ids)
    assert answer["choices"][0]["message"]["content"] == choice.text
    assert answer["choices"][0]["finish_reason"] == choice.finish_reason == "length"
    assert answer["usage"]["completion_tokens"] == len(choice.token_ids) == 5


# ---- C10: stops around the hand-over ----------------------------------------------------------------------


def forced(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Options that draw one token, of that text, at every step."""
    (token,) = tokenizer.encode(text).ids
    return {"temperature": 0.0, "logit_bias": {token: 100.0}, "logprobs": 0, "seed": 1}


async def test_eos_as_first_token_ends_without_decode(client: AsyncClient) -> None:
    """Nothing is pulled, nothing stays (C10 a)."""
    before = await steps_of(client, Role.DECODE)
    result = await on_both(client, PROMPT, max_tokens=500, logit_bias={EOS: 100.0}, seed=1)
    (choice,) = result.choices
    assert (choice.token_ids, choice.text, choice.finish_reason) == ((EOS,), "", FinishReason.STOP)
    assert (choice.placement.decode, await steps_of(client, Role.DECODE)) == ("", before)


async def test_a_stop_string_as_first_token_ends_without_decode(
    client: AsyncClient, tokenizer: Tokenizer
) -> None:
    """Seen at the router, before decode is asked (C10 b)."""
    before = await steps_of(client, Role.DECODE)
    result = await on_both(client, PROMPT, max_tokens=500, stop=[" the"], **forced(tokenizer, " the"))
    (choice,) = result.choices
    assert (len(choice.token_ids), choice.text, choice.stop_reason) == (1, "", " the")
    assert (choice.placement.decode, await steps_of(client, Role.DECODE)) == ("", before)


async def test_a_stop_string_across_the_hand_over_ends_there(
    client: AsyncClient, tokenizer: Tokenizer
) -> None:
    """It starts in the token of prefill and ends in the first of decode, which soon stops (C10 c)."""
    before = await steps_of(client, Role.DECODE)
    result = await on_both(client, PROMPT, max_tokens=500, stop=["e th"], **forced(tokenizer, " the"))
    (choice,) = result.choices
    assert (len(choice.token_ids), choice.text, choice.stop_reason) == (2, " th", "e th")
    assert choice.finish_reason is FinishReason.STOP
    assert 1 <= await steps_of(client, Role.DECODE) - before < 50


@pytest.mark.parametrize("stop", [["hills"], ["lse"], [" hillse"], ["ss"]])
async def test_a_stop_string_in_the_prompt_does_not_stop(
    client: AsyncClient, tokenizer: Tokenizer, stop: list[str]
) -> None:
    """Neither at its end nor across it: stops are looked for in the answer alone (C10 d)."""
    result = await on_both(client, PROMPT, max_tokens=5, stop=stop, **forced(tokenizer, "e"))
    assert (result.text, result.choices[0].finish_reason) == ("eeeee", FinishReason.LENGTH)


async def test_a_stop_on_the_last_allowed_token_is_a_stop(client: AsyncClient, tokenizer: Tokenizer) -> None:
    """By string, by token id and by EOS: 'stop', not 'length' (C10 e)."""
    force = forced(tokenizer, " the")
    (token,) = force["logit_bias"]
    by_string = await on_both(client, PROMPT, max_tokens=2, stop=["e th"], **force)
    by_token = await on_both(client, PROMPT, max_tokens=3, min_tokens=2, stop_token_ids=[token], **force)
    by_eos = await on_both(client, PROMPT, max_tokens=3, min_tokens=2, logit_bias={EOS: 100.0}, seed=1)
    first = await on_both(client, PROMPT, max_tokens=1, stop_token_ids=[token], **force)
    ends = [
        (r.choices[0].finish_reason.value, r.choices[0].stop_reason)
        for r in (by_string, by_token, by_eos, first)
    ]
    assert ends == [("stop", "e th"), ("stop", token), ("stop", None), ("stop", token)]


# ---- C19: zero and unset ----------------------------------------------------------------------------------


async def through_a_file(
    client: AsyncClient, path: Path, model: str, bodies: Sequence[Options]
) -> list[list[int]]:
    """The token ids that a batch file gets."""
    rows = [
        {
            "custom_id": str(at),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": model, "prompt": PROMPT, "return_token_ids": True, **body},
        }
        for at, body in enumerate(bodies)
    ]
    lines = await run_file(client, path, rows, None, at_once=4)
    return [line["response"]["body"]["choices"][0]["token_ids"] for line in lines]


async def test_zero_is_zero_and_unset_is_one_default_on_every_path(
    client: AsyncClient, model: Path, tmp_path: Path
) -> None:
    """SDK apart and colocated, stream and file; the model ships a generation config of its own (C19)."""
    variants: list[Options] = [
        {},
        {"temperature": 0.0},
        {"top_k": 0},
        {"top_k": -1},
        {"top_p": 1.0, "top_k": 0, "temperature": 1.0},
        {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"temperature": DEFAULTS["temperature"], "top_p": DEFAULTS["top_p"], "top_k": int(DEFAULTS["top_k"])},
    ]
    bodies: list[Options] = [{"seed": 5, "max_tokens": 24, "ignore_eos": True, **v} for v in variants]
    found = [(await on_both(client, PROMPT, **body)).choices[0].token_ids for body in bodies]
    for body, ids in zip(bodies, found, strict=True):
        stream = client.stream(PROMPT, **body)
        async with aclosing(stream):
            _ = [delta async for delta in stream]
        assert stream.result.choices[0].token_ids == ids
    assert await through_a_file(client, tmp_path / "in", model.name, bodies) == [list(ids) for ids in found]
    unset, greedy, k_zero, k_minus_one, neutral, penalties, explicit = found
    assert unset == explicit == penalties
    assert k_zero == k_minus_one
    assert len({unset, greedy, neutral}) == 3
    again = await client.generate(PROMPT, **{**bodies[1], "seed": 6})
    assert again.choices[0].token_ids == greedy


# ---- C20: characters of several tokens --------------------------------------------------------------------


def spelled(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Options that spell the tokens of `text` in order: a token that was drawn is halved, and passed over."""
    ids = tokenizer.encode(text).ids
    assert len(set(ids)) == len(ids) > 1
    bias = {token: 100.0 - 3 * at for at, token in enumerate(ids)}
    return {
        "temperature": 0.0,
        "repetition_penalty": 3.0,
        "logit_bias": bias,
        "max_tokens": len(ids),
        "seed": 1,
    }


@pytest.mark.parametrize("text", ["😀", "é", "河", "ñ河", "한"])
async def test_a_character_across_the_hand_over_is_whole(
    client: AsyncClient, tokenizer: Tokenizer, text: str
) -> None:
    """Its first byte comes from prefill and the others from decode; no delta holds a piece of it (C20)."""
    options = spelled(tokenizer, text)
    result = await on_both(client, "I see", **options)
    assert result.text == text
    for route in Route:
        stream = client.stream("I see", route=route, **options)
        async with aclosing(stream):
            deltas = [delta.text async for delta in stream]
        assert stream.result == result
        assert "".join(deltas) == text
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_a_limit_inside_a_character_shows_it_cut(
    client: AsyncClient, tokenizer: Tokenizer, cut: int
) -> None:
    """One U+FFFD at the very end, since the model really stopped there; the ids are untouched (C20)."""
    options = spelled(tokenizer, "😀") | {"max_tokens": cut}
    result = await on_both(client, "I see", **options)
    assert list(result.choices[0].token_ids) == tokenizer.encode("😀").ids[:cut]
    assert result.text == "\ufffd"


async def test_streamed_and_whole_text_agree_whatever_the_bytes(
    client: AsyncClient, tokenizer: Tokenizer
) -> None:
    """The bytes of a joined family emoji in random order: the deltas joined are the whole text (C20)."""
    bias = dict.fromkeys(tokenizer.encode("👨‍👩‍👧‍👦é河").ids, 60.0)
    for seed in range(3):
        options = {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": 60,
            "logit_bias": bias,
            "seed": seed,
        }
        result = await on_both(client, "I see", **options)
        assert result.text == tokenizer.decode(list(result.choices[0].token_ids), skip_special_tokens=True)
        stream = client.stream("I see", route=Route.DISAGGREGATED, **options)
        async with aclosing(stream):
            deltas = [delta.text async for delta in stream]
        assert "".join(deltas) == result.text
        assert stream.result == result


# ---- C21: cancellation ------------------------------------------------------------------------------------


async def test_a_call_cancelled_at_any_time_leaves_nothing_and_nobody_else_sees_it(
    client: AsyncClient,
) -> None:
    """Queued, in prefill, between, in the pull, in decode, near the end: by task and by deadline (C21)."""
    others = [
        build_request(
            make_prompt(40 + n, n), {"max_tokens": 24, "seed": n, "logprobs": 1, "ignore_eos": True}
        )
        for n in range(12)
    ]
    expected = await send(client, others, Route.COLOCATED)
    victim: dict[str, Any] = {"max_tokens": 40, "seed": 99, "ignore_eos": True, "route": Route.DISAGGREGATED}
    long = make_prompt(700, 3)
    whole = await client.generate(long, **victim)
    span = whole.timings.total_s
    beside = asyncio.create_task(send(client, others, Route.DISAGGREGATED))
    for point in range(10):
        after_s = span * point / 8
        if point % 2:
            with pytest.raises(DeadlineExceeded):
                await client.generate(long, timeout_s=max(after_s / 4, 0.01), **victim)
            continue
        task = asyncio.create_task(client.generate(long, **victim))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not compare("beside", expected, await beside).differences
    fleet = await until_idle(client)
    assert fleet.running == fleet.waiting == 0
    assert await client.generate(long, **victim) == whole


@pytest.mark.parametrize("tokens_seen", [1, 2, 39])
async def test_a_stream_that_is_left_frees_both_sides_at_once(client: AsyncClient, tokens_seen: int) -> None:
    """After the first token, while its KV is pulled; after the second; before the last (C21)."""
    prompt, options = make_prompt(300, 8), {"max_tokens": 40, "seed": 2, "ignore_eos": True}
    whole = await client.generate(prompt, **options)  # type: ignore[arg-type]
    stream = client.stream(prompt, route=Route.DISAGGREGATED, **options)  # type: ignore[arg-type]
    seen: list[int] = []
    async for delta in stream:
        seen += delta.token_ids
        if len(seen) >= tokens_seen:
            break
    await stream.aclose()
    await until_idle(client, within_s=2)
    assert tuple(seen) == whole.choices[0].token_ids[: len(seen)]
