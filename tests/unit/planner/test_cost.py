"""The cost model and its checks."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from corun_pd.errors import ConfigError
from corun_pd.planner.cost import Profile, load_profile
from corun_pd.planner.prefill_cost import IsolatedCost

NAN = float("nan")


def make_profile(**changes: Any) -> dict[str, Any]:
    """A profile's fields."""
    return {
        "machine": {"gpu": "none"},
        "versions": {"vllm": "0.32.0"},
        "fingerprint": "f" * 64,
        "prefill": {"mode": "packed", "chunk_tokens": 2048, "full_step_s": 0.08, "context_pair_s": 1e-9},
        "decode": [
            {"slots": 8, "base_s": 0.01, "kv_token_s": 1e-8},
            {"slots": 256, "base_s": 0.02, "kv_token_s": 3e-8},
        ],
        "kv_bytes_per_token": 147456,
        "transfer": {"latency_s": 0.002, "bytes_per_s": 1e10},
        "start_up_s": 40.0,
        "residuals": {"decode": 0.03},
        **changes,
    }


def test_profile_survives_json(tmp_path: Path) -> None:
    """What is written is what is read."""
    profile = Profile.model_validate(make_profile())
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json())
    assert load_profile(path) == profile


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"start_up_s": NAN}, "start_up_s"),
        ({"start_up_s": -1}, "start_up_s"),
        ({"kv_bytes_per_token": 0}, "kv_bytes_per_token"),
        ({"transfer": {"latency_s": 0, "bytes_per_s": 0}}, "bytes_per_s"),
        ({"prefill": {"mode": "packed", "chunk_tokens": 64, "full_step_s": 0}}, "full_step_s"),
        ({"prefill": {"mode": "isolated", "chunk_tokens": 64, "prompts": [[8, 0.2], [9, 0.1]]}}, "0.1"),
        (
            {"prefill": {"mode": "isolated", "chunk_tokens": 64, "prompts": [[9, 0.1], [9, 0.2]]}},
            "9 follows 9",
        ),
        ({"prefill": {"mode": "isolated", "chunk_tokens": 64, "prompts": [[9, NAN]]}}, "nan"),
        ({"prefill": {"mode": "isolated", "chunk_tokens": 64, "prompts": [[8, 0.1], [9, NAN]]}}, "nan"),
        ({"prefill": {"mode": "guessed"}}, "guessed"),
        ({"decode": [{"slots": 8, "base_s": 0.02}, {"slots": 16, "base_s": 0.01}]}, "0.01 follows 0.02"),
        ({"decode": [{"slots": 8, "base_s": 0.02, "kv_token_s": -1e-9}]}, "kv_token_s"),
        ({"decode": []}, "decode"),
        ({"guess": 1}, "guess"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], place: str) -> None:
    """NaN, negative, falling with length or width, unknown."""
    with pytest.raises(ValidationError, match=place):
        Profile.model_validate(make_profile(**change))


def test_decode_step_is_interpolated_and_never_extrapolated() -> None:
    """A width that was not measured is an error, not a guess."""
    profile = Profile.model_validate(make_profile())
    assert profile.decode_step(8) == pytest.approx((0.01, 1e-8, 0.0))
    assert profile.decode_step(132) == pytest.approx((0.015, 2e-8, 0.0))
    with pytest.raises(ConfigError, match="257 was not measured; the profile has 8 to 256"):
        profile.decode_step(257)


@given(st.integers(1, 20_000), st.integers(3, 4096))
def test_chunks_of_a_prompt_cost_what_it_costs(prompt: int, chunk: int) -> None:
    """To within the floor of a step, in the engines' own chunks."""
    cost = IsolatedCost(chunk_tokens=chunk, prompts=((1, 1e-6), (1000, 0.05), (8000, 0.9)))
    policy = cost.policy()
    done, total, steps = 0, 0.0, 0
    while done < prompt:
        tokens = policy.chunk_of(prompt - done)
        done += tokens
        total += cost.step_s(tokens, 0, done)
        steps += 1
    assert cost.curve(prompt) <= total * (1 + 1e-9)
    assert total <= cost.curve(prompt) + 1e-6 * steps + 1e-9


def test_unreadable_profile_is_one_line(tmp_path: Path) -> None:
    """With the file, the place and the value."""
    path = tmp_path / "profile.json"
    with pytest.raises(ConfigError, match="No such file"):
        load_profile(path)
    path.write_text('{"machine": 3}')
    with pytest.raises(ConfigError, match=r"profile\.json: machine: .* \(got 3\)"):
        load_profile(path)
