r"""Pre-tokenizers of a `tokenizer.json` as rules for words.

Its expressions are written for another engine (Oniguruma).  The `regex` module reads them alike but for `\s`, which is
white space as Unicode defines it there, and a few that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedTokenizerFormat
from .pretokenize import PreTokenizer
from .rules import PRE_TOKENIZERS

_GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[0]
_PUNCTUATION = r"[\p{P}$+<=>^`|~]"


def pre_tokenizer(described: Mapping[str, Any] | None, ignore_merges: bool, in_characters: bool) -> PreTokenizer:
    """The rules that a `pre_tokenizer` describes.

    Parameters
    ----------
    described
        The object of that name in the file, or None.
    ignore_merges
        See `PreTokenizer`.
    in_characters
        Whether the vocabulary is spelt in characters (the model has `byte_fallback`).

    Raises
    ------
    UnsupportedTokenizerFormat
        A kind, or an option, that is not implemented; it is named.
    """
    patterns, byte_level = _patterns(described, in_characters)
    if byte_level == in_characters:
        raise UnsupportedTokenizerFormat(
            "tokenizer.json has "
            + ("byte_fallback and the pre-tokenizer ByteLevel" if byte_level else "neither byte_fallback nor ByteLevel")
            + ", which is not implemented; expected one of them"
        )
    return PreTokenizer(tuple(patterns), ignore_merges=ignore_merges, in_characters=in_characters)


def _patterns(described: Mapping[str, Any] | None, in_characters: bool) -> tuple[list[str], bool]:
    """Expressions, and whether the words are spelt in stand-ins of bytes at the end."""
    if described is None:
        return [], False
    kind = described["type"]
    if kind == "Sequence":
        patterns: list[str] = []
        byte_level = False
        for part in described["pretokenizers"]:
            if byte_level:
                raise UnsupportedTokenizerFormat(
                    "tokenizer.json has a pre-tokenizer after ByteLevel; expected ByteLevel as the last one"
                )
            more, byte_level = _patterns(part, in_characters)
            patterns += more
        return patterns, byte_level
    if kind == "ByteLevel" and not described.get("add_prefix_space"):
        return ([_GPT2] if described.get("use_regex", True) else []), True
    if kind == "Split":
        return _split(described, in_characters), False
    if kind == "Digits":
        return [r"\p{N}" if described.get("individual_digits") else r"\p{N}+"], False
    if kind == "Punctuation" and described.get("behavior", "Isolated") == "Isolated":
        return [_PUNCTUATION], False
    options = {key: value for key, value in described.items() if key != "type"}
    raise UnsupportedTokenizerFormat(
        f"tokenizer.json has the pre-tokenizer {kind!r} with {options}, which is not implemented; expected Split, Digits or "
        "Punctuation (Isolated), ByteLevel without add_prefix_space, or a Sequence of them"
    )


def _split(described: Mapping[str, Any], in_characters: bool) -> list[str]:
    pattern, behavior = described["pattern"], described["behavior"]
    if in_characters and pattern == {"String": " "}:  # there is none: all spaces have become ▁
        return []
    if behavior == "Isolated":  # inverted, matches and what lies between them trade places: the cuts are the same
        if "String" in pattern:
            return [re.escape(pattern["String"])]
        return [translated(pattern["Regex"])]
    raise UnsupportedTokenizerFormat(
        f"tokenizer.json has the pre-tokenizer 'Split' with behavior {behavior!r}, which is not implemented; "
        "expected 'Isolated'"
    )


_SAME = frozenset("pPdDrntfvxu") | frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~ """)


def translated(pattern: str) -> str:
    r"""An expression of Oniguruma in the syntax of the `regex` module.

    Raises
    ------
    UnsupportedTokenizerFormat
        It has an escape whose meaning is not known to be the same, such as `\w`.
    """
    parts = ["(?V1m)"]
    done = 0
    for escape in re.finditer(r"\\(.)", pattern, re.DOTALL):
        parts.append(pattern[done : escape.start()])
        letter = escape.group(1)
        if letter in "sS":
            parts.append(r"\p{White_Space}" if letter == "s" else r"\P{White_Space}")
        elif letter in _SAME:
            parts.append(escape.group())
        else:
            raise UnsupportedTokenizerFormat(
                f"an expression of tokenizer.json has \\{letter}, which is not implemented: {pattern!r}"
            )
        done = escape.end()
    import regex  # here, as in pretokenize.py

    whole = "".join([*parts, pattern[done:]])
    try:
        regex.compile(whole)
    except regex.error as error:
        raise UnsupportedTokenizerFormat(
            f"an expression of tokenizer.json is not valid: {pattern!r}: {error}"
        ) from None
    return whole
