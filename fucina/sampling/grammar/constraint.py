"""One stream's place in a grammar: which tokens may follow, and what must."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import MatcherFailed, TokenOutOfRange
from .llg import Program, Vocabulary, failure

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from ...tokenizers import Tokenizer

SPECIAL = b"\xff"  # begins a special token in what llguidance forces: such a token is not text
LONGEST = 256  # forced bytes that are drafted at most


class Constraint:
    """The place of one text in its grammar: a `LogitProcessor` with structure.  Made by `Grammar.constraint`.

    It belongs to one stream and one thread.  `process` forbids every token that cannot go on to a text of the grammar;
    an end token is allowed once the text is whole.  Nothing is ever taken back: only chosen tokens are committed.

    Parameters
    ----------
    program : of the grammar.
    vocabulary : that it is compiled for.
    tokenizer : that writes forced text.
    matcher : where the text is; default: at its beginning.
    """

    __slots__ = (
        "_address", "_bytes", "_ended", "_mask", "_matcher", "_program", "_ready", "_spelled", "_tokenizer", "_vocabulary",
    )  # fmt: skip

    def __init__(
        self, program: Program, vocabulary: Vocabulary, tokenizer: Tokenizer, matcher: LLMatcher | None = None
    ) -> None:
        self._program, self._vocabulary, self._tokenizer = program, vocabulary, tokenizer
        self._mask = np.zeros((vocabulary.size + 31) // 32, np.uint32)
        # asked once: caches are cold after a pass
        self._address, self._bytes = self._mask.ctypes.data, self._mask.nbytes
        self._matcher = vocabulary.matcher(program) if matcher is None else matcher
        self._ready = self._ended = False
        self._spelled: list[int] | None = None  # the tokens of `_forced`: a drafter asks several times per token

    # --- as a processor -----------------------------------------------------------------------------------------------

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Set the logits of all tokens that may not follow to -inf.

        Raises
        ------
        MatcherFailed : nothing may follow although the text is not whole, or a limit was reached.
        """
        bits = np.unpackbits(
            self.mask().view(np.uint8), count=min(len(logits), self._vocabulary.size), bitorder="little"
        )
        np.copyto(logits[: len(bits)], -np.inf, where=bits == 0)
        logits[len(bits) :] = -np.inf

    def mask(self) -> np.ndarray:
        """Return the mask of the next token, uint32 [words], see `LogitProcessor`; it is valid until the next commit.

        Raises as `process`.
        """
        self._look()
        return self._mask

    def permits(self, token: int) -> bool:
        """Return whether the mask allows a token, without computing it."""
        if self._ready:
            return token < self._vocabulary.size and bool(self._mask[token >> 5] >> np.uint32(token & 31) & 1)
        if token in self._vocabulary.ends:
            return not self._ended and self.accepting
        return not self._ended and token < self._vocabulary.size and self._matcher.validate_tokens([token]) == 1

    def commit(self, token: int) -> None:
        """Enter a chosen token.

        Raises
        ------
        MatcherFailed : the grammar does not allow it here.  TokenOutOfRange : the vocabulary has no such token.
        """
        if not 0 <= token < self._vocabulary.size:
            raise TokenOutOfRange(f"token id {token} is outside the vocabulary of {self._vocabulary.size}")
        self._ready, self._spelled = False, None
        if token in self._vocabulary.ends and (self._ended or self._matcher.is_accepting()):
            self._ended = True
            return
        if self._ended or token in self._vocabulary.ends or not self._matcher.consume_token(token):
            reason = failure(self._matcher)
            raise MatcherFailed(f"the grammar does not allow token {token} here{f': {reason}' if reason else ''}")

    def reset(self) -> None:
        """Begin another text."""
        self._matcher = self._vocabulary.matcher(self._program)
        self._ready = self._ended = False
        self._spelled = None

    # --- structure: what must follow ----------------------------------------------------------------------------------

    def forced_tokens(self, limit: int = 64) -> list[int]:
        """Return tokens that spell what must follow, as the tokenizer would write it; at most `limit`.

        The text is forced, its tokens are not: the mask allows other spellings of it.  What a longer token could still
        swallow is left out, see `tail_token`.
        """
        tokens = self._forced()[:-1]
        return tokens[: self.valid_prefix(tokens[:limit])]

    def tail_token(self) -> int | None:
        """Return the token that spells the rest of the forced text; a longer one may take its place."""
        return next(reversed(self._forced()), None)

    def _forced(self) -> list[int]:
        """The tokenizer's ids of the forced text, the one that a longer token could replace among them."""
        if self._spelled is None:
            self._spelled = self._spell()
        return self._spelled

    def _spell(self) -> list[int]:
        if self._ended or self._matcher.is_stopped():
            return []
        forced = bytes(self._matcher.compute_ff_bytes()).partition(SPECIAL)[0]
        return self._written(forced) if 0 < len(forced) <= LONGEST else self._written(forced[:LONGEST])[:-1]

    def _written(self, text: bytes) -> list[int]:
        """The tokenizer's ids of a text that goes on from another one."""
        with contextlib.suppress(UnicodeDecodeError):
            text.decode()  # ends inside a character: no tokens, rather than others than would come
            return self._ids(text)
        return []

    def _ids(self, text: bytes) -> list[int]:
        ids = self._tokenizer.encode(text, special=False)
        extra = sum(len(self._tokenizer.piece(i)) for i in ids) - len(text)
        at = 0
        while extra > 0 and at < len(ids):  # a space that SentencePiece puts in front of every text
            extra -= len(self._tokenizer.piece(ids[at]))
            at += 1
        return ids[at:] if extra == 0 else []

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first on, the grammar would allow here.  Changes nothing."""
        if self._ended or self._matcher.is_stopped() or not tokens:
            return 0
        known = next((i for i, token in enumerate(tokens) if not 0 <= token < self._vocabulary.size), len(tokens))
        return int(self._matcher.validate_tokens([int(token) for token in tokens[:known]]))

    def ahead(self, tokens: Sequence[int]) -> Constraint | None:
        """Return this constraint as it would be after `tokens`; None if they may not follow, or nothing may after them."""
        if self._ended or not tokens or self.valid_prefix(tokens) < len(tokens):
            return None
        matcher = self._matcher.deep_copy()
        if not matcher.consume_tokens([int(token) for token in tokens]):
            return None
        return Constraint(self._program, self._vocabulary, self._tokenizer, matcher)

    # --- what is reached ----------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether the text so far is a sentence of the grammar; it may go on nevertheless."""
        return failure(self._matcher) is None and bool(self._matcher.is_accepting())

    @property
    def ended(self) -> bool:
        """Whether an end token was committed."""
        return self._ended

    @property
    def complete(self) -> bool:
        """Whether the text is a sentence of the grammar, and over: it was ended, or nothing can follow."""
        return self.accepting and (self._ended or bool(self._matcher.is_stopped()))

    def clone(self) -> Constraint:
        """Return a constraint of the same grammar at the beginning of a text, for another stream."""
        return Constraint(self._program, self._vocabulary, self._tokenizer)

    def _look(self) -> None:
        """Compute the mask of the next token, unless that was done."""
        if self._ready:
            return
        if self._ended:
            raise MatcherFailed("the text was ended, and one more token is asked for")
        self._matcher.unsafe_compute_mask_ptr(self._address, self._bytes)
        reason = failure(self._matcher)
        if reason is not None:
            raise MatcherFailed(f"the text cannot go on: {reason}")
        self._ready = True
