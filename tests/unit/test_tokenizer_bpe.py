"""Byte-level BPE: merging, markers, words, bytes that no token spells."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import InvalidText, TokenOutOfRange
from fucina.gguf import GgufFile
from fucina.tokenizers import PRE_TOKENIZERS, UnencodableBytes, load_tokenizer
from fucina.tokenizers.bpe import CACHED_WORDS
from fucina.tokenizers.markers import MarkerMatcher
from fucina.tokenizers.merging import merge
from tests.models import need_smollm2

from .tokenizer_vocabularies import metadata, pair_vocabulary, small_bpe, stand_ins

BITS = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "don't", " the", "12", "!!", "é", "世", "🙂", "\u0301"]
BITS += ["<|im_end|>", "<tool>", "<|"]
TEXTS = st.lists(st.sampled_from(BITS) | st.characters(exclude_categories=["Cs"]), max_size=25).map("".join)
PAIRS = {pre: load_tokenizer(metadata(pair_vocabulary(pre))) for pre in ("smollm", "llama-bpe")}


@pytest.fixture(scope="module")
def smollm2():
    with GgufFile(need_smollm2()) as file:
        yield load_tokenizer(file.metadata)


# --- merging ----------------------------------------------------------------------------------------------------


def merge_by_scanning(symbols, cost):
    """The definition: find the cheapest pair, the leftmost on ties; join it; begin again."""
    pieces = list(symbols)
    while True:
        prices = [(cost(a, b), i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if cost(a, b) is not None]
        if not prices:
            return pieces
        _, i = min(prices)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@given(
    word=st.text("abc", max_size=24),
    costs=st.dictionaries(st.text("abc", min_size=2, max_size=5), st.integers(0, 6), max_size=40),
)
def test_merge_equals_scanning_when_the_joined_text_decides(word, costs):
    def cost(a, b):
        return costs.get(a + b)

    assert merge(word, cost) == merge_by_scanning(word, cost)


SYMBOLS = st.text("ab", min_size=1, max_size=3)


@given(word=st.text("ab", max_size=20), order=st.lists(st.tuples(SYMBOLS, SYMBOLS), max_size=30))
def test_merge_equals_scanning_when_the_pair_decides(word, order):
    ranks = {pair: place for place, pair in reversed(list(enumerate(order)))}

    def cost(a, b):
        return ranks.get((a, b))

    assert merge(word, cost) == merge_by_scanning(word, cost)


def test_a_long_word_costs_n_log_n():
    asked = 0

    def cost(a, b):
        nonlocal asked
        asked += 1
        return 1 if len(a) == len(b) and len(a) < 16 else None

    n = 20_000
    assert len(merge("a" * n, cost)) == n // 16
    assert asked < 6 * n  # scanning would ask about n * n / 2


# --- the reference's example, markers ---------------------------------------------------------------------------


def test_merges_and_marker():
    tokenizer = load_tokenizer(metadata(small_bpe()))
    assert tokenizer.encode("hi<|im_end|>") == [257, 0]
    assert tokenizer.decode([257, 0]) == "hi<|im_end|>"
    assert tokenizer.decode([257, 0], special=False) == "hi"
    assert tokenizer.decode_bytes([257, 0], special=False) == b"hi"
    assert tokenizer.eog_ids == {0}
    assert repr(tokenizer) == "<BytePairTokenizer: 258 tokens, pre='gpt-2'>"


def test_marker_in_plain_text_stays_text_even_if_merges_lead_to_it():
    s = stand_ins()
    values = small_bpe(tokens=["<e>", *s, "<e"], merges=["< e", "<e >"], token_type=np.array([3] + [1] * 257, np.int32))
    tokenizer = load_tokenizer(metadata(values))
    assert tokenizer.encode("<e>", special=True) == [0]
    plain = tokenizer.encode("<e>", special=False)
    assert 0 not in plain
    assert tokenizer.decode(plain) == "<e>"


def test_a_merge_that_is_no_token_falls_back_to_bytes():
    s = stand_ins()
    values = small_bpe(tokens=s, merges=["a b"], token_type=np.ones(256, np.int32), eos_token_id=None)
    tokenizer = load_tokenizer(metadata(values))
    assert tokenizer.encode("xab") == [ord("x"), ord("a"), ord("b")]


def test_the_first_of_equal_tokens_counts():
    values = small_bpe(tokens=["<|im_end|>", *stand_ins(), "hi", "hi"], token_type=np.array([3] + [1] * 258, np.int32))
    assert load_tokenizer(metadata(values)).encode("hi") == [257]


def markers_one_by_one(markers, text):
    """The definition: each marker in turn, longest first, claims its places in the raw pieces."""
    parts = [text]
    for marker, token in sorted(markers.items(), key=lambda m: (-len(m[0].encode()), m[1])):
        parts = [
            piece
            for part in parts
            for piece in (
                [part]
                if isinstance(part, int)
                else [x for pair in zip(part.split(marker), itertools.repeat(token)) for x in pair][:-1]
            )
        ]
    return [part for part in parts if part != ""]


@given(
    text=st.text("<ab> é", max_size=40),
    names=st.lists(st.text("<ab> é", min_size=1, max_size=6), unique=True, max_size=8),
)
def test_markers_equal_claiming_one_by_one(text, names):
    markers = {name: 1000 + i for i, name in enumerate(names)}
    assert MarkerMatcher(markers).split(text) == markers_one_by_one(markers, text)


def test_the_longest_marker_claims_first():
    assert MarkerMatcher({"<ab": 1, "bcdef": 2}).split("<abcdef") == ["<a", 2]
    assert MarkerMatcher({"aa": 1, "aaa": 2}).split("aaaaa") == [2, 1]
    assert MarkerMatcher({}).split("text") == ["text"]
    assert MarkerMatcher({"a": 1}).split("") == []


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("qwen2", "don't DON'T it'll", ["don", "'t", " DON", "'T", " it", "'ll"]),
        ("qwen2", "a  b", ["a", " ", " b"]),
        ("qwen2", "x\n\n  y", ["x", "\n\n", " ", " y"]),
        ("qwen2", "foo();\r\n", ["foo", "();\r\n"]),
        ("qwen2", "x 2024", ["x", " ", "2", "0", "2", "4"]),
        ("qwen2", "end ", ["end", " "]),
        ("qwen35", "e\u0301\u0301x!\u0301", ["e\u0301\u0301x", "!\u0301"]),
        ("qwen2", "e\u0301x", ["e", "\u0301x"]),
        ("glm4", "12345", ["123", "45"]),
        ("chatglm-bpe", "a 1234", ["a", " ", "123", "4"]),
        ("llama-bpe", "I'LL go", ["I", "'LL", " go"]),
        ("gpt-2", "I'LL don't", ["I", "'", "LL", " don", "'t"]),
        ("gpt-2", "x  1234 y", ["x", " ", " 1234", " y"]),
        ("smollm", "x  12 y", ["x", "  ", "1", "2", " y"]),
        ("joyai-llm", "2048", ["204", "8"]),
        ("joyai-llm", "    int x", ["   ", " int", " x"]),
        ("joyai-llm", "a>;\nb", ["a", ">;\n", "b"]),
        ("joyai-llm", "x.foo", ["x", ".foo"]),
        ("joyai-llm", "a世界bc", ["a", "世界", "bc"]),
        ("inkling", "AÉB", ["AÉ", "B"]),
        ("inkling", "we'll", ["we'll"]),
        ("inkling", "ae\u0301b", ["ae\u0301b"]),
        ("inkling", "camelCase12345 x//\n/", ["camel", "Case", "123", "45", " x", "//\n/"]),
        ("gpt-4o", "IDs", ["IDs"]),
        ("tekken", "It's 12", ["It", "'s", " ", "1", "2"]),
        ("gpt-2", "a\x1cb", ["a", "\x1c", "b"]),
        ("gpt-2", "a \x1c b", ["a", " \x1c", " b"]),  # U+001C is no white space in Unicode, though Python's \s says so
    ],
)
def test_words(pre, text, words):
    assert PRE_TOKENIZERS[pre].cut(text) == words


@pytest.mark.parametrize("pre", {rules.patterns: name for name, rules in sorted(PRE_TOKENIZERS.items())}.values())
@given(text=st.lists(st.sampled_from([*BITS, "\u3000", "\udc80"]) | st.characters(), max_size=30).map("".join))
def test_no_rule_loses_a_character(pre, text):
    words = PRE_TOKENIZERS[pre].cut(text)
    assert "".join(words) == text
    assert all(words)


def test_long_runs_are_cut_in_linear_steps():
    n = 200_000  # a rule that tries n places for each of n characters would not come back
    for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2", "joyai-llm", "gpt-4o", "tekken"):
        for run in (" " * n, "\n" + " " * n + "x", " \n" * n, "a" * n, "A" * n, "é" * n, "!" * n, "\x00" * n):
            assert "".join(PRE_TOKENIZERS[pre].cut(run)) == run


def test_a_bad_byte_is_cut_like_a_symbol():
    tokenizer = PAIRS["smollm"]
    raw = b"ab\x80cd \xff12"
    assert [tokenizer.decode_bytes([i]) for i in tokenizer.encode(raw)] == [b"ab", b"\x80", b"cd", b" \xff", b"1", b"2"]


# --- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", PAIRS)
@given(text=TEXTS)
def test_decode_of_encode_is_the_text(pre, text):
    for special in (True, False):
        assert PAIRS[pre].decode(PAIRS[pre].encode(text, special)) == text


@given(raw=st.binary(max_size=80))
def test_any_bytes_come_back(raw):
    tokenizer = PAIRS["smollm"]
    ids = tokenizer.encode(raw)
    assert tokenizer.decode_bytes(ids) == raw
    assert tokenizer.decode(ids) == raw.decode("utf-8", "replace")
    assert tokenizer.encode(bytearray(raw)) == ids


@given(text=TEXTS)
def test_smollm2_gives_back_every_byte_that_it_can_spell(smollm2, text):
    missing = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
    assert smollm2.unencodable == missing
    raw = text.encode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnencodableBytes)
        assert smollm2.decode_bytes(smollm2.encode(text)) == bytes(b for b in raw if b not in missing)
    if not missing & set(raw):
        assert smollm2.decode(smollm2.encode(text)) == text


def test_a_byte_without_token_is_left_out_with_a_warning():
    values = small_bpe(tokens=["<|im_end|>", "h", "i", "hi"], token_type=np.array([3, 1, 1, 1], np.int32))
    tokenizer = load_tokenizer(metadata(values))
    for _ in range(2):  # every time
        with pytest.warns(UnencodableBytes, match="0x78, 0x79") as caught:
            assert tokenizer.encode("hiyxy") == [3]
        assert len(caught) == 1
        assert caught[0].filename == __file__
    assert len(tokenizer.unencodable) == 254


# --- bad input, ids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud83d", "a\udc80b", "\ude42\ud83d"])
def test_an_unpaired_surrogate_is_refused(text):
    with pytest.raises(InvalidText, match=r"character \d of the text is the unpaired surrogate U\+D"):
        PAIRS["smollm"].encode(text)
    with pytest.raises(ValueError, match="surrogate"):
        PAIRS["smollm"].encode_prompt(text)
    with pytest.raises(InvalidText):
        PAIRS["smollm"].token_id(text)


@pytest.mark.parametrize("text", [None, 3, ["a"], 1.5])
def test_encode_wants_text(text):
    with pytest.raises(TypeError, match="a text is str or bytes, not"):
        PAIRS["smollm"].encode(text)


@pytest.mark.parametrize("token", [-1, 258, 2**31, 2**63, -(2**70), np.int64(258)])
def test_ids_out_of_range(token):
    tokenizer = load_tokenizer(metadata(small_bpe()))
    for act in (tokenizer.piece, tokenizer.is_special, lambda i: tokenizer.decode([1, i]), tokenizer.stream().push):
        with pytest.raises(TokenOutOfRange, match=rf"token id {int(token)} is not in \[0, 258\)"):
            act(token)


@pytest.mark.parametrize("token", [1.0, "1", None])
def test_ids_are_integers(token):
    tokenizer = load_tokenizer(metadata(small_bpe()))
    with pytest.raises(TypeError, match="a token id is an integer"):
        tokenizer.decode([token])


def test_numpy_ids():
    tokenizer = load_tokenizer(metadata(small_bpe()))
    assert tokenizer.decode(np.array([257, 0], np.int32)) == "hi<|im_end|>"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(iter([257])) == "hi"


def test_token_id():
    tokenizer = PAIRS["smollm"]
    assert tokenizer.token_id("<|im_end|>") == tokenizer.n_vocab - 2
    assert tokenizer.token_id("<tool>") == tokenizer.n_vocab - 1
    assert tokenizer.token_id(" the") == tokenizer.n_vocab - 7
    assert tokenizer.token_id("no such token") is None
    assert all(tokenizer.token_id(tokenizer.piece(i).decode()) == i for i in range(0x80))


def test_the_word_cache_is_bounded():
    tokenizer = load_tokenizer(metadata(small_bpe()))
    tokenizer.encode("x" * 65)  # too long to be remembered
    assert not tokenizer._words
    tokenizer._words = {str(i): (i,) for i in range(CACHED_WORDS - 1)}
    tokenizer.encode("ab")
    assert len(tokenizer._words) == CACHED_WORDS
    tokenizer.encode("abc")
    assert tokenizer._words.keys() == {"abc"}
    assert tokenizer.encode("ab") == [0x61 + 1, 0x62 + 1]
