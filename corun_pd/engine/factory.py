"""Which engine a configuration names. Engines are imported only when they are built."""

from pathlib import Path

from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.base import Engine

__all__ = ["build_engine"]


def build_engine(model: Path, role: Role, config: EngineConfig, host: str) -> Engine:
    """The engine of one instance. `host` is where peers reach its KV side channel."""
    if config.kind == "fake":
        from corun_pd.engine.fake import FakeEngine

        return FakeEngine(model, role, config, host)
    from corun_pd.engine.vllm.engine import VllmEngine

    return VllmEngine(model, role, config, host)
