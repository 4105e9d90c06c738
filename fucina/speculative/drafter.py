"""Drafts from a source, verified where that is expected to win time.

Losslessness.  A source proposes one continuation, not a distribution.  Rejection sampling (Leviathan, Kalman and Matias
2023, https://arxiv.org/abs/2211.17192) then degenerates to: sample every row with the whole pipeline (processor,
penalties, temperature, cuts), conditioned on what has been committed; go on while the choice is the drafted token.  At
the first difference the choice is the correction; after the whole draft it is a bonus.  Greedy takes the same path.
There is one draw per committed token, and every row of our passes has the same bits whatever runs beside it: tokens,
draws, rows of the state and logits are those of plain decoding.  `Stream.accept` does it; nothing here can change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..checks import shown
from ..engine.drafts import NO_DRAFT, Draft, Drafter, Verified
from ..engine.stream import Stream
from ..engine.verify_cost import VerifyCost
from ..errors import InvalidOption, TopKFeedbackDisabled
from ..kernels.top_k import top_ids
from .constrained import ConstrainedSource, Structure, inner_source
from .cost_gate import CostGate
from .ledger import Ledger
from .odds import with_redone, worth
from .options import Options, Stats
from .source import DraftSource, StepRecord, TopKRow, odds_of, usable, wants_top_k

GATE = ("allows", "budget", "record")  # methods of a gate


class Vocabulary(Protocol):
    """What a drafter needs of a model: `fucina.engine.Engine` has it."""

    n_tokens: int


class SourceDrafter(Drafter):
    """Drafts for one stream with a source, for turn after turn of one text.

    Parameters
    ----------
    model : Model or Engine, for the size of its vocabulary.
    source : DraftSource
    options : Options, optional
    gate : CostGate, optional
        Or anything with `allows()`, `budget()` and `record(committed, accepted, drafted, cost)`: asked in every step.
        By default a source that knows its odds has none, any other a `CostGate`.
    timed : bool
        Whether the times of passes may change their prices; without, the cost table applies as it is.
    vocab : int, optional
        Drafted ids from here on are not verified; default: the model's.
    on_step : callable, optional
        Called with a StepRecord after each step.

    Attributes
    ----------
    stats : Stats
    cost : VerifyCost, prices of passes.

    Raises
    ------
    TopKFeedbackDisabled
        The source wants feedback, and `options.topk_feedback` is 0.
    InvalidOption
        The gate lacks one of its three methods.
    """

    def __init__(
        self,
        model: Vocabulary,
        source: DraftSource,
        options: Options | None = None,
        *,
        gate: CostGate | None = None,
        timed: bool = True,
        vocab: int | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.source = source
        self.options = Options() if options is None else options
        if wants_top_k(source):
            if self.options.topk_feedback == 0:
                raise TopKFeedbackDisabled(
                    "the draft source wants the best tokens of verified rows: topk_feedback must be at least 1, got 0"
                )
            top_ids(np.zeros((1, 1), np.float32), 1)  # compiled now, not in the middle of a step
        for name in GATE if gate is not None else ():
            if isinstance(gate, type) or not callable(getattr(gate, name, None)):
                raise InvalidOption(
                    f"gate must be an object with {', '.join(GATE)}; {name} is missing in {shown(gate)}"
                )
        self._has_odds = callable(getattr(source, "odds", None))
        self._bounded = gate is None or isinstance(gate, CostGate)  # the caller's own gate answers for what it allows
        if gate is None and not self._has_odds:
            gate = CostGate(self.options)
        self.gate, self.timed, self.on_step = gate, timed, on_step
        self.cost = VerifyCost(self.options.table)
        self.stats = Stats()
        self._ledger = Ledger(self.options)
        self._vocab = model.n_tokens if vocab is None else vocab
        self._seen: list[int] = []  # what the source was given
        self._stream: Stream | None = None  # whose text that is
        self._kind = "fallback"  # of the step under way, unless it verifies
        self._certain = False  # whether its draft is what a grammar forces

    def constrain(self, structure: Structure | None) -> None:
        """Draft under a grammar from now on, the processor of the stream's sampler; None for no grammar."""
        inner = inner_source(self.source)
        self.source = inner if structure is None else ConstrainedSource(structure, inner)

    # --- the text -----------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Forget the text: the source is given another one."""
        self._seen = []
        if callable(getattr(self.source, "restart", None)):
            self.source.restart()  # type: ignore[attr-defined]

    def _catch_up(self, stream: Stream, tokens: Sequence[int]) -> None:
        """Give the source the text up to `tokens`, also after a step that was broken off.

        A text that does not continue the last one starts the source anew.
        """
        if stream is not self._stream:
            if stream.tokens[: len(self._seen)] != self._seen:
                self.restart()
            self._stream = stream
        new = tokens[len(self._seen) :]
        if new:
            self._seen.extend(new)  # first: whatever the source does with them, it is not given them twice
            self.source.observe(new)

    # --- before a pass ------------------------------------------------------------------------------------------------

    def draft(self, stream: Stream, limit: int, streams: int) -> Draft:
        """See `Drafter.draft`.  InvalidDraft where the source returns no sequence of tokens."""
        self._catch_up(stream, stream.tokens)
        options, gate = self.options, self.gate
        self._kind, self._certain = "fallback", False
        if options.enabled and isinstance(self.source, ConstrainedSource):
            forced = self.source.forced(min(options.max_draft, limit))
            tokens, _ = usable(forced, len(forced), self._vocab, stream.stop_tokens, self.source)
            if tokens:  # certain: no gate is asked, and one token alone may be worth a row
                self._certain = True
                verified = self._worth(tokens, stream, streams, least=1)
                return Draft(tokens[:verified]) if verified else NO_DRAFT
        if not options.enabled or (gate is not None and not gate.allows()):
            self._kind = "off"
            return NO_DRAFT
        width = min(options.max_draft, limit)
        if gate is not None and options.adapt_budget:
            width = min(width, gate.budget())
        if width < options.min_draft:
            return NO_DRAFT
        tokens, proposed = usable(self._proposal(width), width, self._vocab, stream.stop_tokens, self.source)
        verified = self._worth(tokens, stream, streams)
        if verified != proposed and callable(getattr(self.source, "truncate_pending", None)):
            self.source.truncate_pending(verified)  # type: ignore[attr-defined]
        return Draft(tokens[:verified]) if verified else NO_DRAFT

    def _proposal(self, width: int) -> Any:
        """Ask the source.  It is shown a list of the drafter's own: writing into it cannot change the text."""
        length, seen = len(self._seen), self._seen
        try:
            return self.source.suggest(seen, width)
        finally:
            if len(seen) != length:  # it wrote into what it was shown
                self._seen = list(self._stream.tokens[:length]) if self._stream is not None else []

    def _worth(self, tokens: list[int], stream: Stream, streams: int, least: int | None = None) -> int:
        options, n, context = self.options, len(tokens), stream.state.len
        least = options.min_draft if least is None else least
        if n < least:
            return 0
        allowance = self._ledger.allowance if self._bounded else math.inf
        costs = self.cost.estimates(n, context, streams)
        if not options.adapt_budget:  # as many as are allowed, whatever they are expected to win
            while n and costs[n] > 1.0 + allowance:
                n -= 1
            return n if n >= least else 0
        odds = odds_of(self.source, n) if self._has_odds or self._certain else None
        if odds is not None and stream.state.layout.recurrent:
            costs = with_redone(costs, odds)
        return worth(Draft(tokens, odds), costs, self.cost.curve(context), allowance, least)

    # --- after a pass -------------------------------------------------------------------------------------------------

    def learn(self, stream: Stream, verified: Verified) -> None:
        """See `Drafter.learn`: source, gate, ledger and counts enter the step."""
        draft, stats = verified.draft, self.stats
        accepted, committed = verified.accepted, len(verified.committed)
        stats.committed += committed
        kind, self._kind = ("verify" if draft else self._kind), "fallback"
        if not verified.of_prompt:
            stats.count(kind, len(draft), accepted, committed, verified.sampled)
        if not verified.whole:
            return
        cost = 1.0
        if not verified.of_prompt:
            cost = self._price(verified)
            self._ledger.enter(verified.sampled, cost)
            if draft and self.gate is not None and not self._certain:
                self.gate.record(verified.sampled, accepted, len(draft), cost)
        # where `on_token` ended the turn, its caller may drop the newest token (it completes a stop text): a source
        # that cannot forget is given it when the next turn shows that it stayed
        self._catch_up(stream, stream.tokens[:-1] if stream.finish == "ended" else stream.tokens)
        if draft and not self._certain and wants_top_k(self.source):  # where text is forced, wishes foretell nothing
            best = top_ids(verified.rows[: verified.sampled], self.options.topk_feedback)
            fed = [stream.tokens[len(stream.tokens) - committed - 1], *draft]
            self.source.observe_top_k([TopKRow(*pair) for pair in zip(fed, best, strict=False)])  # type: ignore[attr-defined]
        if self.on_step is not None and not verified.of_prompt:
            self.on_step(StepRecord(kind, len(draft), accepted, committed, cost, verified.stats))

    def _price(self, verified: Verified) -> float:
        """What the step cost this stream, in plain steps.

        A pass of several streams is paid by those that have more than one row in it, in proportion: a stream's own step,
        and its part of what these rows made the pass longer for everybody.  They are drafts, or what a rejected draft
        left.
        """
        stats = verified.stats
        cost, further = self.cost.price(stats, self.timed), stats.rows - stats.streams
        if further <= 0:
            return 1.0
        return 1.0 + stats.streams * (cost - 1.0) * (len(verified.draft) + verified.redone) / further

    def shared_with(self, other: Drafter) -> str | None:
        """See `Drafter.shared_with`: a source follows one text, too."""
        mine = inner_source(self.source)
        if isinstance(other, SourceDrafter) and mine is inner_source(other.source) and self is not other:
            return "draft source"
        return super().shared_with(other)
