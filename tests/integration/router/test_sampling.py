"""Limits, stops, defaults and text through prefill and decode equal those of one engine."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from corun_pd.core import Role, StructuredOutput, Syntax
from corun_pd.engine.base import LegWork
from corun_pd.engine.fake.tokens import TokenSource
from corun_pd.v1 import router_pb2, sampling_pb2

APART, WHOLE = router_pb2.ROUTE_DISAGGREGATED, router_pb2.ROUTE_COLOCATED
STOP, LENGTH = sampling_pb2.FINISH_REASON_STOP, sampling_pb2.FINISH_REASON_LENGTH
EOS = 256


def sampling(**fields: Any) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(**{"max_tokens": 8, "seed": 7, **fields})


def script(monkeypatch: pytest.MonkeyPatch, tokens: list[int]) -> None:
    """The fake engines draw these tokens, on either side, for every request."""
    monkeypatch.setattr(TokenSource, "draw", lambda self: tokens[self.count % len(tokens)])
    monkeypatch.setattr(TokenSource, "is_plain", False)


def bytes_as_tokens(text: str) -> list[int]:
    """Ids in the byte tokenizer of conftest: the place of each byte's letter in its alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [(printable + [b for b in range(256) if b not in printable]).index(byte) for byte in text.encode()]


def joined(messages: list[router_pb2.StreamGenerateResponse]) -> router_pb2.Choice:
    """A stream's deltas as the choice that they make."""
    choice = router_pb2.Choice()
    for delta in (delta for message in messages for delta in message.deltas):
        part = router_pb2.Choice.FromString(delta.SerializeToString())
        part.text = choice.text + delta.text
        choice.MergeFrom(part)
    return choice


async def everywhere(cluster: Any, **fields: Any) -> router_pb2.Choice:
    """The choice on both routes, whole and streamed: one and the same."""
    choices = []
    for route in (APART, WHOLE):
        response = await cluster.generate(**fields, route=route)
        messages = await cluster.stream(**fields, route=route)
        assert messages[-1].end.usage == response.usage
        choices += [response.choices[0], joined(messages)]
    for choice in choices:
        choice.ClearField("placement")
    assert all(choice == choices[0] for choice in choices)
    return choices[0]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_tokens": None}, 16),
        ({"min_tokens": 100, "max_tokens": 120}, 120),
        ({"max_tokens": 7, "ignore_eos": True}, 7),
    ],
)
async def test_answer_has_exactly_the_tokens_asked_for(
    make_cluster: Any, fields: dict[str, Any], tokens: int
) -> None:
    """C09: the first token counts once, and the client's limits hold on decode unchanged."""
    async with make_cluster(colocated=1) as cluster:
        choice = await everywhere(cluster, text="hello", sampling=sampling(logprob_count=3, **fields))
        assert len(choice.token_ids) == len(choice.logprobs.sampled) == tokens
        assert choice.finish_reason == LENGTH
        await cluster.until_idle()


async def test_min_tokens_hold_back_the_end_on_decode(make_cluster: Any) -> None:
    """C09: EOS is likeliest all along and may be drawn from token 5 on."""
    async with make_cluster(colocated=1) as cluster:
        choice = await everywhere(
            cluster,
            text="hello",
            sampling=sampling(logit_bias={EOS: 100.0, 70: 90.0}, min_tokens=4, max_tokens=50),
        )
        assert (len(choice.token_ids), choice.finish_reason) == (5, STOP)
        assert choice.token_ids[-1] == EOS


async def test_single_token_never_reaches_decode(make_cluster: Any) -> None:
    """C09: no handoff is made for it, so there is none to release."""
    async with make_cluster() as cluster:
        response = await cluster.generate(text="hello", sampling=sampling(max_tokens=1))
        assert response.choices[0].placement.decode_instance_id == ""
        prefill, decode = await cluster.loads()
        assert (prefill.free_blocks, decode.steps) == (cluster.nodes[0].info.blocks, 0)


async def test_decode_gets_the_clients_fields_unchanged(make_cluster: Any) -> None:
    """C09: and the same prompt, rendered and tokenized once."""
    seen: dict[Role, LegWork] = {}
    async with make_cluster(prefill=1, decode=1) as cluster:
        for node in cluster.nodes:
            role = node.info.role
            node.engine.faults.fail_leg = lambda work, role=role: bool(seen.update({role: work}))
        fields = {"min_tokens": 3, "max_tokens": 9, "top_k": 5, "logprob_count": 0, "stop_token_ids": [3]}
        await cluster.generate(text="hello", sampling=sampling(**fields))
        assert seen[Role.PREFILL].sampling == seen[Role.DECODE].sampling
        assert seen[Role.DECODE].sampling.min_tokens == 3
        assert list(seen[Role.PREFILL].prompt) == list(seen[Role.DECODE].prompt) == bytes_as_tokens("hello")


async def test_template_that_prints_the_time_is_rendered_once(
    make_cluster: Any, model_folder: Path, tmp_path: Path
) -> None:
    """C07: two renderings of it would be two prompts, and decode would go on from the wrong cache."""
    folder = tmp_path / "clock"
    shutil.copytree(model_folder, folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = "{{ strftime_now('%S.%f') }} {{ messages[0]['content'] }}"
    tokenizer.save_pretrained(folder)
    prompts: list[tuple[int, ...]] = []
    chat = router_pb2.ChatPrompt(messages=[router_pb2.ChatMessage(role="user", content="hi")])
    async with make_cluster(model=folder) as cluster:
        for node in cluster.nodes:
            node.engine.faults.fail_leg = lambda work: prompts.append(tuple(work.prompt))  # type: ignore[func-returns-value]
        for _ in range(2):
            await cluster.generate(chat=chat, sampling=sampling())
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]


async def test_eos_as_first_token_ends_at_prefill(make_cluster: Any) -> None:
    """C10 a: no decode step, and the blocks are free."""
    async with make_cluster(colocated=1) as cluster:
        choice = await everywhere(cluster, text="hello", sampling=sampling(logit_bias={EOS: 100.0}))
        assert (list(choice.token_ids), choice.text, choice.finish_reason) == ([EOS], "", STOP)
        assert choice.WhichOneof("stop_reason") is None
        assert (await cluster.node(Role.DECODE).engine.load()).steps == 0
        await cluster.until_idle()


async def test_stop_token_as_first_token_is_named(make_cluster: Any) -> None:
    """C10 a: as the reason of the stop."""
    async with make_cluster(colocated=1) as cluster:
        stop = sampling(logit_bias={70: 100.0}, stop_token_ids=[70])
        choice = await everywhere(cluster, text="hello", sampling=stop)
        assert (list(choice.token_ids), choice.text, choice.stop_token_id) == ([70], "", 70)


@pytest.mark.parametrize(
    ("answer", "stop", "include", "text", "tokens"),
    [
        ("abcdefgh", "a", False, "", 1),
        ("abcdefgh", "a", True, "a", 1),
        ("abcdefgh", "ab", False, "", 2),
        ("abcdefgh", "bcd", False, "a", 4),
        ("abcdefgh", "fgh", False, "abcde", 8),
        ("abcdefgh", "fgh", True, "abcdefgh", 8),
        ("é漢😀😀", "漢", False, "é", 5),
    ],
    ids=["y0", "y0 kept", "y0 and y1", "in decode", "last token", "last token kept", "inside characters"],
)
async def test_stop_string_stops_where_it_is_complete(
    make_cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    stop: str,
    include: bool,
    text: str,
    tokens: int,
) -> None:
    """C10 b, c, e: in the first token, over the border, at the last allowed token; always 'stop'."""
    script(monkeypatch, bytes_as_tokens(answer))
    async with make_cluster(colocated=1, decode_step_s=0.001) as cluster:
        fields = sampling(max_tokens=8, stop_strings=["zz", stop], include_stop=include)
        choice = await everywhere(cluster, text="hello", sampling=fields)
        assert (choice.text, len(choice.token_ids)) == (text, tokens)
        assert (choice.finish_reason, choice.stop_string) == (STOP, stop)
        await cluster.until_idle()


async def test_stop_string_in_the_first_token_never_reaches_decode(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10 b: the router sees it, and releases the handoff that prefill could not know to spare."""
    script(monkeypatch, bytes_as_tokens("ab"))
    async with make_cluster() as cluster:
        response = await cluster.generate(text="hello", sampling=sampling(stop_strings=["a"]))
        assert response.choices[0].placement.decode_instance_id == ""
        await cluster.until_idle(within_s=1)
        assert (await cluster.node(Role.DECODE).engine.load()).steps == 0


async def test_no_decode_step_is_spent_far_beyond_a_stop_string(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: an unstreamed answer with stop strings is watched as it comes, too."""
    script(monkeypatch, bytes_as_tokens("abcd"))
    async with make_cluster(decode_step_s=0.005) as cluster:
        await cluster.generate(text="hello", sampling=sampling(max_tokens=1500, stop_strings=["d"]))
        await cluster.until_idle(within_s=1)
        assert (await cluster.node(Role.DECODE).engine.load()).steps < 100


async def test_stop_string_at_the_tail_of_the_prompt_does_not_stop(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10 d: nor one that begins there."""
    script(monkeypatch, bytes_as_tokens("pqrstuvw"))
    async with make_cluster(colocated=1) as cluster:
        choice = await everywhere(cluster, text="stop o", sampling=sampling(stop_strings=["stop o", "op"]))
        assert (choice.text, choice.finish_reason) == ("pqrstuvw", LENGTH)


async def test_explicit_zero_is_greedy_and_unset_is_the_models_default(
    make_cluster: Any, model_folder: Path, tmp_path: Path
) -> None:
    """C19: on both routes, whole and streamed; top_k 0 and -1 are one thing."""
    folder = tmp_path / "defaults"
    shutil.copytree(model_folder, folder)
    defaults = {
        "temperature": 0.6,
        "top_p": 0.5,
        "top_k": 4,
        "repetition_penalty": 1.2,
        "eos_token_id": [EOS, 255],
    }
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    async with make_cluster(colocated=1, model=folder) as cluster:

        async def tokens(**fields: Any) -> list[int]:
            fields = {"max_tokens": 12, "seed": 3, "ignore_eos": True, **fields}
            choice = await everywhere(cluster, text="hi", sampling=sampling_pb2.SamplingParams(**fields))
            return list(choice.token_ids)

        unset = await tokens()
        assert unset == await tokens(temperature=0.6, top_p=0.5, top_k=4, repetition_penalty=1.2)
        assert unset != await tokens(top_k=0)
        assert await tokens(top_k=0) == await tokens(top_k=-1)
        greedy = await tokens(temperature=0.0)
        assert greedy == await tokens(temperature=0.0, seed=4)
        assert unset != await tokens(seed=4)
        assert await tokens(seed=0) == await tokens(seed=0)
        ended = await everywhere(cluster, text="hi", sampling=sampling(logit_bias={255: 100.0}))
        assert (list(ended.token_ids), ended.finish_reason) == ([255], STOP)


@pytest.mark.parametrize("text", ["😀 ok", "👨‍👩‍👧", "漢字かな", "e\u0301 é ñ"])
async def test_characters_of_several_tokens_arrive_whole(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """C20: the first token ends inside one; joined deltas equal the whole text."""
    script(monkeypatch, bytes_as_tokens(text))
    async with make_cluster(colocated=1, decode_step_s=0.001) as cluster:
        choice = await everywhere(cluster, text="hi", sampling=sampling(max_tokens=len(text.encode())))
        assert choice.text == text
        messages = await cluster.stream(text="hi", sampling=sampling(max_tokens=len(text.encode())))
        assert not any("�" in delta.text for message in messages for delta in message.deltas)


async def test_answer_cut_inside_a_character_says_so_once(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C20: one U+FFFD at the end, and the token ids untouched."""
    ids = bytes_as_tokens("a😀")
    script(monkeypatch, ids)
    async with make_cluster(colocated=1) as cluster:
        choice = await everywhere(cluster, text="hi", sampling=sampling(max_tokens=4))
        assert (choice.text, list(choice.token_ids)) == ("a�", ids[:4])


async def test_samples_draw_with_consecutive_seeds(make_cluster: Any) -> None:
    """n samples equal n requests with the seeds that the answer names; the prompt is counted once."""
    async with make_cluster(colocated=1, decode=2) as cluster:
        for route in (APART, WHOLE):
            many = await cluster.generate(text="hello", sampling=sampling(), sample_count=5, route=route)
            assert many.usage.prompt_token_count == 5
            assert [choice.seed for choice in many.choices] == [7, 8, 9, 10, 11]
            for choice in many.choices:
                one = await cluster.generate(text="hello", sampling=sampling(seed=choice.seed), route=route)
                assert one.choices[0].token_ids == choice.token_ids
            assert many.usage.completion_token_count == sum(len(c.token_ids) for c in many.choices)
        messages = await cluster.stream(text="hello", sampling=sampling(), sample_count=5)
        streamed: dict[int, list[int]] = {}
        for delta in (delta for message in messages for delta in message.deltas):
            streamed.setdefault(delta.index, []).extend(delta.token_ids)
        assert [streamed[i] for i in range(5)] == [list(choice.token_ids) for choice in many.choices]


async def test_minted_seed_is_told_and_repeats_the_answer(make_cluster: Any) -> None:
    """Every answer can be had again."""
    async with make_cluster() as cluster:
        unseeded = sampling_pb2.SamplingParams(max_tokens=8)
        first, other = [await cluster.generate(text="hello", sampling=unseeded) for _ in range(2)]
        assert first.seed != other.seed
        again = await cluster.generate(text="hello", sampling=sampling(seed=first.seed))
        assert again.choices[0].token_ids == first.choices[0].token_ids


async def test_answer_without_text_keeps_its_stop_strings(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokens_only leaves the text out, and nothing else."""
    script(monkeypatch, bytes_as_tokens("abcdefgh"))
    async with make_cluster(colocated=1) as cluster:
        fields = {"text": "hello", "tokens_only": True}
        choice = await everywhere(cluster, **fields, sampling=sampling(stop_strings=["cd"]))
        assert (choice.text, len(choice.token_ids), choice.stop_string) == ("", 4, "cd")
        assert (await everywhere(cluster, **fields, sampling=sampling())).text == ""


@pytest.mark.parametrize("stop", [[], ["zz"]], ids=["to the limit", "with a stop string"])
async def test_prompt_logprobs_are_those_of_one_engine(make_cluster: Any, stop: list[str]) -> None:
    """From prefill or from the colocated engine, once for all samples, whole and streamed."""
    async with make_cluster(colocated=1) as cluster:
        fields = {
            "text": "hello",
            "sampling": sampling(prompt_logprob_count=1, stop_strings=stop),
            "sample_count": 2,
            "echo": True,
        }
        prompts = []
        for route in (APART, WHOLE):
            response = await cluster.generate(**fields, route=route)
            messages = await cluster.stream(**fields, route=route)
            assert all(choice.text.startswith("hello") for choice in response.choices)
            prompts += [response.prompt, messages[-1].end.prompt]
        assert all(prompt == prompts[0] for prompt in prompts)
        assert list(prompts[0].token_ids) == bytes_as_tokens("hello")
        assert len(prompts[0].logprobs.sampled) == len(prompts[0].logprobs.top) == 4
        await cluster.until_idle()


async def test_prompt_logprobs_outlive_a_stop_string_in_the_first_token(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router ends the leg before its engine would; what came with the first token is kept."""
    script(monkeypatch, bytes_as_tokens("ab"))
    async with make_cluster(colocated=1) as cluster:
        fields = {"text": "h", "sampling": sampling(prompt_logprob_count=0, stop_strings=["a"])}
        for route in (APART, WHOLE):
            response = await cluster.generate(**fields, route=route)
            assert response.choices[0].stop_string == "a"
            assert (list(response.prompt.token_ids), len(response.prompt.logprobs.sampled)) == (
                bytes_as_tokens("h"),
                0,
            )


async def test_words_and_constraints_reach_both_engines(make_cluster: Any) -> None:
    """As token ids and as they were written; decode is not asked for prompt logprobs again."""
    seen: dict[Role, LegWork] = {}
    async with make_cluster(prefill=1, decode=1) as cluster:
        for node in cluster.nodes:
            role = node.info.role
            node.engine.faults.fail_leg = lambda work, role=role: bool(seen.update({role: work}))
        constraint = sampling_pb2.StructuredOutput(regex="a+")
        fields = {"bad_words": ["xy"], "allowed_token_ids": [3, 4], "structured_output": constraint}
        await cluster.generate(text="hello", sampling=sampling(**fields, prompt_logprob_count=2))
    prefill, decode = seen[Role.PREFILL].sampling, seen[Role.DECODE].sampling
    assert prefill.bad_words == decode.bad_words == (tuple(bytes_as_tokens("xy")),)
    assert prefill.allowed_token_ids == decode.allowed_token_ids == (3, 4)
    assert prefill.structured_output == decode.structured_output == StructuredOutput(Syntax.REGEX, "a+")
    assert (prefill.prompt_logprobs, decode.prompt_logprobs) == (2, None)
