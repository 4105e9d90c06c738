"""Building a tokenizer from a `tokenizer.json`, the format of the `tokenizers` library.

Such a file says everything that a GGUF only names: how the text is normalized, by which expressions it is cut into words,
which tokens were added and how each is found.  Implemented is what the families here use; anything else is refused by its
name, so that a tokenizer that loads gives the ids of the library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FucinaError, NoTokenizerVocab, UnsupportedTokenizerFormat
from .added import AddedToken, AddedTokens
from .bpe import BytePairTokenizer
from .json_words import pre_tokenizer
from .normalize import as_text, normalizers
from .spm import SPACE
from .textbpe import TextPairTokenizer
from .vocabulary import TokenType, Vocabulary

_KNOWN_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


def load_tokenizer_json(path: str | Path, config: Mapping[str, Any] | None = None) -> BytePairTokenizer:
    """The tokenizer of a file `tokenizer.json`.

    Parameters
    ----------
    path
        The file, or the folder that it lies in.
    config
        What is in `tokenizer_config.json`: which tokens begin and end a text.  None reads the file beside `path`, if
        there is one.

    Raises
    ------
    NoTokenizerVocab
        The file has no tokens.
    UnsupportedTokenizerFormat
        It is no `tokenizer.json`, or one with parts that are not implemented; the message names them.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        path /= "tokenizer.json"
    if config is None:
        beside = path.with_name("tokenizer_config.json")
        config = _parsed(beside) if beside.is_file() else {}
    return tokenizer_from_json(_parsed(path), config)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedTokenizerFormat(f"{path.name} is no JSON text: {error}") from None
    if not isinstance(value, dict):
        raise UnsupportedTokenizerFormat(f"{path.name} holds a {type(value).__name__}; expected an object")
    return value


def tokenizer_from_json(described: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> BytePairTokenizer:
    """The tokenizer that the parsed contents of a `tokenizer.json` describe; see `load_tokenizer_json`."""
    try:
        return _built(described, config or {})
    except FucinaError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # not laid out as it should be
        raise UnsupportedTokenizerFormat(
            f"tokenizer.json is not laid out as expected: {type(error).__name__} {error}"
        ) from error


def _built(described: Mapping[str, Any], config: Mapping[str, Any]) -> BytePairTokenizer:
    model = described["model"]
    _check_model(model)
    in_characters = bool(model.get("byte_fallback"))
    steps = normalizers(described.get("normalizer"))
    rules = pre_tokenizer(described.get("pre_tokenizer"), bool(model.get("ignore_merges")), in_characters)
    if in_characters and SPACE not in step_all(steps, "a b").lstrip(SPACE):
        raise UnsupportedTokenizerFormat(
            f"tokenizer.json has byte_fallback and no normalizer that replaces spaces by {SPACE!r}; this is not implemented"
        )
    added = AddedTokens(tuple(map(_added, described.get("added_tokens") or ())), tuple(steps))
    vocabulary = _vocabulary(model, added, described, config)
    merges = [_merge(place, pair) for place, pair in enumerate(model["merges"])]
    what = json.dumps([described.get("normalizer"), described.get("pre_tokenizer")], sort_keys=True)
    pre = "json:" + hashlib.blake2b(what.encode(), digest_size=6).hexdigest()
    if not in_characters:
        return BytePairTokenizer(vocabulary, merges, rules, pre)
    return TextPairTokenizer(vocabulary, merges, rules, pre, _strips(described.get("decoder")))


def step_all(steps: Sequence[Any], text: str) -> str:
    """The text after all steps of a normalizer."""
    for step in steps:
        text = step(text)
    return text


def _check_model(model: Mapping[str, Any]) -> None:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise UnsupportedTokenizerFormat(
            f"tokenizer.json has a model of type {kind!r}, which is not implemented; expected 'BPE'"
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedTokenizerFormat(
                f"the model of tokenizer.json has {key} {model[key]!r}, which is not implemented; expected none"
            )
    if not model["vocab"]:
        raise NoTokenizerVocab("the model of tokenizer.json has no vocabulary")


def _added(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(entry.get(name)) for name in ("special", "single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(as_text(entry["content"]), _id(entry["id"]), **flags)


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:  # True is an int as well
        raise TypeError(f"{value!r} is no token id")
    return value


def _merge(place: int, pair: Any) -> bytes:
    joined = pair if isinstance(pair, str) else " ".join(pair)
    if joined.count(" ") != 1:
        raise UnsupportedTokenizerFormat(
            f"merge {place} of tokenizer.json is {pair!r}; expected two symbols without spaces"
        )
    return joined.encode()


def _vocabulary(
    model: Mapping[str, Any], added: AddedTokens, described: Mapping[str, Any], config: Mapping[str, Any]
) -> Vocabulary:
    ids: dict[str, int] = {text: _id(token) for text, token in model["vocab"].items()}
    if len(set(ids.values())) < len(ids):
        raise UnsupportedTokenizerFormat("the vocabulary of tokenizer.json has two tokens of one id; expected one each")
    n = 1 + max([*ids.values(), *(t.token for t in added.tokens)])
    if n > 4 * (len(ids) + len(added.tokens)) + 1024:
        raise UnsupportedTokenizerFormat(
            f"ids of tokenizer.json reach from {min(ids.values())} to {n - 1}; expected 0, 1, …"
        )
    tokens = [b"[PAD%d]" % i for i in range(n)]  # ids that are left out
    types = np.full(n, TokenType.UNUSED, np.int32)
    for text, token in ids.items():
        tokens[token] = text.encode()
        types[token] = TokenType.NORMAL
    if model.get("byte_fallback"):
        for byte in range(256):
            if (spelt := f"<0x{byte:02X}>") in ids:
                types[ids[spelt]] = TokenType.BYTE
    unk = ids.get(model["unk_token"]) if model.get("unk_token") else None
    if unk is not None:
        types[unk] = TokenType.UNKNOWN
    for entry in added.tokens:
        tokens[entry.token] = entry.text.encode()
        types[entry.token] = TokenType.CONTROL if entry.special else TokenType.USER_DEFINED

    def named(key: str) -> int | None:
        value = config.get(key)
        text = value.get("content") if isinstance(value, Mapping) else value
        by_text = {t.text: t.token for t in added.tokens}
        return None if text is None else by_text.get(text, ids.get(text))

    before, after = _template(described.get("post_processor"))
    bos, eos = named("bos_token"), named("eos_token")
    add_bos = bool(config.get("add_bos_token", before is not None))
    add_eos = bool(config.get("add_eos_token", after is not None))
    bos = before if bos is None else bos
    return Vocabulary(
        tokens=tokens,
        types=types,
        bos=bos,
        eos=after if eos is None else eos,
        unk=unk,
        add_bos=add_bos and bos is not None,
        add_eos=add_eos and eos is not None,
        out_of_reach=frozenset({t.token for t in added.tokens} - set(ids.values())),
        added=added,
    )


def _template(described: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """Ids of the tokens that a post-processor puts before and after one text."""
    if described is None or described["type"] == "ByteLevel":  # this changes offsets alone
        return None, None
    if described["type"] == "Sequence":
        found = [_template(part) for part in described["processors"]]
        before = [a for a, _ in found if a is not None]
        after = [b for _, b in found if b is not None]
        if len(before) <= 1 and len(after) <= 1:
            return next(iter(before), None), next(iter(after), None)
    if described["type"] == "TemplateProcessing":
        sides: list[list[int]] = [[], []]
        behind = 0
        for item in described["single"]:
            if "Sequence" in item:
                behind = 1
            else:
                sides[behind] += described["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        if max(map(len, sides)) <= 1:
            return next(iter(sides[0]), None), next(iter(sides[1]), None)
    raise UnsupportedTokenizerFormat(
        f"tokenizer.json has a post-processor of type {described['type']!r} that is not implemented; expected ByteLevel, or "
        "TemplateProcessing with at most one token before and one after a text"
    )


def _strips(decoder: Mapping[str, Any] | None) -> bool:
    """Whether decoding drops one space at the beginning."""
    if decoder is None:
        return False
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for part in parts:
        if part["type"] not in _KNOWN_DECODERS:
            raise UnsupportedTokenizerFormat(
                f"tokenizer.json has the decoder {part['type']!r}, which is not implemented"
            )
    return any(part["type"] == "Strip" and part.get("start") for part in parts)
