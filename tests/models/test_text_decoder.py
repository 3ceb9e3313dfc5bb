"""Text comes out token by token, whole characters only, and joins to what `decode` says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ssd_runtime.errors import ModelError, RequestError
from ssd_runtime.models.text_decoder import text_decoder
from ssd_runtime.models.tokenizer import HFTokenizer
from ssd_runtime.types import Message

SAMPLES = [
    "Hello  world",
    "你好，世界",
    "👩\u200d👩\u200d👧 family",
    " lead",
    "tail ",
    "a\n\n b\t",
    "ne\u0301e \ufffd",
    "𝒳 и ж",
    "",
]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
STRICT = "{{ raise_exception('roles must alternate') }}"


def byte_level() -> Tokenizer:
    """A byte-level BPE tokenizer, as of Llama 3 and Qwen, in which a token is a byte."""
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece() -> Tokenizer:
    """A tokenizer as of Llama 2: ▁ for spaces, bytes for what the vocabulary lacks."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghilmnorstuwHW",
        "▁Hello",
        "▁w",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Path, template: str | None = TEMPLATE) -> HFTokenizer:
    """The tokenizer with a special end token, through files, as the runtime loads it."""
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=template)
    wrapped.save_pretrained(folder)
    return HFTokenizer(folder, ())


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    """Either kind of tokenizer."""
    return saved(request.param(), tmp_path_factory.mktemp("tokenizer"))


def pieces_of(tokenizer: HFTokenizer, ids: Sequence[int]) -> list[str]:
    """What is given for `ids`, one at a time, and at the end."""
    decoder = text_decoder(tokenizer)
    pieces = [decoder.push([token]) for token in ids]
    return [*pieces, decoder.flush()]


@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_join_to_the_text(tokenizer: HFTokenizer, text: str) -> None:
    """For real text, in any script, nothing is lost and no piece holds half a character."""
    ids = tokenizer.encode(text)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_pieces_join_for_any_tokens(tokenizer: HFTokenizer, data: st.DataObject) -> None:
    """Also for tokens that are no valid text, with special tokens among them."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_broken_characters_are_replaced_as_the_tokenizer_does(tmp_path: Path) -> None:
    """Every sequence of up to four bytes of each kind that UTF-8 tells apart."""
    tokenizer = saved(byte_level(), tmp_path)
    kinds = (b"a", b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xc1", b"\xc2", b"\xe0", b"\xe1", b"\xed")
    id_of = {spelling: token for token, spelling in enumerate(tokenizer.spellings())}
    ids = [id_of[kind] for kind in (*kinds, b"\xf0", b"\xf1", b"\xf4", b"\xff")]
    for length in range(1, 5):
        for some in product(ids, repeat=length):
            assert "".join(pieces_of(tokenizer, some)) == tokenizer.decode(some)


@pytest.mark.parametrize("text", SAMPLES)
def test_spellings_join_to_the_bytes_of_the_text(tokenizer: HFTokenizer, text: str) -> None:
    """A token that is half a character is its bytes; a special one is its name."""
    spellings = tokenizer.spellings()
    joined = b"".join(spellings[token] for token in tokenizer.encode(text))
    assert joined.decode() in (text, f" {text}")  # SentencePiece puts a space in front
    assert spellings[tokenizer.eos_token_ids[0]] == b"<end>"


def test_text_is_not_held_back_for_long(tokenizer: HFTokenizer) -> None:
    """Plain letters come out with their own token."""
    pieces = pieces_of(tokenizer, tokenizer.encode("Hello world"))
    assert pieces[-1] == ""
    assert "".join(pieces[:-2]) == "Hello worl"


def test_special_tokens_leave_no_trace(tokenizer: HFTokenizer) -> None:
    """An end token in the middle neither prints nor eats the space after it."""
    (end,) = tokenizer.eos_token_ids
    ids = tokenizer.encode("Hello")
    more = tokenizer.encode(" world")
    assert "<end>" not in "".join(pieces_of(tokenizer, [*ids, end, *more]))
    assert "".join(pieces_of(tokenizer, [*ids, end, *more])) == tokenizer.decode([*ids, end, *more])


def test_a_chat_is_rendered_by_the_models_own_template(tokenizer: HFTokenizer) -> None:
    """Template, special tokens and the place for the answer come out as ids."""
    ids = tokenizer.render_chat([Message("user", "Hello"), Message("assistant", "a"), Message("user", "b")])
    assert tokenizer.has_chat_template
    assert tokenizer.decode(ids) == "<user>Hello<assistant>a<user>b<assistant>"


def test_all_ends_are_known(tmp_path: Path) -> None:
    """The configuration's, the tokenizer's and the generation configuration's end tokens all count."""
    saved(byte_level(), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert HFTokenizer(tmp_path, (3,)).eos_token_ids == (3, 7, 9, 256)


def test_bad_text_and_bad_messages_are_the_requests_fault(tmp_path: Path) -> None:
    """Half a surrogate pair, or roles that the template refuses, are errors of the request."""
    tokenizer = saved(byte_level(), tmp_path, STRICT)
    with pytest.raises(RequestError, match="not valid Unicode"):
        tokenizer.encode("\ud800")
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.render_chat([Message("user", "a")])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """The error names the folder."""
    with pytest.raises(ModelError, match=f"{tmp_path.name}: its tokenizer cannot be read"):
        HFTokenizer(tmp_path, ())
