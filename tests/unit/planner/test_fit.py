"""Cost models fitted to steps of a known cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.errors import ConfigError
from corun_pd.planner.cost import DecodePoint, StepCost
from corun_pd.planner.fit import fit_decode, fit_prefill, fit_transfer, rising
from corun_pd.planner.prefill_cost import IsolatedCost, PackedCost

LENGTHS = (16, 64, 128, 256, 512, 4096)
STEP = StepCost(0.01, 1e-7)


def make_steps(base_s: float = 0.01, slope: float = 1e-7) -> list[tuple[int, float]]:
    """Decode steps of exactly that cost."""
    return [(kv, base_s + slope * kv) for kv in range(100, 100_000, 5_000)]


def test_a_packed_step_and_its_context_are_found_again() -> None:
    """From prompts below and above T."""
    truth = PackedCost(chunk_tokens=128, full_step_s=0.05, context_pair_s=3e-8)
    prompts = [(length, max(1, 128 // length), truth.alone_s(length)) for length in LENGTHS]
    found, error = fit_prefill("packed", 128, prompts)
    assert isinstance(found, PackedCost)
    assert found.full_step_s == pytest.approx(0.05)
    assert found.context_pair_s == pytest.approx(3e-8)
    assert error < 1e-6


def test_isolated_prompts_are_kept_as_points_that_never_fall() -> None:
    """Noise that makes a longer prompt faster is taken out, and told as an error."""
    found, error = fit_prefill("isolated", 64, [(64, 1, 0.02), (16, 1, 0.011), (32, 1, 0.010)])
    assert isinstance(found, IsolatedCost)
    assert found.prompts == ((16, 0.011), (32, 0.011), (64, 0.02))
    assert error == pytest.approx(0.1)


def test_a_decode_step_is_found_again_beside_disturbed_samples() -> None:
    """A fifth of the samples take half as long again; squares would be drawn to them."""
    steps = make_steps()
    steps[1::5] = [(kv, 1.5 * seconds) for kv, seconds in steps[1::5]]
    point, error = fit_decode(8, steps)
    assert point.base_s == pytest.approx(0.01, rel=0.01)
    assert point.kv_token_s == pytest.approx(1e-7, rel=0.02)
    assert error == pytest.approx(1 / 3, rel=0.02)


def test_steps_that_get_faster_with_more_to_read_have_no_slope() -> None:
    """Noise alone does that."""
    point, _ = fit_decode(8, [(100, 0.011), (1000, 0.010), (2000, 0.009)])
    assert point.kv_token_s == 0
    assert point.base_s == pytest.approx(0.010, rel=0.01)


def test_a_wider_step_that_noise_makes_faster_takes_as_long() -> None:
    """A profile refuses the contrary."""
    points = rising([DecodePoint(slots=4, base_s=0.02), DecodePoint(slots=8, base_s=0.019)])
    assert [(point.slots, point.base_s) for point in points] == [(4, 0.02), (8, 0.02)]


def test_a_transfer_is_what_is_left_without_its_decode_step() -> None:
    """Latency and bandwidth."""
    transfers = [
        (size, 0.004 + size / 2e9 + STEP.base_s + STEP.kv_token_s * kv, kv)
        for size, kv in ((1 << 14, 16), (1 << 20, 1024), (1 << 24, 16384))
    ]
    found, error = fit_transfer(transfers, STEP)
    assert found.latency_s == pytest.approx(0.004)
    assert found.bytes_per_s == pytest.approx(2e9)
    assert error < 1e-6


def test_pulls_that_take_no_longer_than_a_step_stay_finite() -> None:
    """The step alone took longer than the pull with it."""
    found, _ = fit_transfer([(1 << 14, 0.009, 16), (1 << 20, 0.009, 16)], STEP)
    assert found.latency_s > 0
    assert 0 < found.bytes_per_s < float("inf")


@pytest.mark.parametrize("steps", [[], [(10, 0.0)], [(10, 0.1), (20, float("nan"))], [(10, float("inf"))]])
def test_what_is_no_measurement_is_refused(steps: list[tuple[int, float]]) -> None:
    """Nothing, no time, and times that are no numbers."""
    with pytest.raises(ConfigError, match="nothing was measured"):
        fit_decode(8, steps)


@given(st.lists(st.tuples(st.integers(0, 1 << 24), st.floats(1e-7, 1e3)), min_size=1, max_size=30))
def test_no_samples_make_a_cost_that_is_negative_or_infinite(steps: list[tuple[int, float]]) -> None:
    """The model checks itself when it is made."""
    point, error = fit_decode(8, steps)
    assert point.base_s > 0
    assert point.kv_token_s >= 0
    assert 0 <= error < float("inf")
    transfer, _ = fit_transfer([(kv, seconds, kv) for kv, seconds in steps], STEP)
    assert transfer.bytes_per_s > 0
