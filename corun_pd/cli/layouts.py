"""Layouts in a few letters: which roles a cluster has, and how many of each."""

from typing import Final

from corun_pd.core import Role
from corun_pd.errors import ConfigError

__all__ = ["counts_of"]

_ROLES: Final = {"P": Role.PREFILL, "D": Role.DECODE, "C": Role.COLOCATED, "S": Role.STANDARD}


def counts_of(text: str) -> dict[Role, int]:
    """`2C`, `2P+1D` or `2S`, in the order in which they stand. Raises ConfigError for anything else."""
    found: dict[Role, int] = {}
    for part in text.strip().split("+"):
        role = _ROLES.get(part[-1:])
        if role is None or role in found or not part[:-1].isdecimal() or not int(part[:-1]):
            raise ConfigError(f"--layouts {text.strip()}: is not as 2C, 2P+1D or 2S")
        found[role] = int(part[:-1])
    return found
