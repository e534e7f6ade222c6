"""The one place of text: chat template, tokens, and what the model's folder says of defaults.

Instances take tokens and give tokens. A chat is rendered once and a prompt tokenized once, here, so that
prefill and decode cannot disagree about either.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from corun_pd.errors import InvalidRequest, SetupError
from corun_pd.router.detokenize import Detokenizer, TextWriter, TokenBytes

__all__ = ["GenerationDefaults", "TextModel"]

#: Longer texts are tokenized in a thread, so that one long prompt does not hold up every other request.
_INLINE_CHARACTERS: Final = 16_384

#: How many of a prompt's last tokens the detokenizer starts from. A character is at most four bytes.
_PRIMING_TOKENS: Final = 4

#: What transformers 5 and 4 call the class that takes tokenizer.json as it is.
_GENERIC_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's generation_config.json says of fields that a request leaves unset; None: nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def load(cls, model: Path) -> Self:
        """Reads the model's folder. Raises SetupError that names the file when it is not JSON."""
        path = model / "generation_config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise SetupError(f"{path} cannot be read: {error}") from error
        return cls(**{name: data.get(name) for name in cls.__dataclass_fields__})


class TextModel:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, defaults: GenerationDefaults | None = None) -> None:
        """`tokenizer` is a fast tokenizer of transformers."""
        self.defaults = defaults or GenerationDefaults()
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._token_bytes = TokenBytes(self._backend)

    @classmethod
    def load(cls, model: Path) -> Self:
        """Reads the model's folder. Raises SetupError that names it when it has no usable fast tokenizer."""
        if not (model / "tokenizer_config.json").is_file() and not (model / "tokenizer.json").is_file():
            raise SetupError(f"{model} has no tokenizer: neither tokenizer.json nor tokenizer_config.json")
        try:
            tokenizer = _tokenizer_class(model).from_pretrained(model, use_fast=True, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            line = str(error).strip().partition("\n")[0]
            raise SetupError(f"the tokenizer of {model} cannot be loaded: {line}") from error
        if not tokenizer.is_fast:
            raise SetupError(f"the tokenizer of {model} is a slow one; a tokenizer.json is needed")
        return cls(tokenizer, GenerationDefaults.load(model))

    async def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the model wants around it."""
        return await self._encode(text, True)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, rendered once and followed by the prompt for the assistant's turn.

        The template writes its own special tokens, so none are added. Raises InvalidRequest when the
        model has no template or the template refuses the messages.
        """
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("chat", "the model has no chat template")
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise InvalidRequest("chat.messages", f"the chat template refuses them: {error}") from error
        return await self._encode(text, False)

    async def _encode(self, text: str, special_tokens: bool) -> list[int]:
        def encode() -> list[int]:
            # Unlike `encode`, this does not find out where in the text each token is.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=special_tokens)
            ids: list[int] = encoding.ids
            return ids

        return encode() if len(text) <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """The token sequences of a word that is not to be drawn: as it is, and after a space.

        The second one counts where it has as many tokens and another first one, which is vLLM's rule.
        """
        bare, spaced = (
            tuple(self._backend.encode(text, add_special_tokens=False).ids)
            for text in (word.lstrip(), " " + word.lstrip())
        )
        if not bare:
            return []
        return [bare, spaced] if len(spaced) == len(bare) and spaced[0] != bare[0] else [bare]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens in a row: U+FFFD for what is no UTF-8, nothing for a character only begun."""
        return Detokenizer(self._token_bytes, ()).push(token_ids)

    def writer(
        self,
        prompt: Sequence[int],
        stops: Sequence[str],
        include_stop: bool,
        min_tokens: int,
        echo: str = "",
    ) -> TextWriter:
        """Writes `echo` and the text that follows `prompt`; see TextWriter."""
        detokenizer = Detokenizer(self._token_bytes, prompt[-_PRIMING_TOKENS:])
        return TextWriter(detokenizer, stops, include_stop, min_tokens, echo)


def _tokenizer_class(model: Path) -> Any:
    """The class that reads a folder: the generic one if that is what it names, else AutoTokenizer."""
    path = model / "tokenizer_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    named = found.get("tokenizer_class") if isinstance(found, dict) else None
    if named in _GENERIC_CLASSES and (model / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast
    # Imported here, since it imports torch: two seconds and 300 MB that the generic class does without.
    from transformers import AutoTokenizer

    return AutoTokenizer
