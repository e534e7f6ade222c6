"""Checks of what the wire cannot carry. Everything else about a request is the router's to judge.

Each takes the wire name of the field and returns the value as the wire has it, or raises
InvalidRequest. None, which is "unset", stays None: zero is a value.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TypeVar

from corun_pd.errors import InvalidRequest

__all__ = ["flag", "integer", "logit_bias", "real", "strings", "text", "token_ids"]

UINT32_LIMIT = 1 << 32
T = TypeVar("T")


def integer(field: str, value: object, low: int, high: int) -> int | None:
    """An integer in [low, high]; anything that counts as an index, such as numpy's, but no bool."""
    if value is None:
        return None
    if isinstance(value, bool):
        raise InvalidRequest(field, f"must be an integer, not {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(field, f"must be an integer, not {value!r:.80}") from None
    if not low <= number <= high:
        shown = str(number) if abs(number) < 1 << 128 else f"a number of {number.bit_length()} bits"
        raise InvalidRequest(field, f"must be from {low} to {high}, not {shown}")
    return number


def real(field: str, value: object) -> float | None:
    """A finite number."""
    if value is None:
        return None
    if isinstance(value, bool | str | bytes):
        raise InvalidRequest(field, f"must be a number, not {value!r:.80}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidRequest(field, f"must be a number, not {value!r:.80}") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRequest(field, f"must be finite, not {number}")
    return number


def flag(field: str, value: object) -> bool | None:
    """True or False; 0 and 1 are numbers."""
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(field, f"must be true or false, not {value!r:.80}")


def text(field: str, value: object) -> str:
    """Text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, not {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"has the lone surrogate U+{ord(value[error.start]):04X} at character {error.start}"
        raise InvalidRequest(field, f"{problem}, which UTF-8 cannot hold") from None
    return value


def strings(field: str, value: object) -> tuple[str, ...]:
    """One text or several."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (text(field, value),)
    return tuple(text(f"{field}[{i}]", item) for i, item in enumerate(_sequence(field, value)))


def token_ids(field: str, value: object) -> tuple[int, ...]:
    """Token ids. Whether the model has them is the router's to say."""
    if value is None:
        return ()
    if isinstance(value, str | bytes):
        raise InvalidRequest(field, f"must be a list of token ids, not {type(value).__name__}")
    ids = tuple(_sequence(field, value))
    plain = tuple(i for i in ids if type(i) is int and 0 <= i < UINT32_LIMIT)
    if len(plain) == len(ids):  # the usual case, at the speed that prompts of a million ids need
        return plain
    checked = (integer(f"{field}[{at}]", item, 0, UINT32_LIMIT - 1) for at, item in enumerate(ids))
    return tuple(_required(f"{field}[{at}]", item) for at, item in enumerate(checked))


def logit_bias(field: str, value: object) -> dict[int, float]:
    """Biases by token id."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must map token ids to numbers, not {value!r:.80}")
    biases = {}
    for key, item in value.items():
        token = _required(field, integer(field, key, 0, UINT32_LIMIT - 1))
        biases[token] = _required(f"{field}[{token}]", real(f"{field}[{token}]", item))
    return biases


def _sequence(field: str, value: object) -> Sequence[object]:
    if isinstance(value, Sequence):
        return value
    if hasattr(value, "tolist"):  # numpy arrays and tensors
        return _sequence(field, value.tolist())
    raise InvalidRequest(field, f"must be a list, not {type(value).__name__}")


def _required(field: str, value: T | None) -> T:
    if value is None:
        raise InvalidRequest(field, "must not be null")
    return value
