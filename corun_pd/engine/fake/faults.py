"""Faults that tests inject into a fake engine. No configuration reaches them."""

from collections.abc import Callable
from dataclasses import dataclass

from corun_pd.engine.base import LegWork

__all__ = ["FakeFaults"]


@dataclass(slots=True)
class FakeFaults:
    """Set before `start`, or at any time after it.

    never_ready       `start` never returns
    die_after_steps   the engine dies when it has run so many steps
    fail_leg          legs for which this holds fail with EngineFailed when their turn comes
    drop_handoffs     handoffs are forgotten as soon as they are issued; their blocks are free
    corrupt_handoffs  a pull yields the KV cache of another prompt
    salt              anything but 0 draws other tokens: silent data corruption
    """

    never_ready: bool = False
    die_after_steps: int | None = None
    fail_leg: Callable[[LegWork], bool] | None = None
    drop_handoffs: bool = False
    corrupt_handoffs: bool = False
    salt: int = 0
