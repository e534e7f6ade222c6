"""The fast way to read a line gives what the strict way gives, or leaves it to that."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corun_pd.batch import line
from corun_pd.errors import InvalidRequest

KEYS = st.sampled_from(["a", "b", "a:", ":", "é", 'q"', "\\"])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text('a:"\\é\x7f\n', max_size=6), KEYS
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(st.tuples(KEYS, inner), max_size=3))
)


def spell(value: Any, escape: bool) -> str:
    """JSON in which pairs are an object, whose keys may come again."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        pairs = (f"{json.dumps(key, ensure_ascii=escape)} :{spell(item, escape)}" for key, item in value)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(spell(item, escape) for item in value) + "]"
    return json.dumps(value, ensure_ascii=escape)


def strict(data: bytes) -> Any:
    """What Python's decoder makes of it under our rules; its error's text."""
    try:
        return line._DECODER.decode(data.decode())
    except (InvalidRequest, json.JSONDecodeError) as error:
        return str(error)


@settings(deadline=None, max_examples=300)
@given(VALUES, st.booleans())
def test_the_fast_way_takes_nothing_else_than_the_strict_way(value: Any, escape: bool) -> None:
    """Keys that come twice, colons in keys and texts, escapes, numbers of every size, NaN."""
    data = spell(value, escape).encode()
    fast = line._plain_json(data)
    if fast is not None:
        assert repr(fast) == repr(strict(data))


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "b": "x: y", "c": [{"d": ":"}, 5]}', '{"body": {"prompt": [1, 2, 3], "seed": 123456789}}'],
)
def test_usual_lines_go_the_fast_way(text: str) -> None:
    """Else it would be of no use."""
    assert line._plain_json(text.encode()) == orjson.loads(text)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '{"a": {"b": 1, "b": ":"}}', '{"a": 1e400}', '{"a": 9999999999999999999999}']
)
def test_what_it_cannot_judge_it_leaves(text: str) -> None:
    """Equal keys, numbers beyond a double, integers beyond 64 bits."""
    assert line._plain_json(text.encode()) is None
