"""An index over a stream of tokens that finds the longest suffix that has occurred before, and what followed it.

It is a suffix automaton that grows with the stream: a token costs constant time on average, and the match is exact and
of any length.  Two rules keep the stream from matching itself.  The cursor of the match moves with a token *before* the
automaton is extended by it, so that whatever it finds ended earlier.  And each state keeps as its sample an end
position that is known to lie before the end (SAM-Decoding, Hu et al. 2024, https://arxiv.org/abs/2411.10666).

Drafts follow the most recent earlier occurrence that the walks have met: in edited text the latest version of a passage
is the one worth copying.  A frozen index serves any number of cursors: that is how reference documents are matched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import checks
from ..errors import IndexDegraded, IndexFrozen, InvalidOption, StreamTooLong, TokenOutOfRange
from ..kernels import suffix

MAX_STREAM = 1 << 29
MAX_TOKEN = (1 << 31) - 1
_EMPTY = np.empty(0, np.int32)
FEW = 64  # no step commits more tokens


@dataclass(slots=True)
class Cursor:
    """A place in a frozen index: the longest suffix of what it was shown that occurs in the index.

    state : of the automaton.  length : tokens of that suffix.
    """

    state: int = 0
    length: int = 0


class SamIndex:
    """Suffix automaton over a growing stream of tokens.

    Parameters
    ----------
    min_match : shortest match that `draft` continues, at least 1.
    max_draft : longest draft that `draft` returns when no limit is given, in tokens.

    Raises
    ------
    InvalidOption : one of them is below 1.

    Notes
    -----
    Ids are integers in [0, 2**31); a stream has at most 2**29.  An append that fails poisons the index: every question
    is then answered with nothing, and further appends raise IndexDegraded.  A half-applied append must not draft.
    """

    __slots__ = ("_buffers", "_counts", "_cursor", "_frozen", "degraded", "max_draft", "min_match")

    def __init__(self, min_match: int = 2, max_draft: int = 16) -> None:
        self.min_match = checks.integer("min_match", min_match, 1)
        self.max_draft = checks.integer("max_draft", max_draft, 1)
        states = np.empty((64, 6), np.int32)
        states[0] = (-1, 0, -1, -1, -1, -1)
        # states, table of edges, stream
        self._buffers = states, np.full((32, 4), -1, np.int32), np.empty(64, np.int32)
        self._counts = np.zeros(7, np.int64)
        self._counts[suffix.STATES] = 1
        self._cursor = np.zeros(2, np.int64)
        self._frozen = False
        self.degraded = False
        suffix.appender(), suffix.refiller(), suffix.follower()  # compiled now, not in the middle of a decode step

    def __len__(self) -> int:
        """Tokens appended."""
        return int(self._counts[suffix.TOKENS])

    @property
    def state_count(self) -> int:
        """States of the automaton, at most 2 n + 1."""
        return int(self._counts[suffix.STATES])

    @property
    def transition_count(self) -> int:
        """Edges of the automaton, at most 3 n."""
        return int(self._counts[suffix.EDGES])

    @property
    def byte_size(self) -> int:
        """Bytes held."""
        return sum(b.nbytes for b in self._buffers)

    @property
    def frozen(self) -> bool:
        """Whether appends have ended, so that cursors are safe."""
        return self._frozen

    @property
    def last_token(self) -> int:
        """The newest token, -1 before the first."""
        n = len(self)
        return int(self._buffers[2][n - 1]) if n else -1

    def tokens(self) -> np.ndarray:
        """A copy of the stream: int32 [n]."""
        return self._buffers[2][: len(self)].copy()

    # --- growing ------------------------------------------------------------------------------------------------------

    def append(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append tokens; constant time each on average.

        Raises
        ------
        IndexFrozen : the index is frozen.
        IndexDegraded : an earlier append failed.
        TokenOutOfRange : an id that is no integer in [0, 2**31); the index is degraded from now on.
        StreamTooLong : more than 2**29 tokens; likewise.
        """
        if self._frozen:
            raise IndexFrozen("a frozen index takes no more tokens: its cursors would point into changed states")
        if self.degraded:
            raise IndexDegraded("an earlier append to this index failed: it answers nothing and takes no more tokens")
        self.degraded = True
        new = as_ids(tokens)
        if len(self) + len(new) > MAX_STREAM:
            raise StreamTooLong(
                f"{len(self)} and {len(new)} tokens are more than the {MAX_STREAM} that an index can number"
            )
        append, done = suffix.appender(), 0
        while done < len(new):
            done += append(new[done:], *self._buffers, self._counts)
            if done < len(new):
                self._grow(len(new) - done)
        self.degraded = False

    def _grow(self, tokens: int) -> None:
        """Enlarge whichever buffer is full."""
        states, table, stream = self._buffers
        held, used = len(self), self.state_count
        if held + tokens > len(stream):
            longer = np.empty(max(held + tokens, 3 * len(stream) // 2), np.int32)
            longer[:held] = stream[:held]
            stream = longer
        elif used + 2 > len(states):
            more = np.empty((3 * len(states) // 2 + 2, states.shape[1]), np.int32)
            more[:used] = states[:used]
            states = more
        else:
            wider = np.full((2 * len(table), table.shape[1]), -1, np.int32)
            suffix.refiller()(table, wider)
            table = wider
        self._buffers = states, table, stream

    def freeze(self) -> None:
        """End appends, for good: cursors may be taken now."""
        self._frozen = True

    # --- asking -------------------------------------------------------------------------------------------------------

    def match_len(self) -> int:
        """Length of the longest suffix of the stream that has also occurred ending earlier."""
        return 0 if self.degraded else int(self._counts[suffix.MATCH_LEN])

    def draft(self, limit: int | None = None, overlap: bool = False) -> list[int]:
        """What followed the match's most recent earlier occurrence: at most `limit` tokens, none for a short match.

        Parameters
        ----------
        limit : default: `max_draft`.
        overlap : go on past the end of the stream where its end has repeated itself at least once: "a b a b" goes on
            with "a b a b …".  Without, a text that repeats one token drafts a single one.
        """
        limit = self.max_draft if limit is None else limit
        found = self._continue(Cursor(int(self._counts[suffix.MATCH_STATE]), self.match_len()), limit)
        if overlap and 0 < len(found) < limit and self.match_len() >= len(found):
            found = (found * -(-limit // len(found)))[:limit]  # fewer than asked: they reach the end of the stream
        return found

    def advance(self, cursor: Cursor, tokens: Sequence[int] | np.ndarray) -> None:
        """Show a cursor the next tokens of its stream; the index does not change.

        Raises
        ------
        IndexFrozen : the index is not frozen.
        TokenOutOfRange : an id that is no integer in [0, 2**31).
        """
        if not self._frozen:
            raise IndexFrozen("cursors need a frozen index: appends split states under them")
        self._check_cursor(cursor)
        new = as_ids(tokens)
        if self.degraded or not len(new):
            return
        self._cursor[:] = cursor.state, cursor.length
        suffix.follower()(new, *self._buffers[:2], self._cursor)
        cursor.state, cursor.length = int(self._cursor[0]), int(self._cursor[1])

    def draft_from(self, cursor: Cursor, limit: int | None = None) -> list[int]:
        """What follows a cursor's match in a frozen index: at most `limit` tokens, none for a short match."""
        if not self._frozen:
            raise IndexFrozen("cursors need a frozen index: appends split states under them")
        self._check_cursor(cursor)
        return self._continue(cursor, limit)

    def _check_cursor(self, cursor: Cursor) -> None:
        if not 0 <= cursor.state < self.state_count:
            raise InvalidOption(f"the cursor's state {cursor.state} is not one of this index's {self.state_count}")

    def _continue(self, cursor: Cursor, limit: int | None) -> list[int]:
        limit = self.max_draft if limit is None else limit
        if self.degraded or cursor.length < self.min_match or limit < 1:
            return []
        states, _, stream = self._buffers
        start = int(states[cursor.state, suffix.SAMPLE]) + 1
        return stream[start : min(start + limit, len(self))].tolist()

    # --- as a source of drafts ----------------------------------------------------------------------------------------

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """See `DraftSource`; nothing if the context does not end with the newest token that was observed."""
        if not len(context) or context[-1] != self.last_token:
            return []
        return self.draft(min(limit, self.max_draft))

    def observe(self, committed: Sequence[int] | np.ndarray) -> None:
        """See `DraftSource`; an append that fails leaves a degraded index, which drafts nothing, and raises nothing."""
        with contextlib.suppress(IndexDegraded, IndexFrozen, StreamTooLong, TokenOutOfRange):
            self.append(committed)


class FrozenSource:
    """A draft source of its own over one frozen index, for one stream.

    Parameters
    ----------
    index : SamIndex, frozen.
    """

    __slots__ = ("cursor", "index")

    def __init__(self, index: SamIndex) -> None:
        if not index.frozen:
            raise IndexFrozen("a FrozenSource needs a frozen index; call freeze() when the document is complete")
        self.index, self.cursor = index, Cursor()

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """See `DraftSource`."""
        return self.index.draft_from(self.cursor, min(limit, self.index.max_draft))

    def observe(self, committed: Sequence[int]) -> None:
        """See `DraftSource`."""
        self.index.advance(self.cursor, committed)

    def restart(self) -> None:
        """See `DraftSource`."""
        self.cursor = Cursor()


def as_ids(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return tokens as int32 [n].

    Raises
    ------
    TokenOutOfRange : not a flat sequence of integers in [0, 2**31).
    """
    # the few tokens of a step: NumPy's reductions would take longer than the append
    few = type(tokens) is list and 0 < len(tokens) <= FEW and all(type(t) is int for t in tokens)
    if few and min(tokens) >= 0 and max(tokens) <= MAX_TOKEN:
        return np.array(tokens, np.int32)
    ids = np.asarray(tokens)
    if ids.size == 0:
        return _EMPTY
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TokenOutOfRange(f"tokens must be a flat sequence of integers, got {ids.dtype} of shape {list(ids.shape)}")
    low, high = int(ids.min()), 0 if ids.dtype == np.int32 else int(ids.max())
    if low < 0 or high > MAX_TOKEN:
        raise TokenOutOfRange(f"token ids must be integers in [0, {MAX_TOKEN + 1}), got {low if low < 0 else high}")
    return np.ascontiguousarray(ids, dtype=np.int32)
