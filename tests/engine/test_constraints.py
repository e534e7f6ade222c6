"""What a request wants of its tokens and text: grammars across the hand-over, and prompt logprobs."""

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from corun_pd.bench.compare import compare, first_difference
from corun_pd.client import AsyncClient, FinishReason, GenerationResult, Options, Prompt, Route, build_request
from corun_pd.errors import InvalidRequest
from tests.engine.lines import as_line, in_answer, in_file
from tests.engine.surface import SCHEMA, Drawn, one_answer
from tests.engine.workload import CHUNK, SLOTS, VOCABULARY, make_prompt, run_file, send, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLAG = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
PROMPT = "The river ran down from the hills"


async def on_every_way(client: AsyncClient, prompt: Prompt, **options: Any) -> GenerationResult:
    """The answer apart: whole, streamed and colocated it is the same in every bit."""
    apart = await client.generate(prompt, route=Route.DISAGGREGATED, **options)
    together = await client.generate(prompt, route=Route.COLOCATED, **options)
    assert first_difference(0, together, apart) is None
    for route in Route:
        stream = client.stream(prompt, route=route, **options)
        async with aclosing(stream):
            _ = [delta async for delta in stream]
        assert first_difference(0, together, stream.result) is None
    await until_idle(client)
    return apart


# ---- C12, C13: structured output ---------------------------------------------------------------------------


async def test_a_constrained_answer_has_every_logprob_on_every_way_and_files_are_strict_json(
    client: AsyncClient, model: Path, tmp_path: Path
) -> None:
    """Three tokens with the 20 likeliest, many of them ruled out: -inf by SDK, -9999.0 in a file (C12)."""
    options: Options = {
        "structured_output": {"json_schema": SCHEMA},
        "logprobs": 20,
        "max_tokens": 3,
        "seed": 3,
        "temperature": 1.0,
    }
    result = await on_every_way(client, PROMPT, **options)
    (choice,) = result.choices
    assert choice.logprobs is not None
    assert choice.text.startswith("{")
    assert [len(entry.top) for entry in choice.logprobs] == [20] * 3
    assert any(value == float("-inf") for entry in choice.logprobs for _, value in entry.top)
    request = build_request(PROMPT, options)
    (row,) = await run_file(client, tmp_path / "in", [as_line(0, request, model.name)], None, at_once=1)
    body = json.loads(json.dumps(row, allow_nan=False))["response"]["body"]
    assert in_file(body) == in_answer(request, result)
    assert "-9999.0" in json.dumps(body)


@pytest.mark.parametrize("length", [5, 2 * CHUNK + 9])
@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"regex": "abcdef"}, "abcdef"),
        ({"regex": "(ab){2,3}c"}, "(ab){2,3}c"),
        ({"choices": ["{}", "{}{", "alpha"]}, "({}|{}{|alpha)"),
        ({"grammar": 'root ::= "{" [0-9]? "}"'}, "{[0-9]?}"),
        ({"json_schema": FLAG}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ],
    ids=str,
)
async def test_a_grammar_goes_on_from_the_first_token(
    client: AsyncClient, tokenizer: Tokenizer, length: int, constraint: dict[str, object], fits: str
) -> None:
    """Taken in once: a grammar that missed the first token, or took it twice, allows another text (C13)."""
    blank = [at for at in range(VOCABULARY) if tokenizer.decode([at]).isspace()]
    result = await on_every_way(
        client,
        make_prompt(length, length),
        structured_output=constraint,
        max_tokens=40,
        seed=5,
        temperature=1.0,
        logprobs=2,
        logit_bias=dict.fromkeys(blank, -100.0),  # JSON allows any of it, and this model likes it.
    )
    (choice,) = result.choices
    assert choice.finish_reason is FinishReason.STOP
    assert re.fullmatch(fits, choice.text), choice.text


async def test_64_constrained_requests_at_once_beside_plain_ones(client: AsyncClient) -> None:
    """Each has one answer, the plain ones that of a crowd without constraints; texts fit (C13)."""
    constraints = [{"regex": "[a-f]{1,5}"}, {"choices": ["red", "green"]}, {"json_schema": SCHEMA}]
    constrained = [
        build_request(
            PROMPT[at % 5 :] * (1 + at % 7),
            {"structured_output": constraints[at % 3], "max_tokens": 20, "seed": at, "temperature": 1.0},
        )
        for at in range(64)
    ]
    plain = [
        build_request(make_prompt(20 + at, at), {"max_tokens": 20, "seed": at, "logprobs": 3})
        for at in range(16)
    ]
    unmixed = await send(client, plain, Route.COLOCATED)
    mixed = [*constrained[:32], *plain, *constrained[32:]]
    expected = await send(client, mixed, Route.COLOCATED)
    assert not compare("among constrained ones", unmixed, expected[32:48]).differences
    found = await send(client, mixed, Route.DISAGGREGATED)
    assert not compare("apart", expected, found).differences
    ended = 0
    for at, result in enumerate([*found[:32], *found[48:]]):
        if result.choices[0].finish_reason is FinishReason.STOP:
            ended += 1
            check_fit(at % 3, result.text)
    assert ended > 40
    await until_idle(client)


def check_fit(kind: int, text: str) -> None:
    """Fails when the text does not fit the constraint of its kind."""
    if kind == 2:
        value = json.loads(text)
        assert value.keys() == {"a", "b"}
        assert isinstance(value["a"], int)
    else:
        assert re.fullmatch(("[a-f]{1,5}", "red|green")[kind], text), text


@pytest.mark.parametrize(
    ("constraint", "syntax"),
    [
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema"),
        ({"regex": "(("}, "regex"),
        ({"grammar": "nonsense here"}, "grammar"),
    ],
    ids=str,
)
async def test_what_the_compiler_cannot_serve_is_refused_alike_each_time(
    client: AsyncClient, constraint: dict[str, object], syntax: str
) -> None:
    """Before a token is computed, by name; the compiler's message begins with the time, and ours does not."""
    messages = set()
    for route in (*Route, *Route):
        with pytest.raises(InvalidRequest) as error:
            await client.generate(PROMPT, structured_output=constraint, route=route)
        assert error.value.field == f"sampling.structured_output.{syntax}"
        messages.add(str(error.value))
        await asyncio.sleep(0.3)
    assert len(messages) == 1
    assert not re.search(r"\d\d:\d\d:\d\d", messages.pop())


async def test_constraints_that_leave_no_token_end_that_request_alone(client: AsyncClient) -> None:
    """The engine lives, others see nothing of it, and no block stays behind (C13)."""
    others = [build_request(make_prompt(30 + at, at), {"max_tokens": 12, "seed": at}) for at in range(6)]
    expected = await send(client, others, Route.COLOCATED)
    for route in Route:
        beside = asyncio.create_task(send(client, others, route))
        for structured_output, allowed in (({"regex": "ab"}, [1, 2]), ({"regex": "[!-z]{9}"}, [5, 6, 0])):
            options: Options = {"structured_output": structured_output, "allowed_token_ids": allowed}
            if allowed == [1, 2]:
                with pytest.raises(InvalidRequest, match="leaves no token"):
                    await client.generate(PROMPT, route=route, seed=1, **options)
            else:
                await client.generate(PROMPT, route=route, seed=1, **options)
        assert not compare("beside", expected, await beside).differences
    await until_idle(client)


# ---- C11, C14: samples and penalties -----------------------------------------------------------------------


async def test_samples_are_the_single_requests_with_their_seeds(client: AsyncClient) -> None:
    """n = 4 with seed 10 is four requests with seeds 10 to 13; minted seeds are told, and reproduce (C11)."""
    options: Options = {"temperature": 0.8, "max_tokens": 9, "logprobs": 1, "prompt_logprobs": 0}
    samples = await on_every_way(client, PROMPT, n=4, seed=10, **options)
    for at, choice in enumerate(samples.choices):
        single = await client.generate(PROMPT, seed=10 + at, **options)
        alike = (single.choices[0].token_ids, single.choices[0].logprobs, single.choices[0].text)
        assert (choice.token_ids, choice.logprobs, choice.text) == alike
        assert single.prompt == samples.prompt
    assert samples.usage.prompt_tokens == single.usage.prompt_tokens
    minted = await client.generate(PROMPT, n=4, **options)
    again = await client.generate(PROMPT, n=4, seed=minted.seed, route=Route.COLOCATED, **options)
    assert first_difference(0, minted, again) is None
    assert len({choice.token_ids for choice in minted.choices}) > 1


@pytest.mark.parametrize("route", Route)
async def test_samples_that_are_cancelled_together_leave_nothing(client: AsyncClient, route: Route) -> None:
    """Four that stream, left when the first tokens are there; who asks again gets the same (C11)."""
    options: Options = {"n": 4, "seed": 10, "max_tokens": 40, "ignore_eos": True, "route": route}
    whole = await client.generate(PROMPT, **options)
    seen: dict[int, list[int]] = {}
    stream = client.stream(PROMPT, **options)
    async with aclosing(stream):
        async for delta in stream:
            seen.setdefault(delta.index, []).extend(delta.token_ids)
            if len(seen) == 4:
                break
    await until_idle(client, within_s=2)
    for index, ids in seen.items():
        assert whole.choices[index].token_ids[: len(ids)] == tuple(ids)
    assert await client.generate(PROMPT, **options) == whole


async def test_penalties_look_at_their_own_tokens_beside_other_requests(
    client: AsyncClient, tokenizer: Tokenizer, model: Path, tmp_path: Path
) -> None:
    """A word again and again: repetition counts it for the first token already, the others do not (C14 a, b).

    The word leads another one by half, which any penalty on it turns around. Eight plain requests of eight
    seeds are prefilled beside them.
    """
    (word,), (other,) = (tokenizer.encode(text).ids for text in (" the", "e"))
    prompt = [word] * 10
    levels = []
    for token in (word, other):
        alone = await client.generate(prompt, allowed_token_ids=[token], max_tokens=1, logprobs=0, seed=1)
        assert alone.choices[0].logprobs is not None
        levels.append(alone.choices[0].logprobs[0].sampled)
    options: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": 4,
        "seed": 1,
        "logprobs": 2,
        "allowed_token_ids": [word, other],
        "logit_bias": {word: 20.0, other: 19.5 + levels[0] - levels[1]},
    }
    penalties: list[dict[str, float]] = [
        {},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.0},
        {"presence_penalty": 1.0},
    ]
    drawn = [Drawn(prompt, {**options, **penalty}) for penalty in penalties]
    drawn += [Drawn(make_prompt(9, 3), {"seed": seed, "max_tokens": 6, "logprobs": 1}) for seed in range(8)]
    outcomes, differences = await one_answer(client, drawn, model.name, tmp_path)
    assert not differences, differences
    ids = [outcome.choices[0].token_ids for outcome in outcomes if isinstance(outcome, GenerationResult)]
    assert [answer[0] for answer in ids[:4]] == [word, other, word, word]
    assert len(set(ids[4:])) == 8


async def test_penalties_count_the_first_token_as_output(client: AsyncClient, tokenizer: Tokenizer) -> None:
    """Two tokens far above the rest, a bit apart: each penalty has the second one follow the first (C14)."""
    first, second = (tokenizer.encode(text).ids[0] for text in (" the", "e"))
    for penalty in ("presence_penalty", "frequency_penalty"):
        for gap in (0.0, 0.5, 1.0, 1.5):
            result = await on_every_way(
                client,
                PROMPT,
                temperature=0.0,
                max_tokens=6,
                seed=1,
                allowed_token_ids=[first, second],
                logit_bias={first: gap},
                **{penalty: 2.0},
            )
            ids = result.choices[0].token_ids
            assert set(ids) <= {first, second}
            if len(set(ids[:2])) == 2:
                break
        else:
            pytest.fail(f"{penalty} never changed the second token")


# ---- Prompt logprobs ---------------------------------------------------------------------------------------

LENGTHS = (1, 2, SLOTS - 1, SLOTS, SLOTS + 1, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK + 1, 200)


async def test_prompt_logprobs_are_one_on_every_way(client: AsyncClient, model: Path, tmp_path: Path) -> None:
    """Around N rows of the LM head, around chunks; alone, in a crowd, apart, in a file."""
    drawn = [
        Drawn(make_prompt(n, n), {"prompt_logprobs": at % 4 * 5, "max_tokens": 2, "seed": n})
        for at, n in enumerate(LENGTHS)
    ]
    outcomes, differences = await one_answer(client, drawn, model.name, tmp_path)
    assert not differences, differences
    for n, outcome in zip(LENGTHS, outcomes, strict=True):
        assert isinstance(outcome, GenerationResult)
        assert outcome.prompt is not None
        assert len(outcome.prompt.logprobs) == n - 1


async def test_prompt_logprobs_are_about_those_of_drawing_the_same_tokens(client: AsyncClient) -> None:
    """Decode computes them in another shape, so about; off by one token they would be far apart."""
    prompt = make_prompt(40, 6)
    drawn = await client.generate(prompt, temperature=1.0, seed=2, max_tokens=12, logprobs=0, ignore_eos=True)
    (choice,) = drawn.choices
    scored = await client.generate([*prompt, *choice.token_ids], max_tokens=1, seed=2, prompt_logprobs=0)
    assert choice.logprobs is not None
    assert scored.prompt is not None
    expected = [entry.sampled for entry in choice.logprobs]
    assert values(scored)[-12:] == pytest.approx(expected, abs=0.1)


def values(result: GenerationResult) -> Sequence[float]:
    """The prompt tokens' logprobs."""
    assert result.prompt is not None
    return [entry.sampled for entry in result.prompt.logprobs]


async def test_an_echo_repeats_the_prompt_and_changes_no_token(client: AsyncClient) -> None:
    """Stop strings in it do not stop; one that the answer completes does."""
    plain = await on_every_way(client, PROMPT, seed=4, max_tokens=8)
    echoed = await on_every_way(client, PROMPT, seed=4, max_tokens=8, echo=True, stop=["river"])
    assert echoed.text == PROMPT + plain.text
    assert echoed.choices[0].token_ids == plain.choices[0].token_ids
