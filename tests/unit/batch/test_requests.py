"""What was checked once is not checked again, and gives what a check would have given."""

from itertools import product
from typing import Any

import pytest

from corun_pd.batch import requests
from corun_pd.batch.body import body_to_request
from corun_pd.batch.line import Endpoint
from corun_pd.batch.requests import Requests
from corun_pd.client import Route
from corun_pd.errors import InvalidRequest

PROMPTS: list[Any] = ["a", [1, 2], ["b"], [[3]], "", None, [], "\ud800", [True], 7]
SEEDS: list[Any] = [None, 0, 5, -1, 1.0, True, "5", 1 << 64]
REST: list[dict[str, Any]] = [
    {},
    {"n": 1},
    {"n": True},
    {"n": 1.0},
    {"stop": ["x"], "user": "me"},
    {"stop": ["x"], "user": "you"},
    {"logprobs": 1, "echo": True},
    {"stop": "\ud800"},
    {"max_tokens": 1 << 70},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"prompt": "hi"},
]
MESSAGES: list[Any] = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": 3}], [], None, "hi"]


def outcome(make: Any, *arguments: Any) -> Any:
    """The request, or the error's text."""
    try:
        return make(*arguments)
    except InvalidRequest as error:
        return str(error)


@pytest.mark.parametrize(
    ("endpoint", "field"), [(Endpoint.COMPLETIONS, "prompt"), (Endpoint.CHAT, "messages")]
)
def test_a_memory_changes_no_request_and_no_error(endpoint: Endpoint, field: str) -> None:
    """Over all orders in which bodies that differ in everything may come."""
    own = PROMPTS if field == "prompt" else MESSAGES
    made = Requests(Route.COLOCATED)
    good = 0
    for rest, value, seed in product(REST, own, SEEDS):
        body = {"model": "m", **rest, field: value, "seed": seed}
        checked = outcome(made.check, endpoint, body)
        found = outcome(made.make, endpoint, body, 11, "name")
        assert checked == (found if isinstance(found, str) else None)
        defaults = {"seed": 11, "route": Route.COLOCATED, "generation_id": "name"}
        assert found == outcome(body_to_request, endpoint, body, defaults), body
        good += not isinstance(found, str)
    assert good > 10


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that all differ leave nothing behind."""
    monkeypatch.setattr(requests, "MOST_KINDS", 4)
    made = Requests(None)
    for top_k in range(20):
        made.make(Endpoint.COMPLETIONS, {"prompt": "x", "top_k": top_k}, 0, "")
        assert len(made._known) <= 4
