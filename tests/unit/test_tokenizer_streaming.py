"""Streaming: whole characters only, nothing twice, and in the end the very text that decode gives."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import TokenOutOfRange
from fucina.gguf import GgufFile
from fucina.tokenizers import load_tokenizer
from tests.models import need_smollm2

from .tokenizer_vocabularies import metadata, pair_vocabulary, small_bpe, small_spm

TOKENIZERS = {
    "bytes": load_tokenizer(metadata(small_bpe())),
    "pairs": load_tokenizer(metadata(pair_vocabulary("gpt-2"))),
    "spm": load_tokenizer(metadata(small_spm())),
}


@pytest.fixture(scope="module")
def smollm2():
    with GgufFile(need_smollm2()) as file:
        yield load_tokenizer(file.metadata)


def streamed(tokenizer, ids, special=False):
    stream = tokenizer.stream(special)
    pieces = [stream.push(i) for i in ids]
    return [*pieces, stream.flush()]


@given(chunks=st.lists(st.binary(max_size=5), max_size=12))
def test_pythons_incremental_decoder_equals_decoding_at_once(chunks):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = "".join(map(decoder.decode, chunks)) + decoder.decode(b"", True)
    assert text == b"".join(chunks).decode("utf-8", "replace")


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), special=st.booleans())
def test_streaming_any_ids_equals_decoding_them(name, data, special):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30))
    assert "".join(streamed(tokenizer, ids, special)) == tokenizer.decode(ids, special)


@given(text=st.text(max_size=30))
def test_streaming_the_bytes_of_a_text_never_shows_half_a_character(text):
    tokenizer = TOKENIZERS["bytes"]
    stream = tokenizer.stream()
    shown = ""
    for byte in text.encode():
        shown += stream.push(byte + 1)
        assert text.startswith(shown)
    assert (shown, stream.flush()) == (text, "")


@given(st.lists(st.integers(0, 49151), max_size=40), st.booleans())
def test_streaming_smollm2(smollm2, ids, special):
    assert "".join(streamed(smollm2, ids, special)) == smollm2.decode(ids, special)


def test_characters_of_several_tokens(smollm2):
    ids = [34978, 120, 7906, 240, 178, 239, 230]
    assert streamed(smollm2, ids) == ["", "歪", "", "世", "", "", "界", ""]


def test_a_cut_character_ends_as_one_replacement_character(smollm2):
    assert streamed(smollm2, [10813]) == ["", "\ufffd"]
    assert smollm2.decode([10813]) == "\ufffd"


def test_the_first_space_stays(smollm2):
    assert streamed(smollm2, [33662]) == [" hello", ""]


def test_an_incomplete_character_before_text(smollm2):
    word = smollm2.encode("word")
    assert "".join(streamed(smollm2, [*word, 7906, 240])) == smollm2.decode([*word, 7906, 240])
    assert "".join(streamed(smollm2, [10813, *word])) == "\ufffdword" == smollm2.decode([10813, *word])


def test_control_tokens_show_only_if_asked():
    tokenizer = TOKENIZERS["bytes"]
    assert streamed(tokenizer, [0, 257]) == ["", "hi", ""]
    assert streamed(tokenizer, [0, 257], special=True) == ["<|im_end|>", "hi", ""]


def test_a_control_token_inside_a_character():
    tokenizer = TOKENIZERS["bytes"]
    ids = [0xC3 + 1, 0, 0xA9 + 1]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids, special=False) == "é"


def test_flush_begins_a_new_text():
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("ab")
    stream = tokenizer.stream()
    for _ in range(2):
        assert "".join(map(stream.push, ids)) + stream.flush() == "ab"


def test_a_bad_id_leaves_the_stream_as_it_was():
    tokenizer = TOKENIZERS["spm"]
    stream = tokenizer.stream()
    with pytest.raises(TokenOutOfRange):
        stream.push(tokenizer.n_vocab)
    assert "".join(map(stream.push, tokenizer.encode("a"))) == "a"
