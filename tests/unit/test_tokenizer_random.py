"""Token ids of random texts under every rule equal those of llama.cpp, and of `tokenizer.json` files those of `tokenizers`.

What the two gave is stored as eight hexadecimal digits per text (`tests/data/tokenizers/digests.json`): of the ids without
and with markers parsed.  llama.cpp (llama-cpp-python 0.3.36) was asked with the vocabulary of pairs, whose ids change with
nearly every border of a word, and `tokenizer.ggml.pre` overridden by each name; `tokenizers` 0.23.3 with the files of
`tokenizer_files.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.gguf import GgufFile
from fucina.tokenizers import PRE_TOKENIZERS, UnencodableBytes, bpe, load_tokenizer, tokenizer_from_json
from fucina.tokenizers.batch import PairTable
from fucina.tokenizers.bpe import BYTE_ALPHABET
from fucina.tokenizers.merging import merge
from fucina.tokenizers.normalize import unicode_form

from .tokenizer_files import FILES, marked_texts
from .tokenizer_texts import random_texts
from .tokenizer_vocabularies import fixture, metadata, pair_vocabulary

SEED, COUNT = 20_26, 200
PAIRS = pair_vocabulary("gpt-2")


def digest(value) -> str:
    """Eight digits of anything that JSON can write."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=4).hexdigest()


def digests(encode, texts) -> list[str]:
    return [digest([encode(text, special=False), encode(text, special=True)]) for text in texts]


def stored(by: str, name: str) -> list[str]:
    line = fixture("digests.json")[by][name]
    return [line[at : at + 8] for at in range(0, len(line), 8)]


def differing(texts, ours, theirs):
    assert len(theirs) == COUNT
    return [text for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]


def test_the_texts_are_the_same_everywhere():
    kept = fixture("digests.json")
    assert digest(list(random_texts(SEED, COUNT))) == kept["texts"]
    assert digest(marked_texts(SEED, COUNT)) == kept["marked texts"]


@pytest.mark.parametrize("name", fixture("digests.json")["llama.cpp"])
def test_rules_cut_random_texts_as_llama_cpp_does(name):
    tokenizer = load_tokenizer(metadata(PAIRS), pre=name)
    texts = list(random_texts(SEED, COUNT))
    assert differing(texts, digests(tokenizer.encode, texts), stored("llama.cpp", name)) == []


def test_every_rule_was_compared():
    compared = {PRE_TOKENIZERS[name].patterns for name in fixture("digests.json")["llama.cpp"]}
    left = {name for name, rules in PRE_TOKENIZERS.items() if rules.patterns not in compared}
    assert left == {"gemma4", "sarvam-moe"}  # of other vocabularies


@pytest.mark.parametrize("name", FILES)
def test_files_give_the_ids_of_the_library(name):
    tokenizer = tokenizer_from_json(FILES[name])
    texts = marked_texts(SEED, COUNT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnencodableBytes)
        assert differing(texts, digests(tokenizer.encode, texts), stored("tokenizers", name)) == []


# --- the compiled loop ------------------------------------------------------------------------------------------

SYMBOLS = st.text("ab", min_size=1, max_size=3)


@given(
    words=st.lists(st.text("abc", min_size=1, max_size=20), min_size=1, max_size=6),
    order=st.lists(st.tuples(SYMBOLS, SYMBOLS), max_size=30),
)
def test_the_kernel_equals_its_twin(words, order):
    ranks = {f"{a} {b}".encode(): place for place, (a, b) in reversed(list(enumerate(order)))}
    pieces = sorted({*"ab", *(a + b for a, b in order if len(a + b) != 3)})  # `c` and some joined pieces are no tokens
    ids = {piece.encode(): 7 * i for i, piece in enumerate(pieces)}
    found = PairTable(ranks, ids).encode(words)
    in_bytes = PairTable(ranks, ids, [bytes((b,)) for b in range(256)]).encode(words)
    for word, tokens, also in zip(words, found, in_bytes, strict=True):
        merged = merge([c.encode() for c in word], lambda a, b: ranks.get(a + b" " + b))
        expected = None if any(piece not in ids for piece in merged) else tuple(ids[piece] for piece in merged)
        assert tokens == also == expected


@pytest.mark.parametrize("name", ["bytes", "characters", "characters, prefix", "whole words"])
def test_long_texts_have_the_tokens_of_short_ones(name, monkeypatch):
    plain = tokenizer_from_json(FILES[name])
    monkeypatch.setattr(bpe, "_LONG_TEXT", 0)
    monkeypatch.setattr(bpe, "_SHORT_TEXT", 0)
    by_kernel = tokenizer_from_json(FILES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnencodableBytes)
        for text in random_texts(9, 60):
            ids = by_kernel.encode(text)
            monkeypatch.setattr(bpe, "_LONG_TEXT", 1 << 60)
            assert plain.encode(text) == ids, text
            monkeypatch.setattr(bpe, "_LONG_TEXT", 0)
    assert plain._table is None
    assert by_kernel._table is not None


def test_a_word_of_a_million_letters():
    vocabulary = pair_vocabulary("gpt-2")
    tokenizer = load_tokenizer(metadata(vocabulary))
    ids = tokenizer.encode("ab" * 500_000)
    assert len(set(ids[1:-1])) <= 2
    assert tokenizer.decode(ids) == "ab" * 500_000


def test_the_byte_alphabet_is_a_bijection():
    assert len(set(BYTE_ALPHABET)) == 256
    assert all(len(symbol.decode()) == 1 and symbol.decode().isprintable() for symbol in BYTE_ALPHABET)


# --- work in proportion to the text -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", {rules.patterns: name for name, rules in sorted(PRE_TOKENIZERS.items())}.values())
def test_no_rule_looks_at_a_run_once_for_each_of_its_places(name):
    n = 100_000  # n * n steps would take minutes
    runs = ["a" * n, "A" * n, "\u00e9" * n, "7" * n, " " * n, " " * n + "x", "\n" * n, " \n" * n, "\n" + " " * n + "x"]
    runs += [
        "\u0301" * n,
        "e" + "\u0301\u0323" * n,
        "'" * n,
        "'s" * n,
        "aA" * n,
        "\u4e16" * n,
        "!" * n,
        "a " * n,
        "\x00" * n,
    ]
    for run in runs:
        assert "".join(PRE_TOKENIZERS[name].cut(run)) == run


@given(
    st.text("e\u0301\u0323\u0344\u0345\u0f71\u0f74\u1100\u1161a\u00e9", max_size=120),
    st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]),
)
def test_sorting_long_runs_first_changes_no_form(text, form):
    assert unicode_form(form, text) == unicodedata.normalize(form, text)


def test_marks_in_the_wrong_order_take_no_n_times_n_steps():
    n = 200_000  # 10**10 exchanges otherwise
    assert unicode_form("NFC", "e" + "\u0301\u0323" * n) == "\u1eb9" + "\u0323" * (n - 1) + "\u0301" * n


# --- vocabularies of llama.cpp ----------------------------------------------------------------------------------


def test_vocabularies_of_llama_cpp():
    folder = os.environ.get("FUCINA_LLAMA_VOCABS")
    if not folder:
        pytest.skip(
            "FUCINA_LLAMA_VOCABS is not set: the folder `models` of llama.cpp's sources, 76 MB that are not ours"
        )
    files = sorted(Path(folder).glob("ggml-vocab-*.gguf.inp"))
    assert len(files) >= 14
    for texts in files:
        with GgufFile(texts.with_suffix("")) as file:
            if file.metadata.str("tokenizer.ggml.model") in ("bert", "t5"):
                continue
            tokenizer = load_tokenizer(file.metadata)
        cases = texts.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        lines = texts.with_suffix(".out").read_text(encoding="utf-8").splitlines()
        for text, line in zip(cases, lines):
            assert tokenizer.encode(text, special=False) == np.fromstring(line, np.int64, sep=" ").tolist(), (
                texts.name,
                text,
            )
