"""Tokens to text as they come: whole characters only, and nothing that may still become a stop string.

A token is bytes. An answer's text is that of its tokens' bytes in a row, read by an incremental UTF-8
decoder, so it is the same however the tokens come, and a character that several tokens spell comes when
it is complete.
"""

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from tokenizers import Tokenizer

from corun_pd.errors import SetupError

__all__ = ["Detokenizer", "StopWatcher", "TextWriter", "TokenBytes", "Written"]

#: Decoders under which a text is its tokens' texts in a row.
_CONTEXT_FREE: Final = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})

#: How a byte token is written.
_BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TokenBytes(dict[int, bytes]):
    """Token id to bytes, found when first needed. Special tokens and ids beyond the tokenizer have none.

    Raises SetupError for a tokenizer whose text is not its tokens' texts in a row.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        state = b"{}" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
        spec = json.loads(state)
        kinds = {part.get("type") for part in spec.get("decoders", [spec])}
        if not kinds <= _CONTEXT_FREE:
            names = ", ".join(sorted(map(str, kinds - _CONTEXT_FREE)))
            raise SetupError(f"the tokenizer's decoder {names} is none of {', '.join(sorted(_CONTEXT_FREE))}")
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._silent = frozenset(token_id for token_id, token in added.items() if token.special)
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._anchor = self._find_anchor()

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._find(token_id)
        return found

    def join(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of tokens in a row."""
        return b"".join(map(self.__getitem__, token_ids))

    def _find(self, token_id: int) -> bytes:
        token = None if token_id in self._silent else self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            alphabet = _byte_level_alphabet()
            # An added token is text and not letters of the alphabet, as in the tokenizer's own decoder.
            mapped = [alphabet.get(letter) for letter in token]
            return token.encode() if None in mapped else bytes(byte for byte in mapped if byte is not None)
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        text = self._decode([self._anchor, token_id])
        return text[len(self._decode([self._anchor])) :].encode()

    def _find_anchor(self) -> int:
        """Some token to decode others after: only the first of a text loses its leading space."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        for token_id in range(size):
            token = self._tokenizer.id_to_token(token_id)
            if token and token_id not in self._silent and not _BYTE_TOKEN.fullmatch(token):
                return token_id
        raise SetupError("the tokenizer has no token with text")

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """Letter to byte: GPT-2's alphabet. Printable Latin-1 stands for itself, the rest is moved up by 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Detokenizer:
    """Incremental: `push` gives the characters that are complete, `flush` the one that is not."""

    def __init__(self, token_bytes: TokenBytes, priming: Sequence[int]) -> None:
        """`priming` is the prompt's end, so that a character that it leaves open comes out right."""
        self._token_bytes = token_bytes
        self._utf8 = _Utf8("replace")
        self._utf8.decode(token_bytes.join(priming))

    def push(self, token_ids: Iterable[int]) -> str:
        """More tokens; their characters. Bytes that are no text become U+FFFD."""
        return self._utf8.decode(self._token_bytes.join(token_ids))

    def flush(self) -> str:
        """The end: U+FFFD for a character that the model did not finish."""
        return self._utf8.decode(b"", final=True)


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
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        include_stop: bool,
        min_tokens: int,
        echo: str = "",
    ) -> None:
        """Before `min_tokens` tokens no stop string is looked for, and never in `echo`, which comes first."""
        self._echo = echo
        self._detokenizer = detokenizer
        self._watcher = StopWatcher(stops, include_stop) if stops else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._count = 0

    def push(self, token_ids: Sequence[int], last: bool = False, by_token: bool = False) -> Written:
        """More tokens. `last` ends the answer; `by_token` says that its last token is what ended it.

        A token that ends the answer has no text of its own, as a stop string has none, unless the request
        wants to see what stopped it.
        """
        echo, self._echo = self._echo, ""
        shown = token_ids[:-1] if by_token and not self._include_stop else token_ids
        if self._watcher is not None:
            written = self._watch(self._watcher, token_ids, shown, last)
            return replace(written, text=echo + written.text) if echo else written
        text = echo + self._detokenizer.push(shown)
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
