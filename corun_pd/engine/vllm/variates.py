"""Which variate a row draws: a pure function of (seed, step)."""

from typing import Final

__all__ = ["RNG_SCHEME", "mix"]

#: Names how (seed, step) becomes a variate. History:
#: splitmix64-step-1  `mix`, then vLLM's fused Gumbel argmax with one 63-bit seed a row.
RNG_SCHEME: Final = "splitmix64-step-1"

_MASK64: Final = (1 << 64) - 1


def mix(seed: int, step: int) -> int:
    """A 63-bit value from (seed, step), by SplitMix64's finalizer over an odd-weighted sum."""
    z = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (z ^ (z >> 31)) >> 1
