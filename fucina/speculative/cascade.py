"""The source of drafts that the engine uses: the text itself, reference documents, recycled logits.

The source with the longest match drafts, the text itself at a tie.  The longer the match, the longer the draft.  Where
nothing matches, the recycling chain drafts.  A source whose drafts are rarely accepted is muted for a while; it goes on
observing meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import checks
from ..engine.drafts import common_prefix
from .odds import CHAIN_PRIOR, HitRates
from .recycling import EMPTY, TokenRecycling
from .sam_index import FEW, Cursor, SamIndex, as_ids
from .source import TopKRow

GATE_WINDOW = 64
UNBOUNDED = 1 << 30


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """The policy of a SpeculationIndex.

    Attributes
    ----------
    beta : drafted tokens per token of match: a match of n drafts beta (1 + n).
    min_match : shortest match that drafts.
    recycling_chain : longest draft of the recycling chain; 0 turns it off.
    mute_acceptance : part of the latest 64 drafted tokens that must have been accepted.
    mute_commits : committed tokens for which a source below that is muted.
    accounting_min_draft : a shorter draft is not verified by the decoder, and so not counted.
    conversation : whether the text itself drafts.

    Raises
    ------
    InvalidOption : a value is out of its range.
    """

    beta: int = 2
    min_match: int = 2
    recycling_chain: int = 8
    mute_acceptance: float = 0.20
    mute_commits: int = 128
    accounting_min_draft: int = 2
    conversation: bool = True

    def __post_init__(self) -> None:
        lowest = {"beta": 1, "min_match": 1, "recycling_chain": 0, "mute_commits": 0, "accounting_min_draft": 1}
        for name, low in lowest.items():
            checks.integer(name, getattr(self, name), low)
        checks.real("mute_acceptance", self.mute_acceptance, 0, 1)


class SourceGate:
    """What became of one source's drafts: totals, and a window over the latest 64 drafted tokens."""

    __slots__ = ("_options", "_ring", "accepted", "drafted", "muted_for")

    def __init__(self, options: CascadeOptions) -> None:
        self._options = options
        self._ring: deque[bool] = deque(maxlen=GATE_WINDOW)
        self.drafted = self.accepted = 0
        self.muted_for = 0

    @property
    def muted(self) -> bool:
        """Whether the source may not draft now."""
        return self.muted_for > 0

    def record(self, drafted: int, accepted: int) -> None:
        """Enter a verified draft; a full window with too little in it mutes the source."""
        self.drafted += drafted
        self.accepted += accepted
        self._ring.extend(i < accepted for i in range(drafted))
        if len(self._ring) == GATE_WINDOW and sum(self._ring) < self._options.mute_acceptance * GATE_WINDOW:
            self.muted_for = self._options.mute_commits
            self._ring.clear()

    def count_down(self, committed: int) -> None:
        """Count committed tokens: a muted source comes nearer to its end of silence."""
        if self.muted_for:
            self.muted_for = max(self.muted_for - committed, 0)


class Reference:
    """A document that the model may quote: its index, how far the text matches it, and its gate."""

    __slots__ = ("cursor", "gate", "index")

    def __init__(self, tokens: Sequence[int] | np.ndarray, options: CascadeOptions) -> None:
        self.index = SamIndex(options.min_match, UNBOUNDED)
        self.index.append(tokens)
        self.index.freeze()
        self.cursor, self.gate = Cursor(), SourceGate(options)


class _Proposed:
    """The latest draft, verified or not, for the odds of later ones."""

    __slots__ = ("match", "rates", "tokens")

    def __init__(self, rates: HitRates, match: int, tokens: list[int]) -> None:
        self.rates, self.match, self.tokens = rates, match, tokens


class _Pending:
    """A draft on its way to be verified."""

    __slots__ = ("drafted", "gate", "tokens")

    def __init__(self, gate: SourceGate, draft: list[int]) -> None:
        self.gate, self.tokens, self.drafted = gate, draft[:GATE_WINDOW], len(draft)


class SpeculationIndex:
    """Drafts from the text so far, from references, and from recycled logits.

    Parameters
    ----------
    vocab : size of the vocabulary.
    options : CascadeOptions, optional

    Attributes
    ----------
    conversation : SamIndex over every committed token.
    references : list of Reference, in the order they were added.
    recycling : TokenRecycling
    gates : of "conversation" and "recycling"; a reference has its own.
    """

    def __init__(self, vocab: int, options: CascadeOptions | None = None) -> None:
        self.options = CascadeOptions() if options is None else options
        self.conversation = SamIndex(self.options.min_match, UNBOUNDED)
        self.references: list[Reference] = []
        self.recycling = TokenRecycling(vocab)
        self.gates = {"conversation": SourceGate(self.options), "recycling": SourceGate(self.options)}
        self._matches, self._chains = HitRates(), HitRates(CHAIN_PRIOR)
        self._pending: _Pending | None = None
        self._proposed: _Proposed | None = None
        self._promotions: list[tuple[int, int]] = []
        self._last = EMPTY

    # --- references ---------------------------------------------------------------------------------------------------

    def add_reference(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Add a document, at any moment: it is matched with the text so far at once.

        Parameters
        ----------
        tokens : ids by the tokenizer of the model that decodes; others would never match.

        Raises
        ------
        TokenOutOfRange, StreamTooLong : nothing was added.
        """
        reference = Reference(tokens, self.options)
        if not self.conversation.degraded:
            reference.index.advance(reference.cursor, self.conversation.tokens())
        self.references.append(reference)

    def clear_references(self) -> None:
        """Drop all documents."""
        self.references.clear()
        self._pending = self._proposed = None

    # --- as a source of drafts ----------------------------------------------------------------------------------------

    def suggest(self, context: Sequence[int], limit: int) -> list[int]:
        """See `DraftSource`."""
        self._pending = self._proposed = None
        if not len(context) or limit < 1:
            return []
        gate, match, draft = self._matched(context, limit)
        rates = self._matches
        if not draft and not self.gates["recycling"].muted:
            gate, match, rates = self.gates["recycling"], 0, self._chains
            draft = self.recycling.draft_chain(context[-1], min(limit, self.options.recycling_chain))
        if draft:
            self._proposed = _Proposed(rates, match, draft)
        if len(draft) >= self.options.accounting_min_draft:
            self._pending = _Pending(gate, draft)
        return draft

    def odds(self, n: int) -> list[float]:
        """See `DraftSource`: while a draft is right, its match grows."""
        proposed = self._proposed
        return proposed.rates.rates(proposed.match, n) if proposed is not None else []

    def _matched(self, context: Sequence[int], limit: int) -> tuple[SourceGate, int, list[int]]:
        """Of the sources that are not muted, the longest match drafts; at a tie the first in order."""
        options, conversation = self.options, self.conversation
        best, length, reference = self.gates["conversation"], 0, None
        if options.conversation and not best.muted and context[-1] == conversation.last_token:
            length = conversation.match_len()
        for candidate in self.references:
            if candidate.cursor.length > length and not candidate.gate.muted:
                best, length, reference = candidate.gate, candidate.cursor.length, candidate
        if length < options.min_match:
            return best, 0, []
        budget = min(limit, options.beta * (1 + length))
        if reference is None:
            return best, length, conversation.draft(budget, overlap=True)
        return best, length, reference.index.draft_from(reference.cursor, budget)

    def truncate_pending(self, n: int) -> None:
        """See `DraftSource`."""
        if self._pending is not None:
            if n < self.options.accounting_min_draft:
                self._pending = None
            else:
                self._pending.drafted = min(n, self._pending.drafted)

    def observe(self, committed: Sequence[int]) -> None:
        """See `DraftSource`."""
        pending, self._pending = self._pending, None
        proposed, self._proposed = self._proposed, None
        if not len(committed):
            return
        if proposed is not None:
            proposed.rates.learn(proposed.match, proposed.tokens, committed)
        if pending is not None:
            verified = pending.tokens[: pending.drafted]
            pending.gate.record(pending.drafted, common_prefix(verified, list(committed[: len(verified)])))
        for gate in self.gates.values():
            gate.count_down(len(committed))
        for reference in self.references:
            reference.gate.count_down(len(committed))
        array = as_ids(committed)
        ids = array.tolist()
        new = ids if len(ids) <= FEW else array  # the form that `as_ids` checks sooner
        self.conversation.observe(new)
        for reference in self.references:
            reference.index.advance(reference.cursor, new)
        self._promotions = list(zip((self._last, *ids), ids, strict=False))
        self._last = ids[-1]
        self._promote()

    def _promote(self) -> None:
        for token, follower in self._promotions:
            self.recycling.promote(token, follower)

    def observe_top_k(self, rows: Sequence[TopKRow]) -> None:
        """See `DraftSource`.  Rows overwrite candidates; what was really committed then goes back to the front."""
        self.recycling.observe_top_k(rows)
        self._promote()

    def restart(self) -> None:
        """See `DraftSource`: the text is forgotten; references, recycled candidates and what became of drafts stay."""
        self.conversation = SamIndex(self.options.min_match, UNBOUNDED)
        for reference in self.references:
            reference.cursor = Cursor()
        self._pending, self._proposed, self._promotions, self._last = None, None, [], EMPTY

    # --- reporting ----------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, tuple[int, int, bool]]:
        """Of each source: tokens accepted, tokens drafted, and whether it is muted now."""
        named = {
            "conversation": self.gates["conversation"],
            **{f"ref{i}": r.gate for i, r in enumerate(self.references)},
            "recycling": self.gates["recycling"],
        }
        return {name: (gate.accepted, gate.drafted, gate.muted) for name, gate in named.items()}

    def summary(self) -> str:
        """One line for people: accepted/drafted of each source."""
        parts = [f"{name} {a}/{d}{' [muted]' if muted else ''}" for name, (a, d, muted) in self.counts().items()]
        return "spec sources: " + " ".join(parts)
