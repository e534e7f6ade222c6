"""Tokens of the fake engine: a pure function of the KV cache's digest, the sampling and the output so far.

Every field of the sampling parameters that the engine acts on goes into the draw, so one that is lost
or changed between two instances changes the answer, as it would with a model. Greedy draws do not
depend on the seed.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from corun_pd.core import FinishReason, SamplingParams, TokenLogprobs
from corun_pd.engine.fake.model import FakeModel

__all__ = ["RNG_SCHEME", "Completion", "TokenSource", "prompt_logprobs"]

#: Goes into the contract: instances that draw differently must not meet. History:
#: fake-1  the first.
RNG_SCHEME = "fake-1"

#: A bias from here on forces its token: it outweighs any difference of logits.
FORCING_BIAS = 50.0

_MASK = (1 << 64) - 1
_MULTIPLIER = 6364136223846793005  # Knuth's MMIX generator, which here also takes in each token.
_SALT = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens of a leg from where its source stood, and why it ends, if it does."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stop_token_id: int | None


class TokenSource:
    """Draws one leg's tokens in order; `feed` takes in each token that became output."""

    __slots__ = ("_banned", "_eos", "_forced", "_model", "_salt", "_sampling", "_state", "_stops", "count")

    def __init__(self, model: FakeModel, digest: bytes, sampling: SamplingParams, salt: int = 0) -> None:
        """`digest` is that of the prompt in the KV cache. A `salt` other than 0 gives other tokens."""
        self._model = model
        self._sampling = sampling
        self._salt = salt * _SALT
        self._eos = frozenset() if sampling.ignore_eos else model.eos_token_ids
        self._stops = model.eos_token_ids.union(sampling.stop_token_ids)
        self._forced = _forced(sampling)
        self._banned = frozenset(
            [id_ for id_, bias in sampling.logit_bias.items() if bias <= -FORCING_BIAS]
            + [word[0] for word in sampling.bad_words if len(word) == 1]
        )
        self._state = int.from_bytes(hashlib.sha256(digest + _key(sampling)).digest()[:8], "little")
        self.count = 0

    def draw(self) -> int:
        """The next token. min_tokens holds back every token that would end the leg."""
        size = self._model.vocabulary
        bits = ((self._state + self._salt) & _MASK) >> 33
        banned = self._banned
        if self.count < self._sampling.min_tokens:
            banned = banned | self._stops
        if self._forced:
            forced = [id_ for id_ in self._forced if id_ not in banned]
            if forced:
                return forced[bits % len(forced)]
        token = bits % size
        if token in banned:
            token = next((t for t in range(token, token + size) if t % size not in banned), token) % size
        return token

    def logprobs(self, token: int) -> TokenLogprobs:
        """The logprobs of `token` at this position: sums of powers of two, so float32 holds them."""
        size = self._model.vocabulary
        bits = ((self._state + self._salt) & _MASK) >> 33
        greedy = self._sampling.temperature == 0
        rank = 1 if greedy else 1 + bits % min(3, size)
        likeliest = -2.0 - (bits >> 8 & 0xFFFF) / 65536
        top = tuple(
            ((token + place - rank) % size, likeliest - 0.25 * (place - 1))
            for place in range(1, min(self._sampling.logprobs or 0, size) + 1)
        )
        return TokenLogprobs(sampled=likeliest - 0.25 * (rank - 1), rank=rank, top=top)

    def feed(self, token: int) -> None:
        """`token` became output."""
        self._state = (self._state * _MULTIPLIER + 2 * token + 1) & _MASK
        self.count += 1

    def ending(self, token: int) -> tuple[FinishReason | None, int | None]:
        """Whether the leg ends with `token`, fed last, in the order of vLLM: EOS, stop token, length."""
        if token in self._eos:
            return FinishReason.STOP, None
        if token in self._sampling.stop_token_ids:
            return FinishReason.STOP, token
        if self.count >= self._sampling.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def complete(self, limit: int | None = None) -> Completion:
        """Draws all that is left, or `limit` tokens of it. The leg has not ended yet."""
        if self.is_plain:
            return self._complete_plainly(limit)
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        reason: FinishReason | None = None
        stop_token_id: int | None = None
        while reason is None and len(tokens) != limit:
            token = self.draw()
            tokens.append(token)
            if self._sampling.logprobs is not None:
                logprobs.append(self.logprobs(token))
            self.feed(token)
            reason, stop_token_id = self.ending(token)
        return Completion(tuple(tokens), tuple(logprobs), reason, stop_token_id)

    @property
    def is_plain(self) -> bool:
        """Whether no logprobs are asked for and no token is treated apart from the others."""
        apart = self._forced or self._banned or self._sampling.min_tokens
        return not apart and self._sampling.logprobs is None

    def _complete_plainly(self, limit: int | None) -> Completion:
        """`complete` without what most requests do not use: a tenth of the time."""
        state, salt, size = self._state, self._salt, self._model.vocabulary
        ends = self._eos.union(self._sampling.stop_token_ids)
        left = self._sampling.max_tokens - self.count
        tokens: list[int] = []
        for _ in range(left if limit is None else min(left, limit)):
            token = (((state + salt) & _MASK) >> 33) % size
            tokens.append(token)
            state = (state * _MULTIPLIER + 2 * token + 1) & _MASK
            if token in ends:
                break
        self._state = state
        self.count += len(tokens)
        return Completion(tuple(tokens), (), *self.ending(tokens[-1]))


def _forced(sampling: SamplingParams) -> tuple[int, ...]:
    """The tokens of the largest bias, when it is large enough to leave the others no chance, else those that
    are allowed when not all are.
    """
    allowed = sampling.allowed_token_ids
    bias = {id_: b for id_, b in sampling.logit_bias.items() if not allowed or id_ in allowed}
    largest = max(bias.values(), default=0.0)
    if largest < FORCING_BIAS:
        return tuple(sorted(allowed))
    return tuple(sorted(id_ for id_, b in bias.items() if b == largest))


def _key(sampling: SamplingParams) -> bytes:
    greedy = sampling.temperature == 0
    draws = (
        (0, 0.0, 1.0, 0, 0.0)
        if greedy
        else (sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    )
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
    biases = b"".join(struct.pack("<Id", *row) for row in sorted(sampling.logit_bias.items()))
    return struct.pack("<Qddqdddd", *draws, *penalties) + biases + _constraints(sampling)


def _constraints(sampling: SamplingParams) -> bytes:
    """What most requests have none of."""
    rows = (sampling.allowed_token_ids, sampling.bad_words, sampling.structured_output)
    return repr(rows).encode() if any(rows) else b""


def prompt_logprobs(prompt: Sequence[int], wanted: int | None) -> tuple[TokenLogprobs, ...] | None:
    """Logprobs of all prompt tokens but the first, each a function of the two tokens there; None for none."""
    if wanted is None:
        return None
    return tuple(
        TokenLogprobs(-(17 * last + token) % 64 / 64, 1 + token % 3, ((last, -0.5), (token, -1.0))[:wanted])
        for last, token in pairwise(prompt)
    )
