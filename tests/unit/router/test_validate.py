"""Faults are named by their wire field before an engine sees them; the rest is resolved."""

import math
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corun_pd.core import SEED_LIMIT, SamplingParams
from corun_pd.errors import InvalidRequest, UnsupportedParameter
from corun_pd.router.policy import Route
from corun_pd.router.sampling import Limits
from corun_pd.router.text import GenerationDefaults, TextModel
from corun_pd.router.validate import Task, resolve
from corun_pd.v1 import router_pb2, sampling_pb2

LIMITS = Limits(max_model_tokens=64, vocabulary=300, max_logprobs=20)


def make_text(
    defaults: GenerationDefaults | None = None, template: str | None = "{{ messages[0]['content'] }}"
) -> TextModel:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|eos|>", special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = template
    return TextModel(fast, defaults)


TEXT = make_text()


async def task_of(model: TextModel = TEXT, **fields: Any) -> Task:
    prompt = {} if {"token_ids", "chat", "text"} & fields.keys() else {"text": "hi"}
    return await resolve(router_pb2.Generation(**prompt, **fields), model, LIMITS, completion_tokens=16)


async def sampling_of(model: TextModel = TEXT, **fields: Any) -> SamplingParams:
    return (await task_of(model, sampling=sampling_pb2.SamplingParams(**fields))).sampling


def ids(*token_ids: int) -> sampling_pb2.TokenIds:
    return sampling_pb2.TokenIds(ids=token_ids)


def chat(*contents: str) -> router_pb2.ChatPrompt:
    return router_pb2.ChatPrompt(messages=[router_pb2.ChatMessage(role="user", content=c) for c in contents])


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 63}),
        ("min_tokens", {"max_tokens": 4, "min_tokens": 5}),
        ("temperature", {"temperature": math.nan}),
        ("temperature", {"temperature": math.inf}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": 2.1}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.5}),
        ("top_p", {"top_p": math.nan}),
        ("top_k", {"top_k": -2}),
        ("min_p", {"min_p": 1.1}),
        ("seed", {"seed": SEED_LIMIT}),
        ("presence_penalty", {"presence_penalty": -2.5}),
        ("frequency_penalty", {"frequency_penalty": 2.5}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("repetition_penalty", {"repetition_penalty": math.inf}),
        ("logit_bias", {"logit_bias": {300: 1.0}}),
        ("logit_bias", {"logit_bias": {1: 100.5}}),
        ("logit_bias", {"logit_bias": {1: math.nan}}),
        ("stop_token_ids", {"stop_token_ids": [1, 300]}),
        ("logprob_count", {"logprob_count": 21}),
        ("prompt_logprob_count", {"prompt_logprob_count": 21}),
        ("allowed_token_ids", {"allowed_token_ids": [1, 300]}),
        ("allowed_token_ids", {"allowed_token_ids": [1] * 1025}),
        ("stop_token_ids", {"stop_token_ids": [1] * 113}),
        ("logit_bias", {"logit_bias": dict.fromkeys(range(1025), 1.0)}),
        ("bad_words", {"bad_words": [""]}),
        ("bad_words", {"bad_words": ["a" * 1025]}),
        ("bad_words", {"bad_words": [f"w{n}" for n in range(129)]}),
        ("bad_word_token_ids[0]", {"bad_word_token_ids": [sampling_pb2.TokenIds()]}),
        ("bad_word_token_ids[0]", {"bad_word_token_ids": [sampling_pb2.TokenIds(ids=[300])]}),
        ("structured_output.regex", {"structured_output": sampling_pb2.StructuredOutput(regex="")}),
        ("stop_strings", {"stop_strings": ["a", ""]}),
        ("stop_strings", {"stop_strings": ["a"] * 65}),
        ("stop_strings", {"stop_strings": ["a" * 1025]}),
    ],
)
async def test_fault_in_sampling_names_its_field(field: str, sampling: dict[str, Any]) -> None:
    """Each range is vLLM's, or a limit that the message states."""
    with pytest.raises(InvalidRequest) as fault:
        await sampling_of(**sampling)
    assert fault.value.field == f"sampling.{field}"


@pytest.mark.parametrize(
    ("field", "generation"),
    [
        ("text", {"text": ""}),
        ("token_ids", {"token_ids": ids()}),
        ("token_ids.ids", {"token_ids": ids(1, 300)}),
        ("token_ids", {"token_ids": ids(*range(64))}),
        ("text", {"text": "a" * 64}),
        ("chat.messages", {"chat": chat()}),
        ("chat", {"chat": chat("")}),
        ("sample_count", {"sample_count": 0}),
        ("sample_count", {"sample_count": 1025}),
        ("route", {"route": 7}),
        ("generation_id", {"generation_id": "g" * 129}),
    ],
)
async def test_fault_outside_sampling_names_its_field(field: str, generation: dict[str, Any]) -> None:
    """The prompt is called by the kind that the client chose."""
    with pytest.raises(InvalidRequest) as fault:
        await task_of(**generation)
    assert fault.value.field == field


async def test_generation_without_a_prompt_is_refused() -> None:
    """It says which three there are."""
    with pytest.raises(InvalidRequest, match="text, token_ids and chat"):
        await resolve(router_pb2.Generation(), TEXT, LIMITS, 16)


async def test_prompt_and_max_tokens_may_fill_the_model_exactly() -> None:
    """One more is refused, with all numbers said."""
    assert (await sampling_of(max_tokens=62)).max_tokens == 62
    with pytest.raises(InvalidRequest, match=r"2 prompt tokens and max_tokens 63 make 65.*limit of 64"):
        await sampling_of(max_tokens=63)


async def test_unset_max_tokens_is_the_default_or_the_room_left() -> None:
    """16 for text and tokens, all the room for a chat, never more than the room."""
    assert (await task_of()).sampling.max_tokens == 16
    assert (await task_of(text="a" * 60)).sampling.max_tokens == 4
    assert (await task_of(chat=chat("abcd"))).sampling.max_tokens == 60


async def test_explicit_zero_is_a_value() -> None:
    """Temperature 0 is greedy whatever the model's default, and seed 0 is a seed."""
    text = make_text(GenerationDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1))
    greedy = await sampling_of(text, temperature=0.0, seed=0)
    assert (greedy.temperature, greedy.seed) == (0.0, 0)
    assert (greedy.top_p, greedy.top_k, greedy.min_p) == (1.0, 0, 0.0)  # as vLLM makes them
    unset = await sampling_of(text)
    assert (unset.temperature, unset.top_p, unset.top_k, unset.repetition_penalty) == (0.7, 0.8, 20, 1.1)
    all_kept = await sampling_of(text, top_k=0, top_p=1.0)
    assert (all_kept.top_k, all_kept.top_p) == (0, 1.0)


async def test_all_tokens_have_one_spelling_of_top_k() -> None:
    """-1 and 0 are the same draw on every path."""
    assert (await sampling_of(top_k=-1, seed=1)) == (await sampling_of(top_k=0, seed=1))


async def test_tiny_temperature_is_raised_as_vllm_raises_it() -> None:
    """So that an engine behind the router draws as one without it."""
    assert (await sampling_of(temperature=0.001)).temperature == 0.01


async def test_zero_logprobs_are_not_none() -> None:
    """0 asks for the sampled token's own."""
    assert (await sampling_of()).logprobs is None
    assert (await sampling_of(logprob_count=0)).logprobs == 0


async def test_greedy_samples_would_all_be_equal() -> None:
    """vLLM refuses them, so all paths do."""
    with pytest.raises(InvalidRequest, match="temperature 0"):
        await task_of(sample_count=2, sampling=sampling_pb2.SamplingParams(temperature=0.0))


async def test_last_sample_needs_a_seed_too() -> None:
    """Sample i draws with seed + i, below the limit."""
    top = sampling_pb2.SamplingParams(seed=SEED_LIMIT - 3)
    assert (await task_of(sample_count=3, sampling=top)).seeds[2] == SEED_LIMIT - 1
    with pytest.raises(InvalidRequest, match=r"sampling\.seed"):
        await task_of(sample_count=4, sampling=top)


async def test_minted_seeds_differ_and_leave_room_for_all_samples() -> None:
    """A request without a seed is repeatable from the seed in its answer."""
    seeds = {(await task_of(sample_count=1024)).sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds) + 1023 < SEED_LIMIT


async def test_token_ids_are_taken_as_they_are() -> None:
    """No special token is added to them."""
    task = await task_of(token_ids=ids(256, 1, 299))
    assert list(task.prompt) == [256, 1, 299]


async def test_route_and_names_are_carried() -> None:
    """A missing name is minted."""
    task = await task_of(generation_id="mine", route=router_pb2.ROUTE_COLOCATED, tokens_only=True)
    assert (task.generation_id, task.route, task.text) == ("mine", Route.COLOCATED, False)
    assert (await task_of()).generation_id.startswith("gen-")


async def test_bad_words_are_spelled_as_vllm_spells_them() -> None:
    """Every byte is a token here, so a space before a word makes it longer, and is not another spelling."""
    found = await sampling_of(bad_words=["ab", " ab"], bad_word_token_ids=[ids(7, 8)])
    word = tuple(await TEXT.encode("ab"))
    assert found.bad_words == (word, (7, 8))


async def test_a_chat_has_no_echo() -> None:
    """Its text is the template's; vLLM would repeat the last message, if it is the assistant's."""
    with pytest.raises(UnsupportedParameter) as error:
        await task_of(chat=chat("hi"), echo=True)
    assert error.value.field == "echo"
    with pytest.raises(InvalidRequest) as needs_text:
        await task_of(echo=True, tokens_only=True)
    assert needs_text.value.field == "echo"


async def test_echo_is_the_text_as_it_came_or_that_of_the_tokens() -> None:
    """Bytes that are no UTF-8 are U+FFFD; a character that is only begun is left to the answer."""
    assert (await task_of(text="hé", echo=True)).echo == "hé"
    spelled = await TEXT.encode("hé")
    assert (await task_of(token_ids=ids(*spelled), echo=True)).echo == "hé"
    assert (await task_of(token_ids=ids(*spelled[:-1]), echo=True)).echo == "h"
    assert (await task_of(token_ids=ids(spelled[0], spelled[-1]), echo=True)).echo == "h\ufffd"


async def test_seeds_may_be_given_one_by_one() -> None:
    """They stand for sampling.seed and sample_count."""
    task = await task_of(seeds=[5, 3, 5])
    assert list(task.seeds) == [5, 3, 5]
    assert task.sampling.seed == 5
    assert list((await task_of(seeds=[5, 3], sample_count=2)).seeds) == [5, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"sample_count": 3},
        {"sampling": sampling_pb2.SamplingParams(seed=0)},
        {"seeds": [SEED_LIMIT, 1]},
    ],
)
async def test_seeds_that_do_not_fit_are_named(fields: dict[str, Any]) -> None:
    """Another number of samples, a seed beside them, one that engines cannot store."""
    with pytest.raises(InvalidRequest) as error:
        await task_of(**{"seeds": [1, 2], **fields})
    assert error.value.field == "seeds"


async def test_only_the_first_sample_asks_for_prompt_logprobs() -> None:
    """They are the same for all; and decode never does."""
    sampling = await sampling_of(prompt_logprob_count=3)
    assert sampling.prompt_logprobs == 3
    assert sampling.for_sibling(1).prompt_logprobs is None
    assert sampling.for_decode() == (await sampling_of(seed=sampling.seed))
