"""The modes that experiments compare, as roles and engine configurations."""

from dataclasses import dataclass
from typing import Final

from corun_pd.config import Ablation, EngineConfig, PrefillConfig
from corun_pd.core import Role
from corun_pd.errors import ConfigError

__all__ = ["MODES", "Mode", "mode_named"]


@dataclass(frozen=True, slots=True)
class Mode:
    """A name in tables, the role that runs it, and what it changes in the engine's configuration."""

    name: str
    role: Role
    prefill: str
    ablate: tuple[Ablation, ...] = ()

    def apply(self, config: EngineConfig, chunk_tokens: int) -> EngineConfig:
        """The configuration of this mode; `chunk_tokens` is C or T."""
        prefill = PrefillConfig.model_validate({"mode": self.prefill, "chunk_tokens": chunk_tokens})
        return config.model_copy(update={"prefill": prefill, "ablate": self.ablate})


#: `standard` and `batch-invariant` are vLLM's own scheduling; the others are ours.
MODES: Final = {
    mode.name: mode
    for mode in (
        Mode("standard", Role.STANDARD, "isolated"),
        Mode("batch-invariant", Role.STANDARD, "batch-invariant"),
        Mode("isolated", Role.COLOCATED, "isolated"),
        Mode("packed", Role.COLOCATED, "packed"),
        Mode("isolated, decode not padded", Role.COLOCATED, "isolated", (Ablation.FIXED_SHAPE_DECODE,)),
        Mode("isolated, sampler not padded", Role.COLOCATED, "isolated", (Ablation.SAMPLER_PADDING,)),
    )
}


def mode_named(name: str) -> Mode:
    """The mode. Raises ConfigError that lists the modes when there is none of that name."""
    if name not in MODES:
        raise ConfigError(f"mode {name!r}: not one of {', '.join(MODES)}")
    return MODES[name]
