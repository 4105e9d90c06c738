"""Building a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import NoTokenizerVocab, UnsupportedTokenizerFormat
from ..gguf.mapping import shown
from .base import Tokenizer
from .bpe import BytePairTokenizer
from .pretokenize import PreTokenizer
from .rules import PRE_TOKENIZERS
from .spm import SentencePieceTokenizer
from .textbpe import TextPairTokenizer
from .vocabulary import END_MARKERS, TokenType, Vocabulary

if TYPE_CHECKING:
    from ..gguf import Metadata

_KEY = "tokenizer.ggml."
# What the field calls the other kinds of tokenizers that GGUF files hold.
_OTHER_KINDS = {
    "bert": "WordPiece (WPM)",
    "t5": "Unigram (UGM)",
    "rwkv": "the greedy tokenizer of RWKV",
    "plamo2": "the lattice of PLaMo 2",
    "whitespace": "BPE over lower-cased words between white space",
    "hybriddna": "BPE with k-mers of DNA",
}
_CLEAR_ENDS = frozenset(name.encode() for name in END_MARKERS if name.startswith("<|"))


def load_tokenizer(metadata: Metadata, pre: str | None = None) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Parameters
    ----------
    metadata
        Metadata of the file: `tokenizer.ggml.model`, `tokens`, `token_type`, and `merges` (BPE) or `scores`
        (SentencePiece).
    pre
        Name of the pre-tokenizer rules to use in place of the file's `tokenizer.ggml.pre`, for a file that does not name
        any, or names wrong ones.  Matters to BPE only.

    Raises
    ------
    NoTokenizerVocab
        The file has no tokens.
    UnsupportedTokenizerFormat
        Another kind of tokenizer, unknown pre-tokenizer rules, or parts that are missing or contradict each other.
    GgufError
        A key has a value of the wrong type.

    Notes
    -----
    Where the file has no `token_type`, byte-level BPE takes tokens spelt `<|…|>` for control tokens; SentencePiece
    takes bos, eos and unk for markers and `<0x41>` for byte tokens.
    """
    tokens = metadata.strings(_KEY + "tokens", default=[])
    if not tokens:
        state = "is empty" if _KEY + "tokens" in metadata else "is missing"
        raise NoTokenizerVocab(f"tokenizer.ggml.tokens {state}; expected the list of all tokens")
    kind = metadata.str(_KEY + "model", default=None)
    has_scores = _KEY + "scores" in metadata
    if kind == "gpt2":
        if has_scores:
            raise UnsupportedTokenizerFormat(
                "tokenizer.ggml.model is 'gpt2' but tokenizer.ggml.scores is present; expected merges and no scores"
            )
        return _byte_pair(metadata, tokens, pre)
    if kind == "gemma4":
        return _byte_pair(metadata, tokens, "gemma4")
    if kind == "llama":
        if not has_scores:
            raise UnsupportedTokenizerFormat(
                "tokenizer.ggml.model is 'llama'; expected tokenizer.ggml.scores, which is missing"
            )
        return _sentence_piece(metadata, tokens)
    found = "is missing" if kind is None else f"is {shown(kind)}"
    if kind in _OTHER_KINDS:
        found += f", {_OTHER_KINDS[kind]}, which is not implemented"
    raise UnsupportedTokenizerFormat(
        f"tokenizer.ggml.model {found}; expected 'gpt2' (byte-level BPE), 'gemma4' (BPE over characters) or 'llama' "
        "(SentencePiece with scores)"
    )


def _byte_pair(metadata: Metadata, tokens: list[bytes], pre: str | None) -> BytePairTokenizer:
    merges = metadata.strings(_KEY + "merges", default=[])
    if not merges:
        state = "is empty" if _KEY + "merges" in metadata else "is missing"
        raise UnsupportedTokenizerFormat(f"tokenizer.ggml.merges {state}; BPE needs its merges")
    name, rules = _rules(metadata.str(_KEY + "pre", default=None) if pre is None else pre)
    types = _types(metadata, len(tokens))
    if types is None:
        types = np.full(len(tokens), TokenType.NORMAL, np.int32)
        types[[i for i, raw in enumerate(tokens) if re.fullmatch(rb"<\|.+\|>", raw)]] = TokenType.CONTROL
    vocabulary = _vocabulary(metadata, tokens, types, {"add_bos": rules.add_bos, "add_eos": False})
    if rules.in_characters:
        # Files of Gemma 4 say that they want no bos, but the models do (llama.cpp corrects the same).
        if name == "gemma4" and vocabulary.bos is not None:
            vocabulary = replace(vocabulary, add_bos=True)
        return TextPairTokenizer(vocabulary, merges, rules, name)
    return BytePairTokenizer(vocabulary, merges, rules, name)


def _rules(name: str | None) -> tuple[str, PreTokenizer]:
    """The rules of that name."""
    if name is not None and name in PRE_TOKENIZERS:
        return name, PRE_TOKENIZERS[name]
    found = "is missing" if name is None else f"is {shown(name)}, which is unknown"
    raise UnsupportedTokenizerFormat(
        f"tokenizer.ggml.pre {found}: by other rules the ids would differ from those that the model was trained with. "
        f"Known: {', '.join(sorted(PRE_TOKENIZERS))}"
    )


def _sentence_piece(metadata: Metadata, tokens: list[bytes]) -> SentencePieceTokenizer:
    defaults = {"bos": 1, "eos": 2, "unk": 0, "add_bos": True, "add_eos": False}
    types = _types(metadata, len(tokens))
    if types is None:
        types = np.full(len(tokens), TokenType.NORMAL, np.int32)
        types[[i for i, raw in enumerate(tokens) if re.fullmatch(rb"<0x[0-9A-F]{2}>", raw)]] = TokenType.BYTE
        draft = _vocabulary(metadata, tokens, types, defaults)
        kinds = {draft.unk: TokenType.UNKNOWN, draft.bos: TokenType.CONTROL, draft.eos: TokenType.CONTROL}
        for token, kind in kinds.items():
            if token is not None:
                types[token] = kind
    return SentencePieceTokenizer(
        _vocabulary(metadata, tokens, types, defaults),
        metadata.floats(_KEY + "scores"),
        metadata.bool(_KEY + "add_space_prefix", default=True),
        metadata.str(_KEY + "pre", default=""),
    )


def _types(metadata: Metadata, n_tokens: int) -> np.ndarray | None:
    """int32 [n_tokens], or None if the file does not say."""
    types = metadata.ints(_KEY + "token_type", default=None)
    if types is None:
        return None
    if len(types) != n_tokens:
        raise UnsupportedTokenizerFormat(
            f"tokenizer.ggml.token_type has {len(types)} entries; expected {n_tokens}, one per token"
        )
    if len(wrong := types[(types < min(TokenType)) | (types > max(TokenType))]):
        raise UnsupportedTokenizerFormat(
            f"tokenizer.ggml.token_type holds {wrong[0]}; expected {min(TokenType)} to {max(TokenType)}"
        )
    return types.astype(np.int32)


def _vocabulary(metadata: Metadata, tokens: list[bytes], types: np.ndarray, defaults: Mapping[str, int]) -> Vocabulary:
    n = len(tokens)

    def special_id(key: str, name: str) -> int | None:
        token = metadata.int(f"{_KEY}{key}_token_id", default=None)
        if token is None:
            token = defaults.get(name)
            return token if token is not None and token < n else None
        if not 0 <= token < n:
            raise UnsupportedTokenizerFormat(f"{_KEY}{key}_token_id is {token}; expected an id in [0, {n})")
        return token

    # A marker that ends a turn works as one even where a converter called it an ordinary or user-defined token
    # (only the unmistakable spelling <|…|>; llama.cpp corrects the same).
    for raw in _CLEAR_ENDS.intersection(tokens):
        types[tokens.index(raw)] = TokenType.CONTROL
    more_ends = {token for key in ("eot", "eom") if (token := special_id(key, "")) is not None}
    bos, eos = special_id("bos", "bos"), special_id("eos", "eos")

    def is_added(name: str, token: int | None) -> bool:
        in_file = metadata.bool(f"{_KEY}add_{name}_token", default=None)
        if in_file and token is None:
            raise UnsupportedTokenizerFormat(
                f"{_KEY}add_{name}_token asks for {name} in every text; "
                f"expected {_KEY}{name}_token_id, which is missing"
            )
        return bool(defaults[f"add_{name}"]) and token is not None if in_file is None else in_file

    return Vocabulary(
        tokens=tokens,
        types=types,
        bos=bos,
        eos=eos,
        unk=special_id("unknown", "unk"),
        more_ends=frozenset(more_ends),
        add_bos=is_added("bos", bos),
        add_eos=is_added("eos", eos),
        strip_right=_strip_right(metadata, tokens, types),
    )


def _strip_right(metadata: Metadata, tokens: list[bytes], types: np.ndarray) -> frozenset[int]:
    """The markers of Phi-3, whose files do not say so, take the white space after them along (as in llama.cpp)."""
    name = (metadata.str("general.name", default=None) or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    markers = np.isin(types, [TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN])
    plain = {b"<unk>", b"<s>", b"<|endoftext|>"}
    return frozenset(i for i, raw in enumerate(tokens) if (markers[i] or raw == b"</s>") and raw not in plain)
