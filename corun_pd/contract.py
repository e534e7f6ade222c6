"""The contract: every setting that can change a bit of the output, and its fingerprint.

Equal fingerprint and equal request give equal output. An engine builds its contract from what is in
force (not from what was asked for) once it has started; instances exchange it when they join a
router, and every answer carries the fingerprint.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from corun_pd.errors import ContractMismatch

__all__ = ["CONTRACT_VERSION", "Contract", "Setting"]


#: A setting's value: anything that JSON writes in one way.
Setting = str | int | float | bool | None | list["Setting"] | tuple["Setting", ...]

#: Part of every fingerprint. History:
#: 1  the first.
CONTRACT_VERSION: Final = 1


@dataclass(frozen=True)
class Contract:
    """Settings by name. Immutable; compared and hashed by fingerprint."""

    settings: Mapping[str, Setting]

    @functools.cached_property
    def as_json(self) -> dict[str, str]:
        """The settings with values as JSON, sorted by name: the form that crosses the wire."""
        rows = {**self.settings, "contract_version": CONTRACT_VERSION}
        return {name: json.dumps(rows[name], sort_keys=True) for name in sorted(rows)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the canonical form, in hex."""
        return fingerprint_of(self.as_json)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self.fingerprint == other.fingerprint


def fingerprint_of(settings: Mapping[str, str]) -> str:
    """SHA-256 of settings in wire form (`Contract.as_json`), in hex."""
    text = json.dumps(dict(sorted(settings.items())), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def require_equal(expected: Mapping[str, str], found: Mapping[str, str], who: str) -> None:
    """Raises ContractMismatch that names each field in which `found`, of `who`, differs."""
    differences = {
        name: (expected.get(name, "absent"), found.get(name, "absent"))
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    }
    if differences:
        raise ContractMismatch(f"{who} runs another contract than the fleet", differences)
