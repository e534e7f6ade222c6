"""Which GPUs a process sees."""

import os
from collections.abc import Mapping, Sequence

from corun_pd.errors import ConfigError

__all__ = ["VARIABLE", "see_only"]

VARIABLE = "CUDA_VISIBLE_DEVICES"


def see_only(gpus: Sequence[int] | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variable of a process that is to see these GPUs alone; nothing for None.

    GPUs are counted among those that `environment` shows already, so that a launcher's choice stands. Raises
    ConfigError for one that is not among them.
    """
    if gpus is None:
        return {}
    shown = [name.strip() for name in environment.get(VARIABLE, "").split(",") if name.strip()]
    if not shown:
        return {VARIABLE: ",".join(map(str, gpus))}
    for gpu in gpus:
        if gpu >= len(shown):
            raise ConfigError(f"no GPU {gpu} here: {VARIABLE} shows {len(shown)} ({', '.join(shown)})")
    return {VARIABLE: ",".join(shown[gpu] for gpu in gpus)}
