"""Tokens to text as they come: whole characters only, and nothing that may still become a stop string.

Whatever the pieces, the text is the same: that of all tokens decoded at once after the prompt's last few.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from tokenizers import Tokenizer

__all__ = ["Detokenizer", "StopWatcher", "TextWriter", "Vocabulary", "Written"]

_REPLACEMENT: Final = "\ufffd"

#: The window of tokens that is decoded again for each new one is cut back at this length, to the second.
#: A character is at most four bytes and a token at least one, so the shorter one holds every open character.
_WINDOW_TOKENS: Final = 24
_KEPT_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as the detokenizer sees it.

    `silent` ids give no text: special ones. Ids from `size` on are padding of the embedding and give none
    either. With `byte_runs` the tokenizer spells rare characters in byte tokens and replaces each byte of a
    run that is no text (ByteFallback); otherwise it decodes one string of bytes, where only the last
    character can be open.
    """

    tokenizer: Tokenizer
    silent: frozenset[int]
    size: int
    byte_runs: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Reads what is needed from the tokenizer."""
        added = tokenizer.get_added_tokens_decoder()
        silent = frozenset(token_id for token_id, token in added.items() if token.special)
        size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        decoder = b"" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
        return cls(tokenizer, silent, size, b'"ByteFallback"' in decoder)

    def voiced(self, token_ids: Iterable[int]) -> list[int]:
        """The ids that give text."""
        silent, size = self.silent, self.size
        return [token_id for token_id in token_ids if token_id < size and token_id not in silent]

    def decode(self, token_ids: list[int]) -> str:
        """The text of voiced ids; bytes that are no text become U+FFFD."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def open_length(self, text: str) -> int:
        """How many characters at the end of `text` may change when more tokens come."""
        longest = 3 if self.byte_runs else 1
        return next((n for n in range(longest) if not text.endswith(_REPLACEMENT, 0, len(text) - n)), longest)


class Detokenizer:
    """Incremental: `push` gives the text that is certain, `flush` what was held back."""

    def __init__(self, vocabulary: Vocabulary, priming: Sequence[int]) -> None:
        """`priming` is the prompt's end, so that a leading space or an open character comes out right."""
        self._vocabulary = vocabulary
        self._window = vocabulary.voiced(priming)
        text = vocabulary.decode(self._window)
        self._given = len(text) - vocabulary.open_length(text)

    def push(self, token_ids: Iterable[int]) -> str:
        """More tokens; the text that is certain now."""
        voiced = self._vocabulary.voiced(token_ids)
        if not voiced:
            return ""
        if self._vocabulary.byte_runs:  # a run's text depends on where it is looked at: always each token
            return "".join(self._push([token_id]) for token_id in voiced)
        return self._push(voiced)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """All tokens of an answer at once, and the end of it: what `push` and `flush` give together."""
        voiced = self._vocabulary.voiced(token_ids)
        text = self._vocabulary.decode(self._window + voiced)
        if self._vocabulary.byte_runs and _REPLACEMENT in text:
            return self.push(voiced) + self.flush()
        return text[self._given :]

    def flush(self) -> str:
        """The end: what is held back, with U+FFFD for a character that the model did not finish."""
        text = self._vocabulary.decode(self._window)
        held, self._given = text[self._given :], len(text)
        return held

    def _push(self, token_ids: list[int]) -> str:
        vocabulary = self._vocabulary
        self._window += token_ids
        text = vocabulary.decode(self._window)
        certain = len(text) - vocabulary.open_length(text)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._window) > _WINDOW_TOKENS:
            self._window = self._window[-_KEPT_TOKENS:]
            kept = vocabulary.decode(self._window)
            self._given = max(0, len(kept) - (len(text) - self._given))
        return piece


class StopWatcher:
    """Finds stop strings in text that comes in pieces. One per sample."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """`include` keeps the stop string in the text."""
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, piece: str, watching: bool) -> tuple[str, str | None]:
        """More text; (text that is safe to give, the stop string that it ended with or None).

        The stop string that is complete first wins; of several, the first in the request's order.
        """
        old = len(self._held)
        text = self._held + piece
        if watching and piece:
            best: tuple[int, str] | None = None
            for stop in self._stops:
                at = text.find(stop, max(0, old - len(stop) + 1))
                if at >= 0 and (best is None or at + len(stop) < best[0]):
                    best = (at + len(stop), stop)
            if best is not None:
                end, stop = best
                self._held = ""
                return text[: end if self._include else end - len(stop)], stop
        held = self._open_length(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """The end: the start of a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """The length of the longest end of `text` that a stop string starts with."""
        longest = 0
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while at >= 0 and len(text) - at > longest:
                if stop.startswith(text[at:]):
                    longest = len(text) - at
                    break
                at = text.find(stop[0], at + 1)
        return longest


@dataclass(frozen=True, slots=True)
class Written:
    """What tokens came to: text, how many of the tokens belong to the answer, and the stop string."""

    text: str
    used: int
    stop: str | None = None


class TextWriter:
    """A sample's text. `push` each time tokens come; after a stop string nothing is pushed any more."""

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str], include_stop: bool, min_tokens: int, whole: bool
    ) -> None:
        """Before `min_tokens` tokens no stop string is looked for. `whole`: no text before the last push."""
        self._detokenizer = detokenizer
        self._watcher = StopWatcher(stops, include_stop) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._whole = whole
        self._count = 0
        self._kept: list[int] = []

    def push(self, token_ids: Sequence[int], last: bool = False, by_token: bool = False) -> Written:
        """More tokens. `last` ends the answer; `by_token` says that its last token is what ended it.

        A token that ends the answer has no text of its own, as a stop string has none, unless the request
        wants to see what stopped it.
        """
        shown = token_ids[:-1] if by_token and not self._include_stop else token_ids
        if self._watcher is not None:
            return self._watch(self._watcher, token_ids, shown, last)
        if self._whole:
            self._kept += shown
            return Written(self._detokenizer.push_all(self._kept) if last else "", len(token_ids))
        text = self._detokenizer.push(shown)
        return Written(text + self._detokenizer.flush() if last else text, len(token_ids))

    def _watch(
        self, watcher: StopWatcher, token_ids: Sequence[int], shown: Sequence[int], last: bool
    ) -> Written:
        pieces = []
        for index, token_id in enumerate(shown, 1):
            self._count += 1
            piece, stop = watcher.push(self._detokenizer.push((token_id,)), self._count > self._min_tokens)
            pieces.append(piece)
            if stop is not None:
                return Written("".join(pieces), index, stop)
        if last:
            pieces += [watcher.push(self._detokenizer.flush(), watching=False)[0], watcher.flush()]
        return Written("".join(pieces), len(token_ids))
