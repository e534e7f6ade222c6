"""Lines as work: each becomes a request that can be sent, or a refusal."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import orjson

from corun_pd.batch.inputs import InputFiles, Inputs
from corun_pd.batch.line import BatchLine, Json, Refusal, parse_line
from corun_pd.batch.reader import RawLine
from corun_pd.batch.requests import Requests
from corun_pd.client import Fleet, GenerationRequest, Route
from corun_pd.core import Role
from corun_pd.errors import InvalidRequest, SetupError, Unavailable

__all__ = ["BatchSource", "Refusal", "Served", "Work"]

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True)
class Served:
    """What the fleet serves: its contract, its model's names and how many samples run at once."""

    fingerprint: str
    models: tuple[str, ...]
    slots: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet) -> Self:
        """From the fleet's description. Raises Unavailable while no instance has joined."""
        if fleet.fingerprint is None:
            raise Unavailable("no instance has joined the router; a job needs one to begin")
        instances = [member.instance for member in fleet.members]
        names = {name for instance in instances for name in (instance.model, Path(instance.model).name)}
        slots = sum(instance.slots for instance in instances if instance.role is not Role.PREFILL)
        models = tuple(sorted(names, key=lambda name: (len(name), name)))
        return cls(fleet.fingerprint, models, slots, fleet.settings)

    @property
    def concurrency(self) -> int:
        """Requests to have under way, so that no slot waits for the job."""
        return max(8, 2 * self.slots)


@dataclass(frozen=True, slots=True)
class Work:
    """A line that can be run. `key` is its content's digest, of which seed and ids are made."""

    line: BatchLine
    request: GenerationRequest
    key: bytes


class BatchSource:
    """Iterating makes a pass over the inputs that checks every line.

    Beside the longest line, it keeps about 150 bytes for each line that it has seen, to find a custom_id
    that comes again: its first line keeps it, and later ones are refused. Every pass must find what the
    inputs' last one found.
    """

    def __init__(
        self, inputs: Inputs | Path, served: Served, *, seed: int = 0, route: Route | None = None
    ) -> None:
        self.inputs = InputFiles(inputs) if isinstance(inputs, Path) else inputs
        self.served = served
        self.seed = seed
        self._requests = Requests(route)
        self._digests = self.inputs.digests or None

    def __iter__(self) -> Iterator[Work | Refusal]:
        """Raises SetupError for inputs that cannot be read, or that are not those of the last pass."""
        for item in self._lines():
            yield self._work(item) if isinstance(item, BatchLine) else item

    def check(self) -> Iterator[Refusal | None]:
        """The same pass for its refusals alone; None stands for a good line."""
        for item in self._lines():
            try:
                if isinstance(item, BatchLine):
                    self._check_model(item.body.get("model"))
                    self._requests.check(item.endpoint, item.body)
                    yield None
                else:
                    yield item
            except InvalidRequest as error:
                yield self._refusal(item, error)

    def remaining(self, is_finished: Callable[[RawLine], bool]) -> Iterator[Work]:
        """A later pass: the work of the lines that are not finished.

        Finished lines are not even parsed. Refused ones must be among them. Raises SetupError for inputs
        that are not those of the last pass.
        """
        for raw in self.inputs:
            if is_finished(raw):
                continue
            item = parse_line(raw, self.inputs.place)
            work = self._work(item) if isinstance(item, BatchLine) else item
            if isinstance(work, Refusal):
                raise self._changed()
            yield work
        self._require_same()

    def _lines(self) -> Iterator[BatchLine | Refusal]:
        owners: dict[bytes, int] = {}
        has_lines = False
        for raw in self.inputs:
            has_lines = True
            item = parse_line(raw, self.inputs.place)
            if item.custom_id is not None:
                name = hashlib.sha256(item.custom_id.encode("utf-8", "surrogatepass")).digest()[:16]
                owner = owners.setdefault(name, raw.number)
                if isinstance(item, BatchLine) and owner != raw.number:
                    twice = InvalidRequest("custom_id", f"is that of {self.inputs.place(owner)}, too")
                    item = self._refusal(item, twice)
            yield item
        if not has_lines:
            raise SetupError(f"{self.inputs}: no lines, or blank ones alone")
        self._require_same()

    def _work(self, line: BatchLine) -> Work | Refusal:
        key = hashlib.sha256(_canonical([self.seed, line.custom_id, line.endpoint.value, line.body])).digest()
        # Below 2^62, so that seed + i is a seed for every sample i.
        seed = int.from_bytes(key[:8], "big") >> 2
        try:
            return Work(line, self._request(line, seed, key.hex()[:24]), key)
        except InvalidRequest as error:
            return self._refusal(line, error)

    def _request(self, line: BatchLine, seed: int, generation_id: str) -> GenerationRequest:
        self._check_model(line.body.get("model"))
        return self._requests.make(line.endpoint, line.body, seed, generation_id)

    def _check_model(self, model: Json) -> None:
        if model is None:
            raise InvalidRequest("model", "is missing")
        if model not in self.served.models:
            raise InvalidRequest("model", f"is {model!r:.80}; {self.served.models[0]!r} is served")

    def _refusal(self, line: BatchLine | Refusal, error: InvalidRequest) -> Refusal:
        place = self.inputs.place(line.number)
        return Refusal(line.index, line.number, line.crc, place, line.custom_id, error)

    def _require_same(self) -> None:
        if self._digests not in (None, self.inputs.digests):
            raise self._changed()
        self._digests = self.inputs.digests

    def _changed(self) -> SetupError:
        return SetupError(f"{self.inputs}: was changed while the job ran")


def _canonical(value: Json) -> bytes:
    """JSON that is the same for the same content, however its line was written."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates and numbers beyond 64 bits; then it is so for every such line
        return _ENCODER.encode(value).encode()
