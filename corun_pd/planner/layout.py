"""A cluster to simulate: how many instances of which role, and how big each is."""

from dataclasses import dataclass

from corun_pd.core import InstanceInfo, Role
from corun_pd.errors import ConfigError
from corun_pd.router.policy import Demand

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """`prefill` and `decode` instances, or `colocated` ones alone. Raises ConfigError for another mix.

    `slots` is N and `blocks` the KV pool, of each instance. `lookahead` is the router's decode_lookahead.
    `per_device` instances, in the order of prefill, decode, colocated, share a device and slow each other.
    """

    slots: int
    blocks: int
    block_tokens: int
    prefill: int = 0
    decode: int = 0
    colocated: int = 0
    lookahead: int | None = None
    per_device: int = 1

    def __post_init__(self) -> None:
        counts = (self.prefill, self.decode, self.colocated)
        is_apart = self.prefill > 0 and self.decode > 0 and self.colocated == 0
        is_whole = self.prefill == 0 and self.decode == 0 and self.colocated > 0
        if min(counts) < 0 or not (is_apart or is_whole):
            raise ConfigError(f"layout: {self.words}; it takes prefill and decode instances, or colocated")
        if min(self.slots, self.blocks, self.block_tokens, self.per_device) < 1 or (self.lookahead or 0) < 0:
            raise ConfigError(f"layout: slots, blocks, lookahead, per_device must be positive: {self}")

    @property
    def words(self) -> str:
        """As people name it."""
        if self.colocated and not self.prefill and not self.decode:
            return f"{self.colocated} colocated"
        return f"{self.prefill} prefill, {self.decode} decode"

    @property
    def instances(self) -> int:
        """Of all roles."""
        return self.prefill + self.decode + self.colocated

    def ever_holds(self, demand: Demand) -> bool:
        """Whether the request fits when nothing else runs. An engine takes a prompt with its first token."""
        return demand.prompt_tokens + max(demand.max_tokens, 1) <= self.blocks * self.block_tokens

    def infos(self, role: Role) -> list[InstanceInfo]:
        """The role's instances as the router's policy sees them."""
        counts = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.COLOCATED: self.colocated}
        return [
            InstanceInfo(
                instance_id=f"{role}-{index}",
                role=role,
                address="",
                fingerprint="",
                settings={},
                model="",
                slots=self.slots,
                blocks=self.blocks,
                block_tokens=self.block_tokens,
                max_model_tokens=self.blocks * self.block_tokens,
                prefill_tokens=0,
                block_bytes=0,
                max_logprobs=0,
                vocabulary=0,
            )
            for index in range(counts[role])
        ]
