"""What vLLM can be asked for is served, ignored because it changes no answer, or refused by name."""

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from corun_pd.batch.body import IGNORED, NEUTRAL, NEUTRAL_BY_ENDPOINT, OWN, SERVED
from corun_pd.batch.line import Endpoint

ROOT = Path(__file__).parents[2]

#: What a sampling parameter of vLLM is for when no request can ask for it: how it gives its output.
INTERNAL = {
    "detokenize",
    "extra_args",
    "flat_logprobs",
    "output_kind",
    "output_text_buffer_length",
    "skip_clone",
    "skip_reading_prefix_cache",
    "trace_decode_token_ids",
}


def fields_of(module: str, name: str) -> set[str]:
    """The public fields of a class of the installed vLLM, without importing it."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / module).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    targets = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"}


@pytest.mark.parametrize(
    ("endpoint", "module", "name"),
    [
        (Endpoint.COMPLETIONS, "entrypoints/openai/completion/protocol.py", "CompletionRequest"),
        (Endpoint.CHAT, "entrypoints/openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    ],
)
def test_a_line_of_a_file_knows_every_field_of_vllm(endpoint: Endpoint, module: str, name: str) -> None:
    """A field that is not known is called a typing mistake, which none of these is."""
    known = {*SERVED, *IGNORED, *NEUTRAL, *NEUTRAL_BY_ENDPOINT[endpoint], *OWN[endpoint]}
    assert len(fields_of(module, name)) > 50
    assert fields_of(module, name) <= known


def test_the_table_of_parameters_has_every_sampling_parameter_of_vllm() -> None:
    """Under vLLM's name or the client's."""
    listed = (ROOT / "docs" / "sampling.md").read_text()
    names: Mapping[str, str] = SERVED
    fields = fields_of("sampling_params.py", "SamplingParams")
    assert len(fields) > 35
    missing = {
        f for f in fields - INTERNAL if f"`{f}`" not in listed and f"`{names.get(f, f)}`" not in listed
    }
    assert not missing
