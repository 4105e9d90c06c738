"""Drafts from logits that verification computed anyway.

A verify computes a whole row of logits for each position and uses one token of it.  The best of the others are kept: a
row of candidates for each token of the vocabulary, "what came, or nearly came, after this token last time".  A draft
follows first candidates from the newest token (Token Recycling, Luo et al. 2024, https://arxiv.org/abs/2408.08696).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .. import checks
from .source import TopKRow

EMPTY = -1


class TokenRecycling:
    """A matrix [vocab, k] of the latest next-token candidates.

    Parameters
    ----------
    vocab : rows, at least 1.
    k : candidates per token, at least 1.
    chain : longest draft, in tokens, at least 1.

    Raises
    ------
    InvalidOption : one of them is below 1.
    """

    __slots__ = ("_last", "_table", "chain")

    def __init__(self, vocab: int, k: int = 8, chain: int = 8) -> None:
        self._table = np.full((checks.integer("vocab", vocab, 1), checks.integer("k", k, 1)), EMPTY, np.int32)
        self._last = EMPTY
        self.chain = checks.integer("chain", chain, 1)

    @property
    def vocab(self) -> int:
        """Rows of the matrix."""
        return self._table.shape[0]

    @property
    def byte_size(self) -> int:
        """Bytes held."""
        return self._table.nbytes

    def top_k_of(self, token: int) -> list[int]:
        """The candidates after a token, best first; none if it was not seen or is out of range."""
        return [t for t in self._table[token].tolist() if t != EMPTY] if self._inside(token) else []

    def _inside(self, token: int) -> bool:
        return 0 <= token < self._table.shape[0]

    def update(self, token: int, top_k: Iterable[int]) -> None:
        """Replace a token's candidates by at most k others; ids out of range are left out."""
        if not self._inside(token):
            return
        width = self._table.shape[1]
        kept = [int(t) for t in top_k if self._inside(t)][:width]
        self._table[token] = kept + [EMPTY] * (width - len(kept))

    def promote(self, token: int, follower: int) -> None:
        """Make `follower` the first candidate after `token`; the others move down, the last one falls out."""
        if not (self._inside(token) and self._inside(follower)):
            return
        if self._table.item(token, 0) != follower:
            row = self._table[token]
            others = [t for t in row.tolist() if t != follower]
            row[:] = [follower, *others, EMPTY][: len(row)]

    def draft_chain(self, token: int, limit: int) -> list[int]:
        """Follow first candidates from `token`, until there is none or `limit` is reached."""
        draft: list[int] = []
        first = self._table.item
        while len(draft) < limit and self._inside(token):
            token = first(token, 0)
            if token == EMPTY:
                break
            draft.append(token)
        return draft

    # --- as a source of drafts ----------------------------------------------------------------------------------------

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """See `DraftSource`."""
        return self.draft_chain(context[-1], min(limit, self.chain)) if len(context) else []

    def observe(self, committed: Sequence[int]) -> None:
        """See `DraftSource`: the token that really followed goes before those that had high logits."""
        for token in committed:
            self.promote(self._last, token)
            self._last = token

    def observe_top_k(self, rows: Sequence[TopKRow]) -> None:
        """See `DraftSource`."""
        for row in rows:
            self.update(row.token, row.top_k.tolist())

    def restart(self) -> None:
        """See `DraftSource`: candidates are kept, the last token is forgotten."""
        self._last = EMPTY
