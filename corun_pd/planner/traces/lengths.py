"""How long a text is in tokens: by a tokenizer, or by a stated rule; never guessed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LengthRule", "characters_per_token"]


@dataclass(frozen=True, slots=True)
class LengthRule:
    """`count` gives a text's tokens; `words` says how, and is shown with every plan."""

    words: str
    count: Callable[[str], int]


def characters_per_token(ratio: float) -> LengthRule:
    """`ratio` characters to a token, rounded up. Raises ValueError for a ratio that is not positive."""
    if not ratio > 0 or math.isinf(ratio):
        raise ValueError(f"characters per token must be positive and finite, not {ratio}")
    return LengthRule(
        f"lengths estimated at {ratio:g} characters per token", lambda text: math.ceil(len(text) / ratio)
    )
