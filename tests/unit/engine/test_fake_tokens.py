"""The fake engine's draws: a pure function of the request, with vLLM's rules for ends."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.config import EngineConfig
from corun_pd.core import FinishReason, SamplingParams, StructuredOutput, Syntax, prompt_digest
from corun_pd.engine.fake.model import FakeModel, read_model
from corun_pd.engine.fake.tokens import TokenSource
from corun_pd.errors import SetupError

EOS = 7
MODEL = FakeModel(digest="", vocabulary=512, eos_token_ids=frozenset({EOS}), max_tokens=8192)
DIGEST = prompt_digest([1, 2, 3])
PLAIN = SamplingParams(max_tokens=40, seed=5, ignore_eos=True)


def draw(sampling: SamplingParams, digest: bytes = DIGEST) -> tuple[int, ...]:
    return TokenSource(MODEL, digest, sampling).complete().tokens


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 6},
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"top_p": 0.9},
        {"top_k": 3},
        {"min_p": 0.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.5},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": (1, 2, 3)},
        {"bad_words": ((7, 8),)},
        {"structured_output": StructuredOutput(Syntax.REGEX, "a")},
    ],
)
def test_every_sampling_field_changes_the_draw(change: dict[str, object]) -> None:
    """A field that is lost between two instances must show in the answer."""
    assert draw(replace(PLAIN, **change)) != draw(PLAIN)


def test_greedy_draws_do_not_depend_on_the_seed() -> None:
    """Temperature 0 draws no variate."""
    greedy = replace(PLAIN, temperature=0.0)
    assert draw(greedy) == draw(replace(greedy, seed=99))


def test_a_resumed_source_goes_on_where_the_first_token_left_it() -> None:
    """Prefill's token and decode's tokens are the colocated sequence, logprobs too."""
    sampling = replace(PLAIN, logprobs=3)
    whole = TokenSource(MODEL, DIGEST, sampling).complete()
    first = TokenSource(MODEL, DIGEST, sampling).complete(limit=1)
    assert first.finish_reason is None
    resumed = TokenSource(MODEL, DIGEST, sampling)
    resumed.feed(first.tokens[0])
    rest = resumed.complete()
    assert first.tokens + rest.tokens == whole.tokens
    assert first.logprobs + rest.logprobs == whole.logprobs


@given(
    seed=st.integers(0, 1 << 62),
    max_tokens=st.integers(1, 2000),
    stops=st.sets(st.integers(0, 511), max_size=3),
    ignore_eos=st.booleans(),
    limit=st.sampled_from([None, 1, 5]),
)
def test_plain_requests_are_drawn_as_the_others_are(
    seed: int, max_tokens: int, stops: set[int], ignore_eos: bool, limit: int | None
) -> None:
    """Requests without knobs take a shorter way; logprobs, which change no draw, lead past it."""
    plain = SamplingParams(max_tokens, seed, stop_token_ids=tuple(stops), ignore_eos=ignore_eos)
    ways = [TokenSource(MODEL, DIGEST, sampling) for sampling in (plain, replace(plain, logprobs=0))]
    quick, slow = (way.complete(limit) for way in ways)
    assert replace(slow, logprobs=()) == quick
    assert ways[0].count == ways[1].count
    assert ways[0].draw() == ways[1].draw()


def test_a_changed_first_token_changes_what_follows() -> None:
    """Decode depends on the token that prefill sampled, not on its place alone."""
    sources = [TokenSource(MODEL, DIGEST, PLAIN) for _ in range(2)]
    sources[0].feed(1)
    sources[1].feed(2)
    assert sources[0].complete().tokens != sources[1].complete().tokens


def test_a_forced_eos_ends_as_stop_without_a_stop_token() -> None:
    """An EOS is the last token and sets no stop_token_id."""
    done = TokenSource(MODEL, DIGEST, SamplingParams(max_tokens=9, seed=0, logit_bias={EOS: 100})).complete()
    assert (done.tokens, done.finish_reason, done.stop_token_id) == ((EOS,), FinishReason.STOP, None)


def test_a_stop_token_names_itself() -> None:
    """A token of stop_token_ids ends the leg and is told."""
    sampling = SamplingParams(max_tokens=9, seed=0, logit_bias={30: 100}, stop_token_ids=(30,))
    done = TokenSource(MODEL, DIGEST, sampling).complete()
    assert (done.tokens, done.finish_reason, done.stop_token_id) == ((30,), FinishReason.STOP, 30)


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    """Stop is looked at before length."""
    sampling = SamplingParams(max_tokens=1, seed=0, logit_bias={EOS: 100})
    assert TokenSource(MODEL, DIGEST, sampling).complete().finish_reason is FinishReason.STOP


def test_min_tokens_holds_back_ends_and_only_those() -> None:
    """The token after min_tokens tokens is the first one that may end the leg; bias does not beat it."""
    sampling = SamplingParams(max_tokens=9, seed=0, min_tokens=3, logit_bias={EOS: 100})
    done = TokenSource(MODEL, DIGEST, sampling).complete()
    assert len(done.tokens) == 4
    assert EOS not in done.tokens[:3]
    assert done.tokens[3] == EOS


def test_a_banned_token_never_comes() -> None:
    """A bias of -100 excludes its token."""
    sampling = replace(PLAIN, max_tokens=300, logit_bias=dict.fromkeys(range(500), -100.0))
    assert set(draw(sampling)) <= set(range(500, 512))


@given(
    seed=st.integers(0, 2**63 - 1),
    max_tokens=st.integers(1, 60),
    min_tokens=st.integers(0, 60),
    count=st.one_of(st.none(), st.integers(0, 20)),
)
def test_completions_keep_their_limits(
    seed: int, max_tokens: int, min_tokens: int, count: int | None
) -> None:
    """Counts, vocabulary, one logprob entry a token, and values that float32 holds."""
    sampling = SamplingParams(
        max_tokens=max_tokens, seed=seed, min_tokens=min(min_tokens, max_tokens), logprobs=count
    )
    done = TokenSource(MODEL, DIGEST, sampling).complete()
    assert sampling.min_tokens <= len(done.tokens) <= max_tokens
    assert (done.finish_reason is FinishReason.LENGTH) == (done.tokens[-1] != EOS)
    assert all(0 <= token < MODEL.vocabulary for token in done.tokens)
    assert len(done.logprobs) == (0 if count is None else len(done.tokens))
    for token, entry in zip(done.tokens, done.logprobs, strict=False):
        values = [entry.sampled, *(value for _, value in entry.top)]
        assert all(
            value <= 0 and struct.unpack("<f", struct.pack("<f", value))[0] == value for value in values
        )
        assert len(entry.top) == count
        if entry.rank <= len(entry.top):
            assert entry.top[entry.rank - 1] == (token, entry.sampled)


def test_vocabulary_limit_and_eos_come_from_the_model_folder(tmp_path: Path) -> None:
    """So text tests work with a real tokenizer."""
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 1000, "max_position_embeddings": 64, "eos_token_id": 2})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    model = read_model(tmp_path, EngineConfig(kind="fake"))
    assert (model.vocabulary, model.max_tokens, model.eos_token_ids) == (1000, 64, frozenset({2, 3}))
    with pytest.raises(SetupError, match="65"):
        read_model(tmp_path, EngineConfig(kind="fake", max_model_tokens=65))


def test_a_broken_config_is_refused_by_name(tmp_path: Path) -> None:
    """A model folder that cannot be read is a set-up error, not a model without facts."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SetupError, match=r"config\.json"):
        read_model(tmp_path, EngineConfig(kind="fake"))
