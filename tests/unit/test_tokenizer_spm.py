"""SentencePiece: merging by score, space prefix, byte fallback, markers, what comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import UnsupportedTokenizerFormat
from fucina.gguf import GgufFile
from fucina.tokenizers import UnencodableBytes, load_tokenizer
from fucina.tokenizers.markers import MarkerMatcher
from fucina.tokenizers.merging import merge
from tests.models import need_gemma3

from .tokenizer_vocabularies import metadata, small_spm

PREFIX = load_tokenizer(metadata(small_spm()))
PLAIN = load_tokenizer(metadata(small_spm(add_space_prefix=False)))
BITS = [" ", "  ", "a", "b", "é", "ab", " a", "\n", "\u2581", "<"]
BITS += ["<t>", "<s>", "</s>", "<|eot_id|>", "<0x41>", "<unk>"]
TEXTS = st.lists(st.sampled_from(BITS) | st.characters(exclude_categories=["Cs"]), max_size=20).map("".join)


@pytest.fixture(scope="module")
def gemma3():
    with GgufFile(need_gemma3()) as file:
        yield load_tokenizer(file.metadata)


def example(**changes):
    """The example of the reference."""
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", "b", "ab", "abc", "c", "<0x78>"],
        "tokenizer.ggml.scores": np.array([0, -1, -1, -3, -2.5, -1, -5], np.float32),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return load_tokenizer(metadata(values | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}))


def test_the_higher_score_merges_first_and_bytes_spell_the_rest():
    assert example().encode("abcx") == [4, 6]
    assert example().decode([4, 6]) == "abcx"


def test_what_nothing_spells_is_unknown():
    assert example().encode("ay") == [1, 0]
    assert example().encode("é") == [0, 0]  # one for each byte


def test_defaults_follow_the_format():
    tokenizer = load_tokenizer(metadata(small_spm(bos_token_id=None, eos_token_id=None, unknown_token_id=None)))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos, tokenizer.add_eos) == (1, 2, True, False)
    assert tokenizer.add_space_prefix
    assert tokenizer.eog_ids == {2, PREFIX.n_vocab - 1}  # and <|eot_id|>


def test_the_last_of_equal_tokens_counts():
    tokens = ["<unk>", "a", "b", "ab", "ab", "c", "<0x78>"]
    assert example(tokens=tokens).encode("ab") == [4]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a", [" a"]),
        (" a", ["  a"]),
        ("", []),
        ("<s>a", ["<s>", " a"]),
        ("<s> a", ["<s>", "  a"]),
        ("a<t>b", [" a", "<t>", " b"]),
        ("<s>", ["<s>"]),
    ],
)
def test_space_prefix_at_the_start_and_after_markers(text, pieces):
    assert b"".join(map(PREFIX.piece, PREFIX.encode(text))).decode() == "".join(pieces)


def test_no_space_prefix():
    assert b"".join(map(PLAIN.piece, PLAIN.encode("<s>a<t> b"))) == b"<s>a<t> b"


def test_decode_drops_one_space_at_the_very_start():
    assert PREFIX.decode(PREFIX.encode("a b")) == "a b"
    assert PREFIX.decode(PREFIX.encode("  ")) == "  "  # the user-defined token of two spaces is no prefix
    with_bos = PREFIX.encode_prompt("a")
    assert with_bos[0] == 1
    assert PREFIX.decode(with_bos, special=False) == " a"  # after a BOS the space is kept
    assert PLAIN.decode(PLAIN.encode(" a")) == " a"


def test_user_defined_tokens_match_before_anything_else():
    two = PLAIN.n_vocab - 2
    for special in (True, False):
        ids = PLAIN.encode("a  b", special)
        assert ids == [PLAIN.token_id("a"), two, PLAIN.token_id("b")]
    assert PLAIN.piece(two) == b"  "


def test_markers_in_plain_text_stay_text():
    for marker in ("<s>", "</s>", "<unk>", "<|eot_id|>", "<0x41>"):
        ids = PLAIN.encode(marker, special=False)
        assert len(ids) == len(marker)
        assert PLAIN.decode(ids) == marker
    assert PLAIN.encode("<s>") == [1]
    assert PLAIN.decode(PLAIN.encode("<s>a</s>"), special=False) == "a"


def test_bos_once():
    for text in ("a", "<s>a"):
        assert PREFIX.encode_prompt(text).count(1) == 1
    assert PREFIX.encode_prompt("") == [1]


@given(text=st.text("ab é\u2581", max_size=30))
def test_cutting_into_words_changes_nothing(text):
    whole = merge([c.encode() for c in text.replace(" ", "\u2581")], PLAIN._cost)
    expected = [PLAIN.token_id(piece.decode()) for piece in whole]
    ids: list[int] = []
    PLAIN._encode_raw(text, False, ids)
    assert ids == expected


@given(text=TEXTS, special=st.booleans())
def test_what_comes_back(text, special):
    # U+2581 is the one character that SentencePiece uses itself
    assert PLAIN.decode(PLAIN.encode(text, special)) == text.replace("\u2581", " ")


@given(text=TEXTS, special=st.booleans())
def test_what_comes_back_with_a_space_prefix(text, special):
    markers = ["<t>", "  ", *(["<s>", "</s>", "<unk>", "<|eot_id|>"] if special else [])]
    expected, behind_marker = "", False
    for part in MarkerMatcher({name: i for i, name in enumerate(markers)}).split(text):
        expected += markers[part] if isinstance(part, int) else " " * behind_marker + part
        behind_marker = isinstance(part, int)
    assert PREFIX.decode(PREFIX.encode(text, special)) == expected.replace("\u2581", " ")


@given(raw=st.binary(max_size=60))
def test_any_bytes_come_back(raw):
    if b"\xe2\x96\x81" not in raw:
        assert PLAIN.decode_bytes(PLAIN.encode(raw)) == raw


@given(text=TEXTS)
def test_gemma3_round_trip(gemma3, text):
    assert gemma3.decode(gemma3.encode(text)) == text.replace("\u2581", " ")
    assert gemma3.decode(gemma3.encode(text, special=False), special=False) == text.replace("\u2581", " ")


def test_no_unknown_token_at_all():
    tokenizer = example()
    tokenizer = type(tokenizer)(
        type(tokenizer.vocabulary)(tokenizer.vocabulary.tokens, tokenizer.vocabulary.types),
        np.zeros(7, np.float32),
        add_space_prefix=False,
    )
    with pytest.warns(UnencodableBytes, match="0x79"):
        assert tokenizer.encode("ay") == [1]


def test_scores_must_fit_the_tokens():
    with pytest.raises(UnsupportedTokenizerFormat, match=r"scores has 3 entries; expected 7"):
        example(scores=np.zeros(3, np.float32))
    with pytest.raises(UnsupportedTokenizerFormat, match="NaN"):
        example(scores=np.full(7, np.nan, np.float32))


def test_a_byte_token_must_be_spelt_like_one():
    with pytest.raises(UnsupportedTokenizerFormat, match="<0x41>"):
        example(token_type=np.array([2, 1, 1, 1, 1, 6, 6], np.int32))
