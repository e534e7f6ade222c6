"""Constraints on the text: what is wrong with one is said before an engine sees it."""

import json

import pytest

from corun_pd.core import StructuredOutput, Syntax
from corun_pd.errors import InvalidRequest
from corun_pd.router.structured import MAX_CHARACTERS, MAX_CHOICES, MAX_NESTING, structured_output
from corun_pd.v1 import sampling_pb2


def resolve(**constraint: object) -> StructuredOutput | None:
    message = sampling_pb2.StructuredOutput()
    for name, value in constraint.items():
        if name == "choices":
            message.choices.SetInParent()
            message.choices.texts.extend(value)  # type: ignore[arg-type]
        else:
            setattr(message, name, value)
    return structured_output(sampling_pb2.SamplingParams(structured_output=message))


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_a_request_without_a_constraint_has_none() -> None:
    """Unset is not an empty one."""
    assert structured_output(sampling_pb2.SamplingParams()) is None


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        ({"json_schema": '{"type": "object"}'}, StructuredOutput(Syntax.JSON_SCHEMA, '{"type": "object"}')),
        ({"json_schema": nested(MAX_NESTING)}, StructuredOutput(Syntax.JSON_SCHEMA, nested(MAX_NESTING))),
        ({"regex": " "}, StructuredOutput(Syntax.REGEX, " ")),
        ({"grammar": 'root ::= "a"'}, StructuredOutput(Syntax.GRAMMAR, 'root ::= "a"')),
        ({"choices": ["é", '"']}, StructuredOutput(Syntax.CHOICES, json.dumps(["é", '"']))),
    ],
    ids=str,
)
def test_a_constraint_is_carried_as_it_is_written(
    constraint: dict[str, object], found: StructuredOutput
) -> None:
    """The order of a schema's keys is that of the text."""
    assert resolve(**constraint) == found


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({}, ""),
        ({"json_schema": "{"}, ".json_schema"),
        ({"json_schema": "[]"}, ".json_schema"),
        ({"json_schema": nested(MAX_NESTING + 1)}, ".json_schema"),
        ({"json_schema": '{"a":' * 100_000}, ".json_schema"),
        ({"regex": ""}, ".regex"),
        ({"regex": "a\0"}, ".regex"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, ".regex"),
        ({"grammar": " \n"}, ".grammar"),
        ({"choices": []}, ".choices"),
        ({"choices": ["a", ""]}, ".choices"),
        ({"choices": ["a"] * (MAX_CHOICES + 1)}, ".choices"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_faulty_constraint_is_named(constraint: dict[str, object], field: str) -> None:
    """By its syntax, where it has one."""
    with pytest.raises(InvalidRequest) as error:
        resolve(**constraint)
    assert error.value.field == f"sampling.structured_output{field}"
