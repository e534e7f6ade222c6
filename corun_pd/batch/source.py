"""A batch file as work: every line becomes a request that can be sent, or a refusal."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from corun_pd.batch.body import body_to_request
from corun_pd.batch.line import BatchLine, Json, Refusal, parse_line
from corun_pd.batch.reader import Reader
from corun_pd.client import Fleet, GenerationRequest, Route
from corun_pd.core import Role
from corun_pd.errors import InvalidRequest, SetupError, Unavailable

__all__ = ["BatchSource", "Refusal", "Served", "Work"]


@dataclass(frozen=True, slots=True)
class Served:
    """What the fleet serves: its fingerprint, its model's names and how many samples run at once."""

    fingerprint: str
    models: tuple[str, ...]
    slots: int

    @classmethod
    def of(cls, fleet: Fleet) -> Self:
        """From the fleet's description. Raises Unavailable while no instance has joined."""
        if fleet.fingerprint is None:
            raise Unavailable("no instance has joined the router; a job needs one to begin")
        instances = [member.instance for member in fleet.members]
        names = {name for instance in instances for name in (instance.model, Path(instance.model).name)}
        slots = sum(instance.slots for instance in instances if instance.role is not Role.PREFILL)
        return cls(fleet.fingerprint, tuple(sorted(names, key=len)), slots)


@dataclass(frozen=True, slots=True)
class Work:
    """A line that can be run. `key` is its content's digest, of which seed and ids are made."""

    line: BatchLine
    request: GenerationRequest
    key: bytes


class BatchSource:
    """Iterating makes a pass over the file; `sha256` is that of the last whole pass.

    Beside the longest line, a pass keeps some hundred bytes for each line that it has seen, to find a
    custom_id that comes again: its first line keeps it, and later ones are refused.
    """

    def __init__(self, path: Path, served: Served, *, seed: int = 0, route: Route | None = None) -> None:
        self.path = path
        self.served = served
        self.seed = seed
        self.route = route
        self.sha256: str | None = None

    def __iter__(self) -> Iterator[Work | Refusal]:
        """Raises SetupError for a file that cannot be read, or that is not the one of the last pass."""
        reader = Reader(self.path)
        owners: dict[bytes, int] = {}
        seen = 0
        for seen, raw in enumerate(reader, 1):  # noqa: B007 - how many there were
            item = parse_line(raw)
            if item.custom_id is not None:
                owner = owners.setdefault(_digest(item.custom_id), item.number)
                if isinstance(item, BatchLine) and owner != item.number:
                    error = InvalidRequest("custom_id", f"is that of line {owner}, too")
                    item = Refusal(item.number, item.custom_id, error)
            yield self._work(item) if isinstance(item, BatchLine) else item
        if not seen:
            raise SetupError(f"{self.path}: has no lines, or blank ones alone")
        if self.sha256 not in (None, reader.sha256):
            raise SetupError(f"{self.path}: was changed while the job ran")
        self.sha256 = reader.sha256

    def _work(self, line: BatchLine) -> Work | Refusal:
        key = _digest([self.seed, line.custom_id, line.endpoint.value, line.body])
        try:
            self._check_model(line.body.get("model"))
            request = body_to_request(line.endpoint, line.body)
        except InvalidRequest as error:
            return Refusal(line.number, line.custom_id, error)
        # Below 2^62, so that seed + i is a seed for every sample i.
        seed = int.from_bytes(key[:8], "big") >> 2 if request.seed is None else request.seed
        return Work(line, replace(request, seed=seed, route=self.route, generation_id=key.hex()[:24]), key)

    def _check_model(self, model: Json) -> None:
        if model is None:
            raise InvalidRequest("model", "is missing")
        if model not in self.served.models:
            raise InvalidRequest("model", f"is {model!r:.80}; {self.served.models[0]!r} is served")


def _digest(value: Json) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()
