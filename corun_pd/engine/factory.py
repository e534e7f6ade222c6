"""Which engine a configuration names. Engines are imported only when they are built."""

from collections.abc import Callable, Sequence
from pathlib import Path

from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.base import Engine
from corun_pd.engine.operators import OperatorResult

__all__ = ["build_engine", "examine_operators"]


def build_engine(model: Path, role: Role, config: EngineConfig, host: str) -> Engine:
    """The engine of one instance. `host` is where peers reach its KV side channel."""
    if config.kind == "fake":
        from corun_pd.engine.fake import FakeEngine

        return FakeEngine(model, role, config, host)
    from corun_pd.engine.vllm.engine import VllmEngine

    return VllmEngine(model, role, config, host)


def examine_operators(
    model: Path, config: EngineConfig, timed: Sequence[int], say: Callable[[str], None]
) -> tuple[list[OperatorResult], list[OperatorResult]]:
    """Results of the kernels of vLLM's step in this process, and of the controls; `timed` are row counts.

    Raises ConfigError for a config.json without the widths, SetupError when it cannot be read.
    """
    from corun_pd.engine.vllm import environment

    # vLLM reads the environment when it is imported.
    environment.prepare(config, "127.0.0.1")
    from corun_pd.engine.vllm import operators

    return operators.examine_operators(model, config, timed, say=say)
