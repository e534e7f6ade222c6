"""The modes that experiments compare, as roles and engine configurations."""

from dataclasses import dataclass, replace
from typing import Final

from corun_pd.config import Ablation, EngineConfig, PrefillConfig
from corun_pd.core import Role
from corun_pd.errors import ConfigError

__all__ = ["ABLATION", "COMPILED", "MODES", "TRITON", "Mode", "mode_named", "modes_named"]

#: After a mode's name: the model is compiled.
COMPILED: Final = "+compiled"

#: After a mode's name: vLLM's Triton attention, which cuts each KV cache by its own length alone.
TRITON: Final = "+triton"


@dataclass(frozen=True, slots=True)
class Mode:
    """A name in tables, the role that runs it, and what it changes in the engine's configuration."""

    name: str
    role: Role
    prefill: str
    ablate: tuple[Ablation, ...] = ()
    compiled: bool = False
    attention_backend: str | None = None

    def apply(self, config: EngineConfig, chunk_tokens: int) -> EngineConfig:
        """The configuration of this mode; `chunk_tokens` is C or T."""
        prefill = PrefillConfig.model_validate({"mode": self.prefill, "chunk_tokens": chunk_tokens})
        changes = {
            "prefill": prefill,
            "ablate": self.ablate,
            "compile": self.compiled or config.compile,
            "attention_backend": self.attention_backend or config.attention_backend,
        }
        return config.model_copy(update=changes)


#: What can be switched off beside prefill; Split-KV is the last.
_NOTHING_ELSE: Final = (Ablation.FIXED_SHAPE_DECODE, Ablation.SAMPLER_PADDING, Ablation.NO_SPLIT_KV)

#: `standard` and `batch-invariant` are vLLM's own scheduling; the others are ours.
MODES: Final = {
    mode.name: mode
    for mode in (
        Mode("standard", Role.STANDARD, "isolated"),
        Mode("batch-invariant", Role.STANDARD, "batch-invariant"),
        Mode("isolated", Role.COLOCATED, "isolated"),
        Mode("packed", Role.COLOCATED, "packed"),
        Mode("hybrid", Role.COLOCATED, "hybrid"),
        Mode("isolated prefill alone", Role.COLOCATED, "isolated", _NOTHING_ELSE),
        Mode("isolated, Split-KV off", Role.COLOCATED, "isolated", _NOTHING_ELSE[:2]),
        Mode("isolated, decode not padded", Role.COLOCATED, "isolated", _NOTHING_ELSE[:1]),
        Mode("isolated, sampler not padded", Role.COLOCATED, "isolated", _NOTHING_ELSE[1:2]),
    )
}

#: From nothing to everything, one mechanism at a time (paper Fig. 13), and packed prefill last.
ABLATION: Final = (
    "standard",
    "isolated prefill alone",
    "isolated, Split-KV off",
    "isolated, sampler not padded",
    "isolated",
    "packed",
)


def mode_named(name: str) -> Mode:
    """The mode; `+compiled` after a name compiles the model, `+triton` takes Triton's attention.

    Raises ConfigError that lists the modes when there is none of that name.
    """
    plain, *additions = name.split("+")
    if plain not in MODES or not {f"+{addition}" for addition in additions} <= {COMPILED, TRITON}:
        listed = ", ".join(MODES)
        raise ConfigError(f"mode {name!r}: not one of {listed}, or one of them with {COMPILED} or {TRITON}")
    return replace(
        MODES[plain],
        name=name,
        compiled=COMPILED in name,
        attention_backend="TRITON_ATTN" if TRITON in name else None,
    )


def modes_named(text: str) -> list[Mode]:
    """The modes of `NAME;NAME` or `NAME,NAME`: a semicolon separates names that hold commas."""
    separator = ";" if ";" in text or text.strip() in MODES else ","
    return [mode_named(name.strip()) for name in text.split(separator)]
