"""The command line that runs a role."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from corun_pd.config import InstanceConfig

__all__ = ["Command", "python_module", "role_command"]

#: The command line of a role: its role ("router" or a Role), the instance's part of the configuration
#: (None for the router), the cluster file and the router's address.
Command = Callable[[str, InstanceConfig | None, Path, str], Sequence[str]]


def role_command(role: str, instance: InstanceConfig | None, file: Path, router: str) -> Sequence[str]:
    """The role as a command of this package, supervised."""
    options = ["--config", str(file), "--supervised"]
    if instance is None:
        options += ["--port", router.rpartition(":")[2]]
    else:
        options += ["--router", router, "--host", instance.host]
        if instance.cores is not None:
            options += ["--cores", ",".join(str(core) for core in instance.cores)]
        if instance.gpus is not None:
            options += ["--gpus", ",".join(str(gpu) for gpu in instance.gpus)]
    return python_module("corun_pd.cli.main", "--log-level", "info", role, *options)


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` under this interpreter."""
    return [sys.executable, "-m", module, *arguments]
