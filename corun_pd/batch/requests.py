"""Bodies to requests, for many bodies that differ in little: what they have in common is checked once.

The lines of a job mostly ask for the same with another prompt and another seed, and fields are checked
each on its own. So the request of a body like one that was seen before is that one's with its own prompt.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

import orjson

from corun_pd.batch.body import IGNORED, body_to_request, chat_messages, openai_error, plain_prompt
from corun_pd.batch.line import Endpoint, Json
from corun_pd.client import GenerationRequest, Options, Prompt, Route
from corun_pd.client.request import Own, check_own
from corun_pd.errors import InvalidRequest

__all__ = ["Requests"]

#: What is remembered is dropped when it is this much.
MOST_KINDS: Final = 1024

_OWN: Final = {
    Endpoint.COMPLETIONS: frozenset({"prompt", "seed"}) | IGNORED,
    Endpoint.CHAT: frozenset({"messages", "seed"}) | IGNORED,
}


class Requests:
    """`body_to_request`, with a memory."""

    def __init__(self, route: Route | None) -> None:
        """`route` is what all requests take."""
        self._route = route
        self._known: dict[tuple[Endpoint, bytes] | None, GenerationRequest] = {}

    def make(
        self, endpoint: Endpoint, body: Mapping[str, Json], seed: int, generation_id: str
    ) -> GenerationRequest:
        """The request; one without a seed gets `seed`. Raises InvalidRequest that names the body's field."""
        known = self._known.get(self._kind(endpoint, body))
        if known is None:
            return self._whole(endpoint, body, seed, generation_id)
        return replace(known, **_own(endpoint, body, seed, generation_id))

    def check(self, endpoint: Endpoint, body: Mapping[str, Json]) -> None:
        """Raises what `make` would raise."""
        if self._kind(endpoint, body) in self._known:
            _own(endpoint, body, 0, "")
        else:
            self._whole(endpoint, body, 0, "")

    def _kind(self, endpoint: Endpoint, body: Mapping[str, Json]) -> tuple[Endpoint, bytes] | None:
        """Equal for bodies that differ in fields of their own alone; None for one that is not remembered."""
        own = _OWN[endpoint]
        try:
            return endpoint, orjson.dumps({name: value for name, value in body.items() if name not in own})
        except TypeError:  # what orjson cannot write, such as a lone surrogate
            return None

    def _whole(
        self, endpoint: Endpoint, body: Mapping[str, Json], seed: int, generation_id: str
    ) -> GenerationRequest:
        defaults: Options = {"seed": seed, "route": self._route, "generation_id": generation_id}
        request = body_to_request(endpoint, body, defaults)
        if (kind := self._kind(endpoint, body)) is not None:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kind] = request
        return request


def _own(endpoint: Endpoint, body: Mapping[str, Json], seed: int, generation_id: str) -> Own:
    chat = endpoint is Endpoint.CHAT
    given = body.get("seed")
    try:
        return check_own(
            None if chat else cast(Prompt, plain_prompt(body)),
            cast(list[Mapping[str, str]], chat_messages(body)) if chat else None,
            seed if given is None else cast(int, given),
            generation_id,
        )
    except InvalidRequest as error:
        raise openai_error(endpoint, body, error) from error
