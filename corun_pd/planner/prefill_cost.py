"""What a prefill step costs, by mode. Times are in seconds."""

import functools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from corun_pd.config import Model
from corun_pd.engine.policy import IsolatedPrefill, PackedPrefill, PrefillPolicy
from corun_pd.planner.curve import Curve

__all__ = ["IsolatedCost", "PackedCost"]


class IsolatedCost(Model):
    """Isolated prefill: `prompts` are (tokens, seconds) of whole prompts, in chunks of `chunk_tokens`."""

    mode: Literal["isolated"] = "isolated"
    chunk_tokens: Annotated[int, Field(ge=3)]
    prompts: Annotated[tuple[tuple[int, float], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _points_make_a_curve(self) -> Self:
        self.curve  # noqa: B018 - its making is the check
        return self

    @functools.cached_property
    def curve(self) -> Curve:
        """Seconds of a whole prompt by its length."""
        return Curve(tuple(x for x, _ in self.prompts), tuple(y for _, y in self.prompts))

    @property
    def width(self) -> int | None:
        """A step is as wide as its tokens."""
        return None

    def policy(self) -> PrefillPolicy:
        """What the engines run."""
        return IsolatedPrefill(self.chunk_tokens)

    def scaled(self, factor: float) -> Self:
        """The same with every time taken so many times."""
        prompts = tuple((tokens, seconds * factor) for tokens, seconds in self.prompts)
        return type(self)(chunk_tokens=self.chunk_tokens, prompts=prompts)

    def step_s(self, tokens: int, context_pairs: int, end: int) -> float:
        """A step that takes a prompt's tokens up to `end`: the difference of two whole prompts.

        No step is shorter than the shortest prompt's.
        """
        whole = self.curve(end)
        return whole if tokens == end else max(whole - self.curve(end - tokens), self.curve.ys[0])

    def alone_s(self, prompt: int) -> float:
        """The least time from a prompt's start to its end."""
        return self.curve(prompt)

    def work_s(self, prompt: int) -> float:
        """The least time of an instance that a prompt takes up."""
        return self.curve(prompt)


class PackedCost(Model):
    """Packed prefill: every step is `chunk_tokens` (T) wide and takes `full_step_s`.

    `context_pair_s` is added for each pair of a token of the step and a token computed before it, which is
    what attention to the earlier chunks of a long prompt costs.
    """

    mode: Literal["packed"] = "packed"
    chunk_tokens: Annotated[int, Field(ge=3)]
    full_step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    context_pair_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @property
    def width(self) -> int | None:
        """Tokens of every step."""
        return self.chunk_tokens

    def policy(self) -> PrefillPolicy:
        """What the engines run."""
        return PackedPrefill(self.chunk_tokens)

    def scaled(self, factor: float) -> Self:
        """The same with every time taken so many times."""
        return type(self)(
            chunk_tokens=self.chunk_tokens,
            full_step_s=self.full_step_s * factor,
            context_pair_s=self.context_pair_s * factor,
        )

    def step_s(self, tokens: int, context_pairs: int, end: int) -> float:
        """A step, whatever it holds."""
        return self.full_step_s + self.context_pair_s * context_pairs

    def alone_s(self, prompt: int) -> float:
        """The least time from a prompt's start to its end."""
        return -(-prompt // self.chunk_tokens) * self.full_step_s + self._context_s(prompt)

    def work_s(self, prompt: int) -> float:
        """The least time of an instance that a prompt takes up: its part of steps without padding."""
        return prompt / self.chunk_tokens * self.full_step_s + self._context_s(prompt)

    def context_pairs(self, prompt: int) -> int:
        """Pairs of a token and one of an earlier chunk, over all of a prompt's chunks."""
        width = self.chunk_tokens
        full = (prompt - 1) // width
        return width * width * full * (full - 1) // 2 + (prompt - full * width) * full * width

    def _context_s(self, prompt: int) -> float:
        """What the prompt's chunks pay for those before them."""
        return self.context_pair_s * self.context_pairs(prompt)
