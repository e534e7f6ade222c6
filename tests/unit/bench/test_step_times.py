"""What is made of the decode legs of a run."""

from corun_pd.bench.records import Record, Run
from corun_pd.bench.step_times import WINDOW, _steps, _windows
from corun_pd.core import InstanceLoad


def make_run(legs: list[tuple[int, int]]) -> Run:
    """Legs are (step of the first token, tokens), a step every second."""
    count = max(first + tokens for first, tokens in legs)
    records = [
        Record((0,) * tokens, (), "length", 0.0, float(first), float(first + tokens - 1))
        for first, tokens in legs
    ]
    rows = [sum(first <= at < first + tokens for first, tokens in legs) for at in range(count)]
    load = InstanceLoad(running=0, waiting=0, free_blocks=0, open_handoffs=0)
    return Run(tuple(records), float(count), load, load, tuple((float(at), n) for at, n in enumerate(rows)))


def test_a_step_reads_what_its_own_rows_hold() -> None:
    """A row that comes later reads its prompt and first token from then on, one that ended nothing."""
    steps = _steps(make_run([(0, 3), (1, 4)]), length=10)
    assert [rows for _, rows, _ in steps] == [1, 2, 2, 1, 1]
    assert [read for *_, read in steps] == [11, 12 + 11, 13 + 12, 13, 14]


def test_windows_are_of_steps_with_enough_rows() -> None:
    """The first full step is left out, since what came before it is not of its kind."""
    steps = _steps(make_run([(0, 2 * WINDOW + 4), (2, 2 * WINDOW + 2)]), length=1)
    windows = _windows(steps, least_rows=2)
    assert [window[0][0] for window in windows] == [3.0, 3.0 + WINDOW]
    assert all(len(window) == WINDOW + 1 for window in windows)
    assert _windows(steps, least_rows=3) == []
