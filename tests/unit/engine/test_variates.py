"""The variate of a row is a pure function of (seed, step)."""

from hypothesis import given
from hypothesis import strategies as st

from corun_pd.core import SEED_LIMIT
from corun_pd.engine.vllm.variates import mix

seeds = st.integers(0, SEED_LIMIT - 1)
steps = st.integers(0, 1 << 24)


@given(seeds, steps)
def test_a_variate_fits_a_signed_64_bit_tensor(seed: int, step: int) -> None:
    """Engines keep it in an int64."""
    assert 0 <= mix(seed, step) < 1 << 63


def test_the_scheme_is_pinned() -> None:
    """Other values are another scheme, and need another name."""
    assert [mix(0, 0), mix(0, 1), mix(1, 0), mix(SEED_LIMIT - 1, 7)] == [
        8754807190040728371,
        1521802938161714507,
        8240856498840590924,
        4409752140845976671,
    ]


def test_neighbours_do_not_collide() -> None:
    """Samples of one request have neighbouring seeds, and a request neighbouring steps (C11)."""
    drawn = {mix(seed, step) for seed in range(300) for step in range(300)}
    assert len(drawn) == 300 * 300


def test_bits_are_balanced_over_steps_and_over_seeds() -> None:
    """Each of the 63 bits is set about half of the time, along either axis."""
    for rows in ([mix(7, step) for step in range(4000)], [mix(seed, 3) for seed in range(4000)]):
        for bit in range(63):
            assert 1800 < sum(row >> bit & 1 for row in rows) < 2200
