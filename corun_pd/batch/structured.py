"""Constraints on the text: OpenAI's response_format and vLLM's structured_outputs to the client's option."""

from collections.abc import Mapping
from typing import Final

from corun_pd.batch.line import Json
from corun_pd.errors import InvalidRequest, UnsupportedParameter

__all__ = ["structured_output"]

#: vLLM's names to the client's.
_SYNTAXES: Final = {"choice": "choices", "grammar": "grammar", "json": "json_schema", "regex": "regex"}

_ANY_OBJECT: Final[dict[str, Json]] = {"json_schema": {"type": "object"}}


def structured_output(given: Mapping[str, Json]) -> dict[str, Json] | None:
    """The client's `structured_output`, for a body without nulls. Raises InvalidRequest naming the field."""
    found = [
        output
        for output in (_response_format(given.get("response_format")), _vllm(given.get("structured_outputs")))
        if output is not None
    ]
    if len(found) > 1:
        raise InvalidRequest("structured_outputs", "and response_format constrain the text both")
    return found[0] if found else None


def _response_format(value: Json) -> dict[str, Json] | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise UnsupportedParameter("response_format", "has a type of text, json_object or json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    form = value.get("json_schema")
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise InvalidRequest("response_format.json_schema", "has no schema")
    return {"json_schema": form["schema"]}


def _vllm(value: Json) -> dict[str, Json] | None:
    field = "structured_outputs"
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"must be an object, not {value!r:.80}")
    row = {name: spec for name, spec in value.items() if spec is not None and spec is not False}
    for name in row.keys() - {*_SYNTAXES, "json_object"}:
        raise UnsupportedParameter(f"{field}.{name[:64]}", "cannot be served")
    if len(row) != 1:
        raise InvalidRequest(field, f"must have one of {', '.join((*_SYNTAXES, 'json_object'))}")
    ((name, spec),) = row.items()
    if name == "json_object":
        if spec is not True:
            raise InvalidRequest(f"{field}.json_object", "must be true or false")
        return _ANY_OBJECT
    return {_SYNTAXES[name]: spec}
