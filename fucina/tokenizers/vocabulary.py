"""The vocabulary of a model: its tokens, what each is for, and the warnings that a vocabulary can cause."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .added import AddedTokens


class TokenizerWarning(UserWarning):
    """Base of the warnings about tokenizers."""


class UnencodableBytes(TokenizerWarning):
    """A text holds bytes that no token of the vocabulary spells; they were left out of the ids."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`: what a vocabulary entry is for."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Markers that end a generation.  Only control tokens count: `</s>` is the end of the text in one vocabulary and the
# HTML tag of struck-out text in another.
END_MARKERS = frozenset(
    "<|endoftext|> <|im_end|> <|eot_id|> <|eom_id|> <|end_of_text|> <|end|> <|return|> <|call|> <|endofturn|> <|eot|>"
    " <|user_end|> <end_of_turn> <turn|> <end_of_utterance> <eos> </s> <EOT> [EOT] [EOS] <|END_OF_TURN_TOKEN|>"
    " <｜end▁of▁sentence｜> <|end▁of▁sentence|> [e~[ <|content_end|>".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens of a model and what its file says about them.

    Attributes
    ----------
    tokens
        Spelling of each token as it is in the file.
    types
        int32 [n_vocab], values of `TokenType`.
    bos, eos, unk
        Ids of the tokens that begin a text, end it, and stand for what cannot be spelled; or None.
    more_ends
        Further ids that the file calls ends (of a turn, of a message).
    add_bos, add_eos
        Whether the model was trained on texts that begin with `bos`, that end with `eos`.
    strip_right
        Markers that take the white space after them along.
    out_of_reach
        Tokens that only a marker in the text becomes, never a word.
    added
        Added tokens with rules of their own, where the file has them; else markers are found as llama.cpp does it.
    """

    tokens: list[bytes]
    types: np.ndarray
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    more_ends: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    strip_right: frozenset[int] = frozenset()
    out_of_reach: frozenset[int] = frozenset()
    added: AddedTokens | None = None

    def index(self, hidden: Iterable[TokenType], first_wins: bool) -> dict[bytes, int]:
        """Spelling -> id of all tokens in reach but those of the hidden types; of equal ones the first or the last wins."""
        keep = np.flatnonzero(~np.isin(self.types, list(hidden))).tolist()
        if self.out_of_reach:
            keep = [token for token in keep if token not in self.out_of_reach]
        if first_wins:
            keep.reverse()
        return dict(zip(map(self.tokens.__getitem__, keep), keep, strict=True))

    def fingerprint(self, rules: str) -> bytes:
        """Sixteen bytes that name the spelling and the type of every token, and the rules that split a text."""
        h = hashlib.blake2b(rules.encode("utf-8", "surrogateescape"), digest_size=16, person=b"fucina.tokens")
        h.update(np.array([len(token) for token in self.tokens], "<u4").tobytes())
        h.update(self.types.astype("<i4").tobytes())
        h.update(b"".join(self.tokens))
        return h.digest()

    def of_types(self, *types: TokenType) -> list[int]:
        """Ids of the tokens of these types, ascending."""
        return np.flatnonzero(np.isin(self.types, types)).tolist()


def spelling(raw: bytes) -> str:
    """Bytes as a str that keeps every byte: each byte that is not UTF-8 becomes one surrogate U+DC80–U+DCFF."""
    return raw.decode("utf-8", "surrogateescape")


def raw_bytes(text: str) -> bytes:
    """The bytes that `spelling` was made from."""
    return text.encode("utf-8", "surrogateescape")
