"""What the fake engine takes from a model folder: sizes and end-of-sequence tokens, no weights."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from corun_pd.config import EngineConfig
from corun_pd.errors import SetupError

__all__ = ["FakeModel", "read_model"]

#: The length limit of a model that states none.
DEFAULT_MODEL_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class FakeModel:
    """`digest` is over the folder's configuration files, so that two models make two contracts."""

    digest: str
    vocabulary: int
    eos_token_ids: frozenset[int]
    max_tokens: int


def read_model(folder: Path, config: EngineConfig) -> FakeModel:
    """Reads config.json and generation_config.json where they exist; a fake model needs neither.

    The vocabulary is the model's, else the one of `config.fake`. Raises SetupError for a file that is
    not JSON and for a length limit above the model's.
    """
    files = [folder / "config.json", folder / "generation_config.json"]
    digest = hashlib.sha256()
    facts: dict[str, object] = {}
    for file in files:
        if not file.is_file():
            continue
        text = file.read_bytes()
        digest.update(text)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise SetupError(f"{file}: not JSON: {error}") from error
        if not isinstance(found, dict):
            raise SetupError(f"{file}: not a JSON object")
        facts.update({key: value for key, value in found.items() if value is not None})
    limit = _integer(facts, "max_position_embeddings", config.max_model_tokens or DEFAULT_MODEL_TOKENS)
    max_tokens = config.max_model_tokens or limit
    if max_tokens > limit:
        raise SetupError(f"engine.max_model_tokens: {max_tokens} is above the model's limit of {limit}")
    return FakeModel(
        digest=digest.hexdigest() if facts else f"name:{folder.name}",
        vocabulary=_integer(facts, "vocab_size", config.fake.vocabulary),
        eos_token_ids=_token_ids(facts.get("eos_token_id")),
        max_tokens=max_tokens,
    )


def _integer(facts: dict[str, object], key: str, default: int) -> int:
    value = facts.get(key, default)
    if not isinstance(value, int) or value < 1:
        raise SetupError(f"config.json: {key}: not a positive integer (got {value!r})")
    return value


def _token_ids(value: object) -> frozenset[int]:
    """`eos_token_id` is a token id, a list of them, or absent."""
    ids = value if isinstance(value, list) else [value]
    return frozenset(id_ for id_ in ids if isinstance(id_, int))
