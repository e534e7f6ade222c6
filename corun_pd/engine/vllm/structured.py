"""Constraints on the text as vLLM's structured outputs.

One grammar compiler serves every request. vLLM's own rule, `auto`, takes another one for what the first
cannot do, and keeps for the life of an engine the one that its first request got: an answer would depend
on who came first.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from vllm.sampling_params import SamplingParams as VllmSamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

from corun_pd.core import StructuredOutput, Syntax
from corun_pd.errors import InvalidRequest

__all__ = ["COMPILER", "check", "has_tokenizer", "reason_of", "structured_outputs"]

#: The compiler; its version is part of the contract.
COMPILER: Final = "xgrammar"

_FIELDS: Final = {
    Syntax.JSON_SCHEMA: "json",
    Syntax.REGEX: "regex",
    Syntax.CHOICES: "choice",
    Syntax.GRAMMAR: "grammar",
}


def has_tokenizer(model: Path) -> bool:
    """Whether the model's folder has the tokens' texts, which a grammar needs."""
    return any((model / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))


def structured_outputs(output: StructuredOutput | None) -> StructuredOutputsParams | None:
    """vLLM's form of a constraint."""
    if output is None:
        return None
    spec: Any = json.loads(output.spec) if output.syntax is Syntax.CHOICES else output.spec
    params = StructuredOutputsParams(**{_FIELDS[output.syntax]: spec})
    params._backend = COMPILER
    return params


def check(output: StructuredOutput, params: VllmSamplingParams, tokenizer: bool) -> None:
    """Raises InvalidRequest, with the compiler's reason, for a constraint that it cannot serve exactly."""
    field = f"sampling.structured_output.{output.syntax}"
    if not tokenizer:
        raise InvalidRequest(field, "cannot be served: the model's folder has no tokenizer")
    try:
        validate_xgrammar_grammar(params)
    except Exception as error:
        raise InvalidRequest(field, reason_of(error.__cause__ or error)) from error


def reason_of(error: BaseException) -> str:
    """The compiler's first line, without the time and the place in its source that it begins with."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", line)[:200] or type(error).__name__
