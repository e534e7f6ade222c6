"""Text from tokens: the same however the tokens come, and nothing shown that is later taken back."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from corun_pd.errors import SetupError
from corun_pd.router.detokenize import Detokenizer, TextWriter, TokenBytes

TEXTS = st.text(
    st.sampled_from("ab .") | st.sampled_from("é漢字👨‍👩‍👧😀�\n") | st.characters(exclude_categories=["Cs"]),
    max_size=30,
)


@cache
def byte_level() -> tuple[Tokenizer, TokenBytes]:
    """One token per byte, a few pairs, one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    merges = [("a", "b"), ("Ġ", "a"), ("ð", "Ł"), ("ĺ", "Ģ"), ("æ", "¼")]
    vocabulary.update({left + right: len(vocabulary) + i for i, (left, right) in enumerate(merges)})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|eos|>", special=True)])
    return tokenizer, TokenBytes(tokenizer)


@cache
def byte_fallback() -> tuple[Tokenizer, TokenBytes]:
    """Words with a leading mark for the space, and a token per byte for the rest, as in SentencePiece."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", ".", "▁a", "é"]
    vocabulary = {word: i for i, word in enumerate(words)}
    merges = [("▁", "a")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer, TokenBytes(tokenizer)


TOKENIZERS = {"byte level": byte_level, "byte fallback": byte_fallback}


def writer(
    vocabulary: TokenBytes, *stops: str, prompt: Sequence[int] = (), include: bool = False, least: int = 0
) -> TextWriter:
    return TextWriter(Detokenizer(vocabulary, prompt), stops, include, least)


def stream(vocabulary: TokenBytes, prompt: Sequence[int], pieces: list[list[int]]) -> list[str]:
    out = writer(vocabulary, prompt=tuple(prompt))
    return [out.push(piece, last=i == len(pieces) - 1).text for i, piece in enumerate(pieces)]


@st.composite
def pieces_of(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_joined_deltas_equal_the_unary_text(name: str, data: st.DataObject) -> None:
    """For any ids, text or not, cut anywhere, after any prompt."""
    tokenizer, vocabulary = TOKENIZERS[name]()
    ids = st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), max_size=60)
    prompt, answer = data.draw(ids)[-4:], data.draw(ids)
    whole = writer(vocabulary, prompt=prompt).push(answer, last=True).text
    assert "".join(stream(vocabulary, prompt, data.draw(pieces_of(answer)))) == whole
    assert "".join(stream(vocabulary, prompt, [*([i] for i in answer), []])) == whole


@given(data=st.data())
def test_text_is_what_the_tokenizer_itself_decodes(data: st.DataObject) -> None:
    """Broken bytes and skipped special tokens included."""
    tokenizer, vocabulary = byte_level()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60))
    text = writer(vocabulary).push(ids, last=True).text
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_text_comes_out_as_it_went_in_without_replacement_characters(name: str, data: st.DataObject) -> None:
    """A prompt and its continuation, cut between any two tokens, even inside a character."""
    tokenizer, vocabulary = TOKENIZERS[name]()
    text = "a" + data.draw(TEXTS).replace("�", "")
    if name == "byte fallback":
        text = text.replace("▁", "")
    ids = tokenizer.encode(text).ids
    cut = data.draw(st.integers(0, len(ids)))
    pieces = stream(vocabulary, ids[:cut][-4:], [*([i] for i in ids[cut:]), []])
    assert "�" not in "".join(pieces)
    assert text.endswith("".join(pieces).lstrip(" "))
    for piece in pieces:
        piece.encode()  # every piece is whole characters
    if cut == 0:
        assert "".join(pieces).lstrip(" ") == text.lstrip(" ")


def test_answer_cut_inside_a_character_ends_with_one_replacement() -> None:
    """Only there, and only at the end."""
    tokenizer, vocabulary = byte_level()
    ids = tokenizer.encode("a漢").ids
    assert stream(vocabulary, [], [*([i] for i in ids[:-1]), []])[-1] == "�"
    assert "".join(stream(vocabulary, [], [[i] for i in ids[:-1]])) == "a�"


def test_special_and_unknown_ids_have_no_text() -> None:
    """Special tokens, and the padding of the embedding beyond the tokenizer."""
    tokenizer, vocabulary = byte_level()
    eos = tokenizer.token_to_id("<|eos|>")
    ids = tokenizer.encode("ab").ids
    assert "".join(stream(vocabulary, [], [[*ids, eos, eos + 1, eos + 900, *ids]])) == "abab"


@given(
    text=TEXTS,
    stops=st.lists(st.text("ab .é", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_stop_string_ends_text_at_its_first_completion(text: str, stops: list[str], include: bool) -> None:
    """Whatever tokens it straddles; the token that completes it is the last one used."""
    tokenizer, vocabulary = byte_level()
    ids = tokenizer.encode(text).ids
    out = writer(vocabulary, *stops, include=include)
    shown, used, found = "", 0, None
    for count, token_id in enumerate(ids, 1):
        written = out.push([token_id], last=count == len(ids))
        shown, used, found = shown + written.text, count, written.stop
        if found is not None:
            break
    ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
    if not ends:
        assert found is None
        assert shown == text
        return
    assert found in ends
    start = text.find(found)
    assert shown == text[: start + (len(found) if include else 0)]
    before = Detokenizer(vocabulary, ()).push(ids[: used - 1])
    assert not any(stop in before for stop in stops)
    assert found in Detokenizer(vocabulary, ()).push(ids[:used])


@given(text=TEXTS, data=st.data())
def test_what_was_shown_is_never_taken_back(text: str, data: st.DataObject) -> None:
    """With stop strings too, joined deltas equal the text of one push."""
    tokenizer, vocabulary = byte_level()
    stops = data.draw(st.lists(st.text("ab .é", min_size=1, max_size=4), min_size=1, max_size=3))
    ids = tokenizer.encode(text).ids
    at_once = writer(vocabulary, *stops).push(ids, last=True)
    out = writer(vocabulary, *stops)
    shown = ""
    for piece in data.draw(pieces_of(ids)):
        written = out.push(piece)
        shown += written.text
        if written.stop is not None:
            break
    else:
        shown += out.push([], last=True).text
    assert shown == at_once.text


def test_stop_string_at_the_tail_of_the_prompt_does_not_stop() -> None:
    """Nor does one that begins in the prompt."""
    tokenizer, vocabulary = byte_level()
    prompt = tuple(tokenizer.encode("say .").ids)
    written = writer(vocabulary, ".", "..", prompt=prompt).push(tokenizer.encode("b a").ids, last=True)
    assert (written.text, written.stop) == ("b a", None)


def test_an_echoed_prompt_comes_first_and_does_not_stop() -> None:
    """Once, with the first token; stop strings are looked for in the answer alone."""
    tokenizer, vocabulary = byte_level()
    detokenizer = Detokenizer(vocabulary, tokenizer.encode("say b.").ids)
    echoing = TextWriter(detokenizer, ("b.",), False, 0, "say b.")
    first, second, last = tokenizer.encode("abb.").ids
    pieces = [echoing.push([first]), echoing.push([second]), echoing.push([last])]
    assert [(piece.text, piece.stop) for piece in pieces] == [("say b.a", None), ("b", None), ("", "b.")]


def test_stop_string_before_min_tokens_is_not_looked_for() -> None:
    """As in vLLM: only text that tokens beyond min_tokens complete can stop."""
    tokenizer, vocabulary = byte_level()
    ids = tokenizer.encode("b.b.").ids
    written = writer(vocabulary, ".", least=2).push(ids, last=True)
    assert (written.text, written.used, written.stop) == ("b.b", 4, ".")


def test_start_of_a_stop_string_is_shown_at_the_end() -> None:
    """It is held back while it may become one, and given when nothing more comes."""
    tokenizer, vocabulary = byte_level()
    out = writer(vocabulary, "b..")
    texts = [out.push([i]).text for i in tokenizer.encode("a b.").ids]
    assert "".join(texts) == "a "
    assert out.push([], last=True).text == "b."


@pytest.mark.parametrize(("include", "text"), [(False, "b"), (True, "b.")])
def test_stop_token_has_text_only_when_wanted(include: bool, text: str) -> None:
    """It stays in the token ids either way."""
    tokenizer, vocabulary = byte_level()
    ids = tokenizer.encode("b.").ids
    written = writer(vocabulary, include=include).push(ids, last=True, by_token=True)
    assert (written.text, written.used) == (text, 2)


def test_tokenizer_whose_tokens_change_each_others_text_is_refused() -> None:
    """Its streamed text could differ from its whole text."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(SetupError, match="decoder WordPiece is none of"):
        TokenBytes(tokenizer)
