"""What can be known to be wrong before any process is started."""

import os
import socket

from corun_pd.cluster.doctor import require_healthy
from corun_pd.config import ClusterConfig, InstanceConfig
from corun_pd.errors import ConfigError, SetupError

__all__ = ["check_cluster", "check_instance", "check_port", "check_router", "free_port"]


def check_cluster(config: ClusterConfig) -> None:
    """Raises SetupError, or ConfigError that names the place, when this cluster cannot start here."""
    check_router(config)
    for instance in config.instances:
        check_instance(config, instance)


def check_router(config: ClusterConfig) -> None:
    """As `check_cluster`, for the router alone."""
    _check_model(config)
    if config.router.port:
        check_port("router", config.router.host, config.router.port)


def check_instance(config: ClusterConfig, instance: InstanceConfig) -> None:
    """As `check_cluster`, for one instance of those of `config`."""
    _check_model(config)
    for core in sorted(set(instance.cores or ())):
        if not _is_usable(core):
            here = sorted(os.sched_getaffinity(0))
            place = config.instances.index(instance)
            raise ConfigError(f"instances.{place}.cores: no core {core} here (there are {here})")
    if config.engine.kind == "vllm":
        require_healthy()


def check_port(role: str, host: str, port: int) -> None:
    """Raises SetupError that names role, port and host when the port cannot be bound."""
    with _listener(host) as listener:
        try:
            listener.bind((host, port))
        except OSError as error:
            raise SetupError(f"{role}: port {port} of {host} cannot be bound: {error.strerror}") from error


def free_port(host: str) -> int:
    """A port that is free now. Whoever binds it must still be ready to find it taken."""
    with _listener(host) as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            raise ConfigError(f"router.host: {host!r} is no address here: {error.strerror}") from error
        return int(listener.getsockname()[1])


def _listener(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # As a server would: a port in TIME_WAIT is free, one that somebody listens on is not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener


def _check_model(config: ClusterConfig) -> None:
    if not config.model.is_dir():
        raise ConfigError(f"model: {config.model} is not a folder")
    if not (config.model / "config.json").is_file():
        raise ConfigError(f"model: {config.model} has no config.json, so it holds no model")


def _is_usable(core: int) -> bool:
    """Whether a child can be pinned to the core. This process may be pinned to others itself."""
    before = os.sched_getaffinity(0)
    if core in before:
        return True
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError):
        return False
    os.sched_setaffinity(0, before)
    return True
