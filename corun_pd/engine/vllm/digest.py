"""The digest of a model folder: what its weights and configuration are, whatever it is called."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corun_pd.errors import SetupError

__all__ = ["model_digest", "tokenizer_digest"]

_PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")

_TOKENIZER_PATTERNS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.model")


def model_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of configuration and weights, in hex.

    Contents are read once and remembered by size and time of change in the user's cache folder, since
    weights may have hundreds of gigabytes. Raises SetupError when the folder holds no model.
    """
    if not (folder / "config.json").is_file():
        raise SetupError(f"{folder}: no config.json; this is not a model folder")
    return _digest(folder, _PATTERNS)


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the tokenizer, in hex. Grammars mask tokens by their texts."""
    return _digest(folder, _TOKENIZER_PATTERNS)


def _digest(folder: Path, patterns: Sequence[str]) -> str:
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    cache = _Cache()
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(cache.digest_of, files))
    cache.save()
    rows = "".join(f"{path.name} {digest}\n" for path, digest in zip(files, digests, strict=True))
    return hashlib.sha256(rows.encode()).hexdigest()


class _Cache:
    def __init__(self) -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.path = base / "corun-pd" / "digests.json"
        try:
            self.known: dict[str, str] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.known = {}

    def digest_of(self, path: Path) -> str:
        facts = path.stat()
        key = f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"
        if key not in self.known:
            with path.open("rb") as file:
                self.known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self.known[key]

    def save(self) -> None:
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.known))
            part.replace(self.path)
        except OSError:
            return  # A cache that cannot be written only costs time.
