"""What the scheduler and the workers need to know of this package's configuration.

It travels in vLLM's `additional_config`, so that worker processes of any executor get it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from corun_pd.config import Ablation, EngineConfig
from corun_pd.core import Role
from corun_pd.engine.policy import IsolatedPrefill, PackedPrefill, PrefillPolicy

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Settings"]

KEY = "corun_pd"


@dataclass(frozen=True, slots=True)
class Settings:
    """`slots` is N. `chunk_tokens` is C or T, by `prefill_mode`."""

    role: Role
    prefill_mode: str
    chunk_tokens: int
    slots: int
    max_logprobs: int
    ablate: Sequence[str] = ()

    @classmethod
    def of(cls, role: Role, config: EngineConfig) -> "Settings":
        """From the configuration."""
        return cls(
            role=role,
            prefill_mode="standard" if role is Role.STANDARD else config.prefill.mode,
            chunk_tokens=config.prefill.chunk_tokens,
            slots=config.slots,
            max_logprobs=config.max_logprobs,
            ablate=tuple(config.ablate),
        )

    @classmethod
    def from_vllm(cls, config: "VllmConfig") -> "Settings":
        """From a vLLM configuration that carries them."""
        values: Mapping[str, object] = config.additional_config[KEY]
        return cls(**{**values, "role": Role(str(values["role"]))})  # type: ignore[arg-type]

    def as_additional_config(self) -> dict[str, object]:
        """The value for vLLM's `additional_config`."""
        return {KEY: asdict(self)}

    def has(self, mechanism: Ablation) -> bool:
        """Whether a mechanism of the scheme is in force. None is under standard scheduling."""
        return self.role is not Role.STANDARD and mechanism not in self.ablate

    def prefill_policy(self) -> PrefillPolicy:
        """The policy of the prefill mode."""
        if self.prefill_mode == "isolated":
            return IsolatedPrefill(self.chunk_tokens)
        if self.prefill_mode == "hybrid":
            return PackedPrefill(self.chunk_tokens, fill=0.0)  # No step is padded, so none waits.
        return PackedPrefill(self.chunk_tokens)
