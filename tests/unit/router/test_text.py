"""Prompts to tokens: one template, one tokenization, one BOS."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from corun_pd.errors import InvalidRequest, SetupError
from corun_pd.router.text import GenerationDefaults, TextModel

BOS = 256
TURN = [{"role": "user", "content": "hi"}]


def save(folder: Path, template: str | None = "<bos>{{ messages[0]['content'] }}") -> Path:
    """A tokenizer that puts a BOS before a plain prompt, whose template writes one itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.enable_truncation(4)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


async def test_chat_gets_no_second_bos(tmp_path: Path) -> None:
    """The template has written it; a plain prompt gets the one of the tokenizer."""
    text = TextModel.load(save(tmp_path))
    assert (await text.encode("hi"))[0] == BOS
    assert await text.encode_chat(TURN) == await text.encode("hi")
    assert (await text.encode_chat(TURN)).count(BOS) == 1


async def test_truncation_of_the_tokenizer_file_is_off(tmp_path: Path) -> None:
    """A prompt is refused when it is too long, never cut."""
    assert len(await TextModel.load(save(tmp_path)).encode("a" * 100)) == 101


async def test_long_text_gives_the_same_tokens_in_a_thread(tmp_path: Path) -> None:
    """One long prompt does not hold up others, and is no other prompt for it."""
    text = TextModel.load(save(tmp_path))
    assert await text.encode("ab" * 20_000) == [BOS, *(await text.encode("ab"))[1:] * 20_000]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "chat: the model has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "chat.messages: .*roles must alternate"),
        ("{{ messages[3].content }}", "chat.messages: the chat template refuses them"),
    ],
)
async def test_chat_that_cannot_be_rendered_is_refused(
    tmp_path: Path, template: str | None, problem: str
) -> None:
    """The client hears what its messages lack."""
    with pytest.raises(InvalidRequest, match=problem):
        await TextModel.load(save(tmp_path, template)).encode_chat(TURN)


def test_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """One line that says where a tokenizer was looked for."""
    with pytest.raises(SetupError, match=f"{tmp_path} has no tokenizer"):
        TextModel.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    with pytest.raises(SetupError, match=f"the tokenizer of {tmp_path} cannot be loaded"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]},
            GenerationDefaults(temperature=0.6, top_k=20),
        ),
        ({"temperature": None, "do_sample": True}, GenerationDefaults()),
    ],
)
def test_defaults_are_those_of_the_generation_config(
    tmp_path: Path, content: dict[str, Any], expected: GenerationDefaults
) -> None:
    """What it does not say is left to the usual defaults."""
    assert GenerationDefaults.load(tmp_path) == GenerationDefaults()
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert GenerationDefaults.load(tmp_path) == expected


def test_broken_generation_config_is_named(tmp_path: Path) -> None:
    """Defaults that cannot be read would change answers silently."""
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(SetupError, match=r"generation_config\.json"):
        GenerationDefaults.load(tmp_path)
