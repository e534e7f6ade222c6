"""One line of a batch file: what it must hold, and what is wrong with one that does not."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

import orjson

from corun_pd.batch.reader import MAX_LINE_BYTES, RawLine
from corun_pd.errors import InvalidRequest

__all__ = ["BatchLine", "Endpoint", "Json", "Refusal", "parse_line"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

#: How deep arrays and objects may be nested. Stated, since the interpreter's own limit depends on its caller.
MAX_DEPTH: Final = 128

_KEYS: Final = ("custom_id", "method", "url", "body")
#: One that orjson may take for a float.
_LONG_NUMBER: Final = re.compile(rb"\d{19}")
_LEADING_ID: Final = re.compile(rb'\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")')


class Endpoint(StrEnum):
    """The urls that are served."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A well-formed line. What its body asks for is `body`'s to judge. `size` is in bytes."""

    index: int
    number: int
    crc: int
    custom_id: str
    endpoint: Endpoint
    body: dict[str, Json]
    size: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A bad line. `custom_id` is None when it has none that can be told; `place` is for messages."""

    index: int
    number: int
    crc: int
    place: str
    custom_id: str | None
    error: InvalidRequest

    def __str__(self) -> str:
        whose = "no custom_id" if self.custom_id is None else f"custom_id {self.custom_id[:64]!r}"
        return f"{self.place} ({whose}): {self.error}"


def parse_line(raw: RawLine, place: Callable[[int], str]) -> BatchLine | Refusal:
    """The line, or what is wrong with it: the first fault that is found. `place` names a line's number."""
    custom_id: str | None = None
    try:
        if raw.is_too_long:
            raise InvalidRequest("line", f"is longer than {MAX_LINE_BYTES} bytes")
        row = _strict_json(raw.data)
        if not isinstance(row, dict):
            raise InvalidRequest("line", f"must be a JSON object, not {_kind(row)}")
        custom_id = _custom_id(row)
        if unknown := sorted(row.keys() - set(_KEYS)):
            raise InvalidRequest(unknown[0][:64], f"is not a field of a batch line; {', '.join(_KEYS)} are")
        return BatchLine(raw.index, raw.number, raw.crc, custom_id, _endpoint(row), _body(row), len(raw.data))
    except InvalidRequest as error:
        whose = custom_id or _leading_id(raw.data)
        return Refusal(raw.index, raw.number, raw.crc, place(raw.number), whose, error)


def _strict_json(data: bytes) -> Json:
    """JSON as the standard has it: UTF-8, no NaN, no key twice in one object."""
    try:
        value = _plain_json(data)
        if value is None:
            value = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest("line", f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest("line", f"is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidRequest("line", f"has a number that is too long: {error}") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _plain_json(data: bytes) -> Json:
    """The same, in a fraction of the time, for most lines; None for one that the strict way is to judge.

    orjson takes the last of equal keys. Without escaped letters a line has a colon for each key that it
    spells and those of its texts, so it has as many as there are keys in the value unless one came twice.
    """
    if b"\\u" in data or _LONG_NUMBER.search(data):
        return None
    try:
        value: Json = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    colons = 0
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            colons += item.count(":")
        elif isinstance(item, dict):
            colons += len(item)
            left += item
            left += item.values()
        elif isinstance(item, list):
            left += [child for child in item if not isinstance(child, int)]
    return value if colons == data.count(b":") else None


def _is_deeper(value: Json, limit: int) -> bool:
    """Whether arrays and objects are nested deeper; found without recursion."""
    level = [value]
    for _ in range(limit):
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def _too_deep() -> InvalidRequest:
    return InvalidRequest("line", f"is nested deeper than {MAX_DEPTH} levels")


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidRequest("line", f"has the key {twice[:64]!r} twice in one object")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest("line", f"is not JSON: {name} is no JSON number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def _custom_id(row: dict[str, Json]) -> str:
    value = _required(row, "custom_id")
    if not isinstance(value, str) or not value:
        raise InvalidRequest("custom_id", f"must be text that is not empty, not {_show(value)}")
    return value


def _endpoint(row: dict[str, Json]) -> Endpoint:
    if (method := _required(row, "method")) != "POST":
        raise InvalidRequest("method", f"must be POST, not {_show(method)}")
    url = _required(row, "url")
    try:
        return Endpoint(url)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidRequest("url", f"must be one of {', '.join(Endpoint)}, not {_show(url)}") from None


def _body(row: dict[str, Json]) -> dict[str, Json]:
    body = _required(row, "body")
    if not isinstance(body, dict):
        raise InvalidRequest("body", f"must be a JSON object, not {_kind(body)}")
    return body


def _required(row: dict[str, Json], key: str) -> Json:
    if key not in row:
        raise InvalidRequest(key, "is missing")
    return row[key]


def _leading_id(data: bytes) -> str | None:
    """The custom_id of a line that cannot be parsed, when it stands first, as it mostly does."""
    found = _LEADING_ID.match(data)
    try:
        return None if found is None else str(json.loads(found[1]))
    except ValueError:
        return None


def _kind(value: Json) -> str:
    kinds = {dict: "an object", list: "an array", str: "text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _show(value: Json) -> str:
    return f"{json.dumps(value):.80}"
