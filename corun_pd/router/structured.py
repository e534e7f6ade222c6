"""Constraints on the text, as far as they can be checked without the engine's grammar compiler.

What only the compiler finds comes back from the engine as the same error, before a token is computed.
"""

import json
from typing import Final

from corun_pd.core import StructuredOutput, Syntax
from corun_pd.errors import InvalidRequest
from corun_pd.v1 import sampling_pb2
from corun_pd.wire.convert import structured_output_from_pb

__all__ = ["structured_output"]

FIELD: Final = "sampling.structured_output"

MAX_CHARACTERS: Final = 1 << 20
MAX_CHOICES: Final = 1024

#: vLLM's bound on nested objects and arrays of a schema.
MAX_NESTING: Final = 64


def structured_output(message: sampling_pb2.SamplingParams) -> StructuredOutput | None:
    """The request's constraint. Raises InvalidRequest that says what is wrong with it."""
    output = structured_output_from_pb(message)
    if output is None:
        return None
    field = f"{FIELD}.{output.syntax}"
    if len(output.spec) > MAX_CHARACTERS:
        raise InvalidRequest(field, f"has {len(output.spec)} characters; at most {MAX_CHARACTERS}")
    if output.syntax is Syntax.JSON_SCHEMA:
        _check_schema(field, output.spec)
    elif output.syntax is Syntax.CHOICES:
        texts = json.loads(output.spec)
        if not 1 <= len(texts) <= MAX_CHOICES or not all(texts):
            raise InvalidRequest(field, f"must be 1 to {MAX_CHOICES} texts, none of them empty")
    elif output.syntax is Syntax.REGEX:
        if "\0" in output.spec:
            raise InvalidRequest(field, "must not contain a NUL character")
        if not output.spec:
            raise InvalidRequest(field, "empty")
    elif not output.spec.strip():
        raise InvalidRequest(field, "empty")
    return output


def _check_schema(field: str, spec: str) -> None:
    try:
        schema = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidRequest(field, f"must be a JSON object, not {spec[:80]}")
    level: list[object] = [schema]
    for _ in range(MAX_NESTING):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return
    raise InvalidRequest(field, f"objects and arrays are nested more than {MAX_NESTING} deep")


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
