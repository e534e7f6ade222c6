"""An instance's own time, which goes slower while another instance on its device computes."""

__all__ = ["Pace"]


class Pace:
    """Own time and the simulation's are one until the first change; times are in seconds of either."""

    __slots__ = ("_now_s", "_own_s", "_slowness")

    def __init__(self) -> None:
        self._now_s = 0.0
        self._own_s = 0.0
        self._slowness = 1.0

    def own_s(self, now_s: float) -> float:
        """The instance's own time at `now_s`, which is not before the last change."""
        return self._own_s + (now_s - self._now_s) / self._slowness

    def at_s(self, own_s: float) -> float:
        """When its own time will be `own_s`, if nothing changes until then."""
        return self._now_s + (own_s - self._own_s) * self._slowness

    def change(self, slowness: float, now_s: float) -> bool:
        """From `now_s` on, what takes a second alone takes `slowness` seconds. False: it did already."""
        if slowness == self._slowness:
            return False
        self._own_s, self._now_s = self.own_s(now_s), now_s
        self._slowness = slowness
        return True
