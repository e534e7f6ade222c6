"""Where to look for a plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corun_pd.errors import ConfigError
from corun_pd.planner.cost import Profile
from corun_pd.planner.layout import Layout
from corun_pd.planner.memory import Infeasible

__all__ = ["Space"]


@dataclass(frozen=True, slots=True)
class Space:
    """Where to look: up to `gpus`, `gpus_per_instance` each; every N of `slots` with every profile.

    `blocks` is the KV pool of an instance. Profiles differ in their machine, prefill mode or T; `prices` are
    what an hour of one of their GPUs costs, one for each, or one for all, or none: 1. Raises Infeasible when
    the budget holds no instance.
    """

    gpus: int
    profiles: Sequence[Profile]
    slots: Sequence[int]
    blocks: int
    block_tokens: int
    gpus_per_instance: int = 1
    lookahead: int | None = None
    prices: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.gpus_per_instance < 1 or not self.profiles or not self.slots:
            raise ConfigError("search: it takes a profile, a number of slots and GPUs for an instance")
        if len(self.prices) not in (0, 1, len(self.profiles)):
            raise ConfigError(f"search: {len(self.prices)} prices for {len(self.profiles)} profiles")
        if not all(0 < price < float("inf") for price in self.prices):
            raise ConfigError(f"search: a price of {min(self.prices):g} is not positive")
        if self.gpus < self.gpus_per_instance:
            raise Infeasible(
                "the GPU budget", f"one instance takes {self.gpus_per_instance} GPUs, of {self.gpus} there"
            )

    def layouts(self) -> Iterator[tuple[Layout, Profile]]:
        """Every split of every number of instances."""
        for profile in self.profiles:
            for slots in self.slots:
                for count in range(1, self.gpus // self.gpus_per_instance + 1):
                    yield self._layout(slots, colocated=count), profile
                    for prefill in range(1, count):
                        yield self._layout(slots, prefill=prefill, decode=count - prefill), profile

    def price_of(self, profile: Profile) -> float:
        """What an hour of one GPU of the profile's machine costs."""
        if len(self.prices) <= 1:
            return self.prices[0] if self.prices else 1.0
        return next(price for one, price in zip(self.profiles, self.prices, strict=True) if one is profile)

    def _layout(self, slots: int, *, prefill: int = 0, decode: int = 0, colocated: int = 0) -> Layout:
        return Layout(slots, self.blocks, self.block_tokens, prefill, decode, colocated, self.lookahead)
