"""Small `tokenizer.json` files made by formula, with every part that is implemented."""

from __future__ import annotations

from typing import Any

from .tokenizer_texts import Numbers, random_texts
from .tokenizer_vocabularies import stand_ins

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def added(*texts: tuple[str, str], start: int) -> list[dict[str, Any]]:
    """Entries of `added_tokens`: text, and the flags that are true."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return [
        {"id": start + i, "content": text, **{flag: flag in true.split() for flag in flags}}
        for i, (text, true) in enumerate(texts)
    ]


MARKERS = (
    ("<s>", "special"),
    ("<left>", "lstrip special"),
    ("<right>", "rstrip"),
    ("<both>", "lstrip rstrip normalized"),
    ("don", "single_word"),
    ("the", "single_word lstrip normalized"),
    ("\u00e9\u0323", "normalized"),
    ("<s><s>", ""),
    ("--", "rstrip"),
)


def byte_file(**changes: Any) -> dict[str, Any]:
    """Byte-level BPE: all bytes and 4,096 pairs of them."""
    s = stand_ins()
    pairs = [divmod(i * 40503 % 65536, 256) for i in range(4096)]
    pairs += [(a, b) for a in b" etaon'" for b in b" etaoinshrd\n's"]
    words = dict.fromkeys(s[a] + s[b] for a, b in pairs)
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*s, *words, "Ġthe", "123", "世界"]))}
    values = {
        "added_tokens": added(*MARKERS, start=len(vocab)),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Isolated", "invert": False},
                BYTE_LEVEL,
            ],
        },
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": _model(vocab, [f"{s[a]} {s[b]}" for a, b in dict.fromkeys(pairs)]),
    }
    return values | changes


def character_file(**changes: Any) -> dict[str, Any]:
    """BPE over characters with byte tokens: letters, `▁`, all pairs of some of them and a few longer words."""
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyzTSE'.,!\n", "é", "世", "界", "\u0301", "1", "2"]
    often = ["\u2581", *"etaonishr'\n1", "世"]
    pairs = [(a, b) for a in often for b in often]
    pairs = [pairs[i * 89 % len(pairs)] for i in range(len(pairs)) if i % 7]
    longer = [("th", "e"), ("\u2581t", "he"), ("\u2581\u2581", "\u2581\u2581"), ("e\u2581", "t"), ("on", "\u2581")]
    words = [a + b for a, b in [*pairs, *longer]]
    specials = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*specials, *letters, *words]))}
    merges = [[a, b] for a, b in dict.fromkeys([*pairs, *longer]) if a in vocab and b in vocab]
    values = {
        "added_tokens": added(*MARKERS[:5], start=len(vocab)),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },  # fmt: skip
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _model(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    }
    return values | changes


def _model(vocab: dict[str, int], merges: list[Any], **changes: Any) -> dict[str, Any]:
    values = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return values | changes


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    """These pre-tokenizers, then ByteLevel."""
    return {"type": "Sequence", "pretokenizers": [*parts, BYTE_LEVEL]}


PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
FILES: dict[str, dict[str, Any]] = {
    "bytes": byte_file(),
    "nfkd": byte_file(normalizer={"type": "NFKD"}),
    "whole words": byte_file(
        normalizer=None,
        model=byte_file()["model"] | {"ignore_merges": True},
        pre_tokenizer=BYTE_LEVEL | {"use_regex": True},
    ),
    "digits": byte_file(
        normalizer={"type": "NFD"},
        pre_tokenizer=sequence(
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": True},
        ),
    ),
    "runs of digits": byte_file(
        normalizer={"type": "NFKC"}, pre_tokenizer=sequence({"type": "Digits", "individual_digits": False})
    ),
    "characters": character_file(),
    "characters, prefix": character_file(normalizer=PREPEND, pre_tokenizer=None),
}


def marked_texts(seed: int, count: int) -> list[str]:
    """Random texts with markers in some of them."""
    numbers = Numbers(seed + 1)
    texts = []
    for text in random_texts(seed, count):
        for _ in range(max(0, numbers.below(5) - 1)):
            at = numbers.below(len(text) + 1)
            text = text[:at] + MARKERS[numbers.below(len(MARKERS))][0] + text[at:]
        texts.append(text)
    return texts
