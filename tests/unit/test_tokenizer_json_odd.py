"""Files `tokenizer.json` that are not laid out as they should be: an error of their own, or a tokenizer that works."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from fucina.errors import UnsupportedTokenizerFormat
from fucina.tokenizers import load_tokenizer_json, tokenizer_from_json
from fucina.tokenizers.bpe import BYTE_ALPHABET
from fucina.tokenizers.pretokenize import PreTokenizer

from .tokenizer_files import added, character_file

VALUES = [
    None, True, 0, 1, -1, -5, 2**64, 1.5, float("nan"), float("inf"), "", "x", "a b", "\ud800", "\0", "(?:", r"\p{Zzz}",
    "a{99999}", "259", "٣", "BPE", "ByteLevel", "Sequence", [], [1], ["a"], [["a", "b"]], {}, {"a": 1}, {"type": "NFC"},
    {"type": "Sequence"}, {"String": ""}, {"Regex": ""}, {"Regex": "(?:"}, {"Regex": "(a)(b)|b*"}, [{}], [None],
]  # fmt: skip


def described() -> dict[str, Any]:
    """A file with every part that is read."""
    vocab = {raw.decode(): i for i, raw in enumerate(BYTE_ALPHABET)} | {"ab": 256, "abc": 257, "Ġa": 258}
    special = {
        "id": 259,
        "content": "<|x|>",
        "special": True,
        "single_word": False,
        "rstrip": True,
        "normalized": False,
    }
    plain = {"id": 260, "content": "foo", "special": False, "single_word": True, "lstrip": True, "normalized": True}
    replace = {"type": "Replace", "pattern": {"String": "z"}, "content": "y"}
    split = {"type": "Split", "pattern": {"Regex": r"\s+|\d"}, "behavior": "Isolated", "invert": False}
    return {
        "added_tokens": [special, plain],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, replace, {"type": "Prepend", "prepend": "a"}],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|x|>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<|x|>": {"ids": [259]}},
        },
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["ab", "c"], "Ġ a"]},
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values; of a vocabulary, a few."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inside)[:12]:
        found += places(part, (*path, key))
    return found


def damage(file: dict[str, Any], rng: random.Random) -> None:
    *path, last = rng.choice(places(file))
    parent: Any = file
    for key in path:
        parent = parent[key]
    match rng.choice(["remove", "replace", "replace", "rename"]):
        case "remove":
            del parent[last]
        case "rename" if isinstance(parent, dict):
            parent[rng.choice(["", " ", "\ud800", "a b", "x"])] = parent.pop(last)
        case _:
            parent[last] = copy.deepcopy(rng.choice(VALUES))


def use(tokenizer: Any) -> None:
    assert b"".join(map(tokenizer.piece, range(tokenizer.n_vocab)))
    for text in ("", "abc ab a", "  foo  <|x|>  z é", "١٢ foo ", "\0\n\t a", "abab 123456"):
        for special in (True, False):
            ids = tokenizer.encode(text, special=special)
            assert all(0 <= token < tokenizer.n_vocab for token in ids)
            tokenizer.decode(ids)


def test_the_file_itself():
    use(tokenizer_from_json(described()))


@pytest.mark.filterwarnings("ignore::fucina.tokenizers.UnencodableBytes")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(seed):
    """A value of the wrong type anywhere is seen when the file is read, not when a text is encoded."""
    rng = random.Random(seed)
    loaded = refused = 0
    for _ in range(400):
        file = described()
        for _ in range(rng.choice([1, 1, 2, 3])):
            if file:
                damage(file, rng)
        try:
            tokenizer = tokenizer_from_json(file, {"bos_token": rng.choice(VALUES)} if rng.random() < 0.3 else None)
        except UnsupportedTokenizerFormat:
            refused += 1
            continue
        loaded += 1
        use(tokenizer)
    assert loaded > 40 and refused > 100


@pytest.mark.parametrize("token", [-1, True, 1.5, "259", float("inf"), None])
@pytest.mark.parametrize("where", ["vocab", "added_tokens"])
def test_ids_are_whole_numbers(where, token):
    """-1 would overwrite the last token, 1.5 would be cut to 1."""
    file = described()
    if where == "vocab":
        file["model"]["vocab"]["ab"] = token
    else:
        file["added_tokens"][0]["id"] = token
    with pytest.raises(UnsupportedTokenizerFormat, match="no token id"):
        tokenizer_from_json(file)


def test_two_tokens_of_one_id():
    file = described()
    file["model"]["vocab"]["ab"] = 257
    with pytest.raises(UnsupportedTokenizerFormat, match="two tokens of one id"):
        tokenizer_from_json(file)


def test_nested_too_deep(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("[" * 200_000)
    with pytest.raises(UnsupportedTokenizerFormat, match="no JSON text"):
        load_tokenizer_json(path)


def test_expressions_with_groups_and_empty_matches():
    """The words are the matches, never the groups: thousands are cut in front of each group of three digits."""
    thousands = PreTokenizer((r"(?=(\d{3})+(?!\d))",))
    assert thousands.cut("123456") == ["123", "456"]
    assert thousands.cut("1234567 12") == ["1", "234", "567 12"]
    assert PreTokenizer(("(a)(b)",)).cut("abab") == ["ab", "ab"]
    assert PreTokenizer(("(ab)+",)).cut("ababx") == ["abab", "x"]
    assert PreTokenizer((r"\d*",)).cut("12a3") == ["12", "a", "3"]


def test_an_added_token_of_spaces_is_printed_as_spaces():
    """Gemma's files add runs of `▁`: a text that uses them comes back as it was."""
    file = character_file()
    start = max(file["model"]["vocab"].values()) + 100
    runs = added(*(("\u2581" * n, "normalized") for n in range(6, 9)), start=start)
    tokenizer = tokenizer_from_json({**file, "added_tokens": [*file["added_tokens"], *runs]})
    text = "the" + 7 * " " + "one" + 8 * " " + "a"
    ids = tokenizer.encode(text)
    assert start + 1 in ids and start + 2 in ids
    assert tokenizer.decode(ids) == text
