"""From `tokenizer.json` and the files beside it to the keys `tokenizer.…` of GGUF.

What was made is tried: the tokenizer of the new keys must give the ids of the one of `tokenizer.json` for texts of every
kind, or the model is not converted.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import checks
from ..errors import ConvertError, UnsupportedTokenizerFormat
from ..gguf import Metadata, Typed, ValueType
from ..tokenizers import Tokenizer, TokenType, UnencodableBytes, load_tokenizer, tokenizer_from_json
from ..tokenizers.spm import SPACE
from ..tokenizers.vocabulary import END_MARKERS
from .files import json_file
from .rules import PROBES, rules_name

KEY = "tokenizer.ggml."
# Gemma 4's markers inside a reply: files call them user-defined, so that whoever reads the reply sees them.
_VISIBLE = frozenset('<|channel> <channel|> <|tool_call> <tool_call|> <|tool_response> <tool_response|> <|"|>'.split())
_EVERY = 53  # one token of so many is spelt in a text that is tried
_BYTE_LEVEL = {None, "NFC"}  # normalizers of byte-level BPE


def vocabulary(folder: Path, architecture: str, rows: int) -> tuple[dict[str, Any], list[str]]:
    """The keys of the tokenizer, and remarks about what a GGUF cannot say.

    Parameters
    ----------
    folder : holds tokenizer.json and perhaps tokenizer_config.json, generation_config.json, chat_template.jinja.
    rows : of the embedding; ids without a token are filled up to it.

    Raises
    ------
    ConvertError : a file is missing, or GGUF has no tokenizer that gives the same ids.
    UnsupportedTokenizerFormat : tokenizer.json has parts that are not implemented.
    """
    described = json_file(folder / "tokenizer.json", "which says how texts become tokens")
    config = json_file(folder / "tokenizer_config.json")
    tokenizer = tokenizer_from_json(described, config)
    v = tokenizer.vocabulary
    n = len(v.tokens)
    if n > rows:
        raise ConvertError(f"tokenizer.json has ids up to {n - 1}, the embedding has {rows} rows; expected one per id")
    types = np.concatenate([v.types, np.full(rows - n, TokenType.UNUSED, np.int32)])
    tokens = [*v.tokens, *(b"[PAD%d]" % i for i in range(n, rows))]
    in_characters = bool(described["model"].get("byte_fallback"))
    remarks = []
    if in_characters:
        space = SPACE.encode()
        tokens = [
            t.replace(space, b" ") if k == TokenType.USER_DEFINED else t for t, k in zip(tokens, types, strict=True)
        ]
        keys = _in_characters(described, architecture, tokens, types)
    else:
        keys = {"model": "gpt2", "pre": rules_name(tokenizer._rules), "merges": _merges(described)}
        remarks += _normalizer(described.get("normalizer"))
    keys |= {"tokens": tokens, "token_type": types}
    for name, token in (("bos", v.bos), ("eos", v.eos), ("unknown", v.unk), ("padding", _padding(tokenizer, config))):
        if token is not None:
            keys[f"{name}_token_id"] = token
    keys |= {"add_bos_token": v.add_bos, "add_eos_token": v.add_eos}
    keys |= _ends(folder, tokenizer)
    typed = {KEY + key: _typed(value) for key, value in keys.items()}
    typed |= _templates(folder, config)
    _try(tokenizer, load_tokenizer(Metadata.from_dict(typed)), in_characters)
    strips = [t.text for t in v.added.tokens if t.lstrip or t.rstrip or t.single_word] if v.added else []
    if strips:
        remarks.append(
            f"{len(strips)} added tokens take white space along or want no letter beside them, such as {strips[0]!r}; "
            "a GGUF does not say that"
        )
    return typed, remarks


def _typed(value: Any) -> Any:
    return value if not isinstance(value, np.ndarray) else Typed(value.tolist(), ValueType.ARRAY, ValueType.I32)


def _merges(described: Mapping[str, Any]) -> list[bytes]:
    """`left right`, the merge of highest rank first."""
    return [(pair if isinstance(pair, str) else " ".join(pair)).encode() for pair in described["model"]["merges"]]


def _in_characters(
    described: Mapping[str, Any], architecture: str, tokens: list[bytes], types: np.ndarray
) -> dict[str, Any]:
    """Keys of a vocabulary that is spelt in characters: with merges for Gemma 4, with scores for all others."""
    merges = _merges(described)
    if architecture == "gemma4":
        types[[i for i, raw in enumerate(tokens) if raw.decode("utf-8", "replace") in _VISIBLE]] = (
            TokenType.USER_DEFINED
        )
        return {"model": "gemma4", "merges": merges, "add_space_prefix": False}
    # SentencePiece joins the pair whose piece has the highest score.  The merges were made from such scores, so the
    # place of a piece's first merge takes their place.
    scores: dict[bytes, int] = {}
    for place, pair in enumerate(merges):
        scores.setdefault(pair.replace(b" ", b"", 1), place)
    worst = len(merges)
    values = [
        -float(scores.get(token, worst)) if kind == TokenType.NORMAL else (0.0 if kind == TokenType.BYTE else -1000.0)
        for token, kind in zip(tokens, types.tolist(), strict=True)
    ]
    return {"model": "llama", "scores": values, "add_space_prefix": _prefix(described.get("normalizer"))}


def _prefix(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether a text gets a space in front."""
    if normalizer is None:
        return False
    if normalizer.get("type") == "Sequence":
        return any(map(_prefix, normalizer["normalizers"]))
    return normalizer.get("type") == "Prepend"


def _normalizer(normalizer: Mapping[str, Any] | None) -> list[str]:
    """A remark about NFC; other normalizers of byte-level BPE are refused."""
    kind = None if normalizer is None else normalizer.get("type")
    if kind == "Sequence" and normalizer is not None:
        return [remark for part in normalizer["normalizers"] for remark in _normalizer(part)]
    if kind not in _BYTE_LEVEL:
        raise ConvertError(f"tokenizer.json has the normalizer {kind!r}; a GGUF with byte-level BPE cannot say that")
    return ["texts are brought to the form NFC first by tokenizer.json; a GGUF does not say that"] if kind else []


def _padding(tokenizer: Tokenizer, config: Mapping[str, Any]) -> int | None:
    value = config.get("pad_token")
    text = value.get("content") if isinstance(value, Mapping) else value
    return tokenizer.token_id(text) if isinstance(text, str) else None


def _ends(folder: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """Keys for further ids that end a reply, beside eos and those that are known by their spelling."""
    ids = json_file(folder / "generation_config.json").get("eos_token_id")
    v = tokenizer.vocabulary
    more = []
    for token in ids if isinstance(ids, list) else [ids]:
        if token is None or token == v.eos:
            continue
        if type(token) is not int or not 0 <= token < len(v.tokens):
            raise ConvertError(
                f"generation_config.json has eos_token_id {checks.shown(ids)}; expected ids from 0 to {len(v.tokens) - 1}"
            )
        if v.types[token] != TokenType.CONTROL or v.tokens[token].decode("utf-8", "replace") not in END_MARKERS:
            more.append(token)
    if v.eos is None and more:
        return dict(zip(("eos_token_id", "eot_token_id", "eom_token_id"), more, strict=False))
    if len(more) > 2:
        raise ConvertError(f"generation_config.json has {len(more)} further ids in eos_token_id; a GGUF can name two")
    return dict(zip(("eot_token_id", "eom_token_id"), more, strict=False))


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The chat template, and others with a name."""
    own = folder / "chat_template.jinja"
    found = config.get("chat_template")
    if own.is_file():
        try:
            found = own.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConvertError(f"{own}: cannot be read as UTF-8 ({error})") from None
    if found is None:
        return {}
    if isinstance(found, str):
        return {"tokenizer.chat_template": found}
    try:
        named = {entry["name"]: entry["template"] for entry in found}
    except (TypeError, KeyError):
        named = {}
    if not named or not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise ConvertError("tokenizer_config.json has a chat_template that is neither a text nor a list of named texts")
    others = {name: text for name, text in named.items() if name != "default"}
    keys: dict[str, Any] = {f"tokenizer.chat_template.{name}": text for name, text in others.items()}
    if others:
        keys["tokenizer.chat_templates"] = sorted(others)
    if "default" in named:
        keys["tokenizer.chat_template"] = named["default"]
    return keys


def _try(wanted: Tokenizer, made: Tokenizer, in_characters: bool) -> None:
    """ConvertError if the two give different ids for some text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnencodableBytes)
        markers = sorted(wanted.control_markers)[:32]
        own = [made.piece(i).decode("utf-8", "ignore") for i in range(0, len(made.vocabulary.tokens), _EVERY)]
        spelt = [" ".join(own[i : i + 64]) for i in range(0, len(own), 64)]
        for text in (*PROBES, *(f"a {marker}b" for marker in markers), *spelt):
            text = unicodedata.normalize("NFC", text)
            a, b = wanted.encode(text), made.encode(text)
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                raise UnsupportedTokenizerFormat(
                    f"the tokenizer of tokenizer.json cannot be written as GGUF: for {ascii(text)[:80]} its ids are "
                    f"{a[at : at + 4]} from place {at} on, a GGUF would give {b[at : at + 4]}"
                )
