"""Which line goes first, and what a job learns on its way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import Order, Refusal, Work, order
from corun_pd.batch.order import LookAhead
from tests.unit.batch.make import make_line, read_items


def take_all(ahead: LookAhead) -> list[str]:
    """The custom ids as they are taken."""
    taken = []
    while items := ahead.take():
        taken += [str(i.custom_id if isinstance(i, Refusal) else i.line.custom_id) for i in items]
    return taken


def make_items(folder: Path, *bodies: dict[str, Any]) -> Iterator[Work | Refusal]:
    """Lines named by their place."""
    return iter(read_items(folder / "in", *(make_line(f"{i}", **body) for i, body in enumerate(bodies))))


def test_the_longest_goes_first(tmp_path: Path) -> None:
    """By limit, then by prompt; a chat without a limit may take all the room there is."""
    items = make_items(
        tmp_path,
        {"max_tokens": 10},
        {"max_tokens": 1000},
        {"max_tokens": 10, "prompt": [1] * 20_000},
        {"chat": True},
        {"max_tokens": 300},
    )
    assert take_all(LookAhead(items, Order.LONGEST_FIRST, 1)) == ["3", "1", "4", "2", "0"]


def test_input_order_is_kept_when_asked_for(tmp_path: Path) -> None:
    """Whatever the lines are."""
    items = make_items(tmp_path, {"max_tokens": 10}, {"max_tokens": 1000}, {"max_tokens": 100})
    assert take_all(LookAhead(items, Order.INPUT, 1)) == ["0", "1", "2"]


def test_what_was_seen_counts_for_more_than_a_limit(tmp_path: Path) -> None:
    """Lines that stop early at a high limit go behind those that are sure to be longer."""
    items = make_items(
        tmp_path,
        {"max_tokens": 4096},
        {"max_tokens": 4096},
        {"max_tokens": 200, "ignore_eos": True},
        {"max_tokens": 4096, "min_tokens": 300},
    )
    ahead = LookAhead(items, Order.LONGEST_FIRST, 1)
    (first,) = ahead.take()
    assert isinstance(first, Work)
    assert first.line.custom_id == "0"
    ahead.learn(first, 20)
    assert take_all(ahead) == ["3", "2", "1"]


def test_lines_alike_keep_their_order(tmp_path: Path) -> None:
    """What hardly differs goes in input order, so that the output grows while the job runs."""
    items = make_items(tmp_path, *({"max_tokens": 500, "prompt": "x" * (1 + i % 3 * 60)} for i in range(20)))
    assert take_all(LookAhead(items, Order.LONGEST_FIRST, 1)) == [str(i) for i in range(20)]


def test_the_look_ahead_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By lines and by bytes; a line that is larger than the bound goes alone."""
    monkeypatch.setattr(order, "LOOK_AHEAD_LINES", 5)
    bodies: list[dict[str, Any]] = [{"max_tokens": 2**i} for i in range(20)]
    read = 0

    def counted() -> Iterator[Work | Refusal]:
        nonlocal read
        for item in make_items(tmp_path, *bodies):
            read += 1
            yield item

    ahead = LookAhead(counted(), Order.LONGEST_FIRST, 1)
    ahead.take()
    assert read == 5
    assert take_all(ahead)[:3] == ["5", "6", "7"]
    monkeypatch.setattr(order, "LOOK_AHEAD_BYTES", 100)
    read = 0
    ahead = LookAhead(counted(), Order.LONGEST_FIRST, 1)
    ahead.take()
    assert read == 1
    assert len(take_all(ahead)) == 19


def test_refusals_do_not_wait(tmp_path: Path) -> None:
    """A bad line costs nothing, so its answer comes at once."""
    items = make_items(tmp_path, {"max_tokens": 5}, {"max_tokens": -1}, {"max_tokens": 9})
    assert take_all(LookAhead(items, Order.LONGEST_FIRST, 1)) == ["1", "2", "0"]


def take_together(ahead: LookAhead) -> list[list[str]]:
    """The custom ids that are taken together."""
    taken = []
    while items := ahead.take():
        taken.append([str(i.custom_id if isinstance(i, Refusal) else i.line.custom_id) for i in items])
    return taken


@pytest.mark.parametrize(
    ("which", "most", "expected"),
    [
        (Order.LONGEST_FIRST, 8, [["1", "3", "6"], ["5"], ["0", "2", "4", "7"]]),
        (Order.LONGEST_FIRST, 2, [["1", "3"], ["6"], ["5"], ["0", "2"], ["4", "7"]]),
        (Order.LONGEST_FIRST, 1, [["1"], ["3"], ["6"], ["5"], ["0"], ["2"], ["4"], ["7"]]),
        (Order.INPUT, 8, [["0"], ["1"], ["2"], ["3"], ["4"], ["5"], ["6"], ["7"]]),
    ],
)
def test_lines_of_one_prompt_are_taken_together(
    tmp_path: Path, which: Order, most: int, expected: list[list[str]]
) -> None:
    """As many as may be, wherever they stand among those that are held; of another limit they are others."""
    of_a: dict[str, Any] = {"prompt": "a", "max_tokens": 10}
    of_b: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 500}
    items = make_items(tmp_path, of_a, of_b, of_a, of_b, of_a, of_a | {"max_tokens": 11}, of_b, of_a)
    assert take_together(LookAhead(items, which, 1, most)) == expected


@pytest.mark.parametrize("which", list(Order))
def test_lines_of_one_prompt_that_follow_each_other_are_not_parted(
    tmp_path: Path, which: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the look-ahead ends among them, and with a bad line between."""
    monkeypatch.setattr(order, "LOOK_AHEAD_LINES", 3)
    bodies: list[dict[str, Any]] = [{"prompt": f"{n}"} for n in range(4) for _ in range(4)]
    bodies.insert(6, {"prompt": ""})
    taken = take_together(LookAhead(make_items(tmp_path, *bodies), which, 1, 4))
    sizes = [len(items) for items in taken]
    assert sorted((name for names in taken for name in names), key=int) == [str(n) for n in range(17)]
    assert sizes.count(4) >= 3
    assert max(sizes) == 4
