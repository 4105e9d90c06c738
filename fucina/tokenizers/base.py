"""What every tokenizer does: encoding the text between markers, decoding to bytes and text, streaming."""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from functools import cached_property

from ..checks import shown
from ..errors import TokenOutOfRange
from .added import AddedMatcher
from .markers import ASSISTANT, USER, MarkerMatcher, barred_writers
from .streaming import StreamDecoder
from .texts import checked_text, outside
from .vocabulary import END_MARKERS, TokenType, UnencodableBytes, Vocabulary, spelling

_TEMPLATES = 16  # whose markers are remembered


class Tokenizer(ABC):
    """Text <-> token ids.  Made by `fucina.tokenizers.load_tokenizer`.

    Attributes
    ----------
    vocabulary
        The tokens as the file has them.
    n_vocab
        Number of tokens; ids are 0 … n_vocab - 1.
    bos, eos
        Id of the token that begins a text, that ends it; or None.
    eog_ids
        Ids that end a generation: `eos`, and known control markers such as `<end_of_turn>`.
    add_bos, add_eos
        Whether the model wants `bos` in front of a prompt (see `encode_prompt`), `eos` after a text.
    pre
        Name of the pre-tokenizer rules that the file asks for ("" if none).
    """

    def __init__(self, vocabulary: Vocabulary, pre: str = "") -> None:
        self.vocabulary = vocabulary
        self.n_vocab = len(vocabulary.tokens)
        self.bos, self.eos = vocabulary.bos, vocabulary.eos
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.pre = pre
        self._silent = frozenset(vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED))
        self._control = self._markers(TokenType.CONTROL, TokenType.UNKNOWN)
        self._user = self._markers(TokenType.USER_DEFINED)
        ends = {self._control[name] for name in END_MARKERS & self._control.keys()}
        ends |= vocabulary.more_ends
        self.eog_ids = frozenset(ends if self.eos is None else ends | {self.eos})
        self._matchers: dict[bool, MarkerMatcher | AddedMatcher] = {}
        self._barred: dict[str, dict[int, bytes]] = {}
        self._pieces: dict[int, bytes] = {}

    def _markers(self, *types: TokenType) -> dict[str, int]:
        """Spelling -> id of the tokens of these types (the first id of equal spellings)."""
        tokens = self.vocabulary.tokens
        return {spelling(tokens[i]): i for i in reversed(self.vocabulary.of_types(*types)) if tokens[i]}

    @cached_property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that name the vocabulary: with the same, an id means the same text."""
        return self.vocabulary.fingerprint(self.pre)

    # --- encoding -----------------------------------------------------------------------------------------------

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        """Token ids of a text, without any policy about BOS or EOS.

        Parameters
        ----------
        text
            Text, or bytes (which need not be valid UTF-8: each byte is kept as it is).
        special
            True: control markers written in the text (`<|im_end|>`) become their one token.  False: they are ordinary
            text, which is right for text that comes from a user.  Tokens that the vocabulary calls *user defined*
            (Gemma's runs of spaces, `<table>`) are matched in both cases; they control nothing.

        Raises
        ------
        InvalidText
            A str with an unpaired surrogate (half of a pair): it is not Unicode text.  Nothing is replaced in silence.
        TypeError
            Neither str nor bytes.

        Warns
        -----
        UnencodableBytes
            Bytes that no token spells were left out (as llama.cpp does, without a warning).
        """
        return self._join(self._matcher(bool(special)).split(checked_text(text)))

    def encode_rendered(self, text: str, writers: bytes, barred: Mapping[int, bytes]) -> list[int]:
        """Token ids of a rendered conversation, in which markers in messages are ordinary text.

        Where no message spells a marker, these are the ids of `encode(text)`.

        Parameters
        ----------
        text
            Text.
        writers
            Who wrote each character: `markers.TEMPLATE`, `USER` or `ASSISTANT`.
        barred
            By token id the writers of whom no character may be part of that token; see `barred`.

        Raises
        ------
        InvalidText
            `text` has an unpaired surrogate.
        """
        parts = self._matcher(True).split(checked_text(text), writers, barred)
        return self._join(parts, barred.keys() & self._user.values())

    def barred(self, template: str) -> dict[int, bytes]:
        """Who may not write which tokens in a conversation, under a chat template with this source.

        Control tokens, and those that begin or end texts, are written by the template alone; see
        `markers.barred_writers` for user-defined ones.
        """
        known = self._barred.get(template)
        if known is not None:
            return known
        found = {i: barred_writers(text, template) for text, i in self._user.items()}
        ends = self.eog_ids.intersection(self._user.values())
        if self.bos is not None and self.bos in self._user.values():
            ends |= {self.bos}
        found |= dict.fromkeys({*self._control.values(), *ends}, bytes([USER, ASSISTANT]))
        if len(self._barred) >= _TEMPLATES:
            self._barred.clear()
        self._barred[template] = {i: writers for i, writers in found.items() if writers}
        return self._barred[template]

    def _matcher(self, special: bool) -> MarkerMatcher | AddedMatcher:
        matcher = self._matchers.get(special)
        if matcher is None:
            if self.vocabulary.added is not None:
                matcher = self.vocabulary.added.matcher(special)
            else:
                markers = self._user | self._control if special else self._user
                matcher = MarkerMatcher(markers, self.vocabulary.strip_right)
            self._matchers[special] = matcher
        return matcher

    def _join(self, parts: Iterable[str | int], markers_only: Set[int] = frozenset()) -> list[int]:
        """Token ids of the markers, and of the raw text between them, which does not become one of `markers_only`."""
        ids: list[int] = []
        after_marker = True  # the start of a text counts as one (this matters for SentencePiece's space prefix)
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                start = len(ids)
                self._encode_raw(part, after_marker, ids)
                if not markers_only.isdisjoint(ids[start:]):  # merging can lead to a user-defined token, too
                    ids[start:] = self._spelled_out(ids[start:], markers_only)
            after_marker = isinstance(part, int)
        return ids

    def _spelled_out(self, ids: list[int], refused: Set[int]) -> list[int]:
        """The ids with each refused token spelled letter by letter."""
        spelled: list[int] = []
        for token in ids:
            if token not in refused:
                spelled.append(token)
                continue
            for character in spelling(self.piece(token)):
                self._encode_raw(character, False, spelled)
        return spelled

    def encode_prompt(self, text: str | bytes, special: bool = True) -> list[int]:
        """`encode`, and BOS in front if the model wants it (`add_bos`) and the text does not begin with it already."""
        return self.with_bos(self.encode(text, special))

    def with_bos(self, ids: list[int]) -> list[int]:
        """`ids` with BOS in front if the model wants it (`add_bos`) and they do not begin with it already."""
        if not self.add_bos or self.bos is None or ids[:1] == [self.bos]:
            return ids
        return [self.bos, *ids]

    @abstractmethod
    def _encode_raw(self, text: str, after_marker: bool, ids: list[int]) -> None:
        """Append the ids of a text without markers (surrogates U+DC80–U+DCFF stand for single bytes)."""

    def _warn_unencodable(self, missing: Iterable[int]) -> None:
        listed = ", ".join(f"0x{byte:02X}" for byte in sorted(set(missing)))
        warnings.warn(
            f"no token of this vocabulary spells the byte {listed}: left out of the ids",
            UnencodableBytes,
            stacklevel=outside(),
        )

    # --- decoding -----------------------------------------------------------------------------------------------

    def piece(self, token: int, special: bool = True) -> bytes:
        """The bytes that a token prints; with special=False control, unknown and unused tokens print nothing.

        Raises
        ------
        TokenOutOfRange
            The id is not in [0, n_vocab).
        """
        token = self._checked_id(token)
        if not special and token in self._silent:
            return b""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._print(token)
        return known

    def first_piece(self, token: int, special: bool = True) -> bytes:
        """`piece` for the first token of a text (SentencePiece drops a space that encoding put there)."""
        return self.piece(token, special)

    @abstractmethod
    def _print(self, token: int) -> bytes:
        """Return the bytes of a token, whatever its type."""

    def decode_bytes(self, ids: Iterable[int], special: bool = True) -> bytes:
        """The bytes that the tokens spell, which need not be valid UTF-8."""
        parts: list[bytes] = []
        for token in ids:
            parts.append(self.piece(token, special) if parts else self.first_piece(token, special))
        return b"".join(parts)

    def decode(self, ids: Iterable[int], special: bool = True) -> str:
        """The text that the tokens spell; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids
            Token ids.
        special
            True prints control tokens too, so that decode(encode(text)) == text.  False leaves them out, which is what
            a reader wants to see.

        Raises
        ------
        TokenOutOfRange
            An id is not in [0, n_vocab).
        """
        return self.decode_bytes(ids, special).decode("utf-8", "replace")

    def stream(self, special: bool = False, begins: bool = True) -> StreamDecoder:
        """A decoder for tokens that arrive one by one.

        `begins` says whether the first of them begins a text (where SentencePiece may drop a space) or continues one.
        """
        return StreamDecoder(self, special, begins)

    # --- asking about tokens ------------------------------------------------------------------------------------

    def token_id(self, text: str) -> int | None:
        """Id of the one token that prints this text (`"<|im_end|>"`, `" hello"`), or None."""
        text = checked_text(text)
        for table in (self._control, self._user):
            if text in table:
                return table[text]
        return self._find_normal(text)

    @abstractmethod
    def _find_normal(self, text: str) -> int | None:
        """Id of an ordinary token by the text that it prints."""

    @property
    def control_markers(self) -> dict[str, int]:
        """Text and id of every control token, a new dict: what `special=True` parses and a chat template writes."""
        return dict(self._control)

    def is_special(self, token: int) -> bool:
        """True for control, unknown and unused tokens: those that print nothing with special=False."""
        return self._checked_id(token) in self._silent

    def _checked_id(self, token: int) -> int:
        try:
            token = operator.index(token)
        except TypeError:
            raise TypeError(f"a token id is an integer, not {type(token).__name__}") from None
        if not 0 <= token < self.n_vocab:
            raise TokenOutOfRange(f"token id {shown(token)} is not in [0, {self.n_vocab}), the size of this vocabulary")
        return token

    def __repr__(self) -> str:
        rules = f", pre={self.pre!r}" if self.pre else ""
        return f"<{type(self).__name__}: {self.n_vocab} tokens{rules}>"
