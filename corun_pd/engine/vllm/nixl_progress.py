"""Lets NIXL's progress thread sleep while there is nothing to do.

nixl 1.5.1's Python API sets the thread's delay to zero with no way to say otherwise: it polls without
pause and takes a whole core from every prefill and decode engine, idle or not. With a delay it waits in
poll(2) and wakes at once when something arrives. GPU transfers need not announce themselves so, which is
why this is for CPU engines alone.
"""

from typing import Final

from nixl import _bindings

__all__ = ["install"]

#: The longest that the thread sleeps, in microseconds.
DELAY_US: Final = 1000


_Config = _bindings.nixlAgentConfig


class _PatientConfig(_Config):  # type: ignore[misc, valid-type]
    @property
    def pthrDelay(self) -> int:  # noqa: N802 - NIXL's name
        return int(_Config.pthrDelay.__get__(self))

    @pthrDelay.setter
    def pthrDelay(self, delay_us: int) -> None:  # noqa: N802
        _Config.pthrDelay.__set__(self, max(delay_us, DELAY_US))


def install() -> None:
    """For every NIXL agent that this process makes from now on."""
    _bindings.nixlAgentConfig = _PatientConfig
