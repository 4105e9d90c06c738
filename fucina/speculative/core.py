"""Speculative decoding without a draft model: drafts from deterministic sources, verified in one pass.

Losslessness.  A source proposes one continuation, not a distribution.  Rejection sampling (Leviathan, Kalman and Matias
2023, https://arxiv.org/abs/2211.17192) then degenerates to: sample every row with the whole pipeline (processor,
penalties, temperature, cuts), conditioned on what has been committed; go on while the choice is the drafted token.  At
the first difference the choice is the correction; behind the whole draft it is a bonus.  Greedy takes the same path.
One draw a committed token, and since every row of our passes has the same bits whatever runs beside it, the tokens, the
draws, the rows of the cache and the logits are those of plain decoding (reference 13.9).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import numpy as np

from ..decoding import Decoder, DecodeStream, PassTaken, RowHook, RowModel, common_prefix
from ..errors import CannotRewind, InvalidOption, TopKFeedbackDisabled
from ..kernels.top_k import top_ids
from .cost_gate import CostGate, VerifyCost
from .cost_table import best_width
from .odds import best_draft
from .options import Options, Stats
from .source import DraftSource, StepRecord, TopKRow, wants_top_k
from .watch import Watch

GATE = ("allows", "budget", "record")  # methods of a gate


class SpeculativeDecoder(Decoder):
    """Decodes one stream with drafts from a source.

    Parameters
    ----------
    model : Model, or anything that has its `forward_rows`.
    source : DraftSource
    options : Options, optional
    gate : CostGate, optional
        Or anything with `allows()`, `budget()` and `record(committed, accepted, drafted, cost)`; with `wake()` it
        is told when drafts would have won while it was off, with `allowance` it limits what a draft may cost.
    cost : VerifyCost, optional
        Shared by the decoders of a batch.
    timed : bool
        Whether the gate may look at how long passes took; without, the cost table applies as it is.
    vocab : int, optional
        Drafted ids from here on are not verified; default: the model's.
    on_row : callable, optional
        Called with (tokens that the row is conditioned on, raw logits) for every row that is sampled.
    on_step : callable, optional
        Called with a StepRecord after each step.

    Attributes
    ----------
    stats : Stats

    Raises
    ------
    TopKFeedbackDisabled
        The source wants feedback, and `options.topk_feedback` is 0.
    InvalidOption
        The gate lacks one of its three methods.
    """

    def __init__(
        self,
        model: RowModel,
        source: DraftSource,
        options: Options | None = None,
        *,
        gate: CostGate | None = None,
        cost: VerifyCost | None = None,
        timed: bool = True,
        vocab: int | None = None,
        on_row: RowHook | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        super().__init__(model, on_row)
        self.source = source
        self.options = Options() if options is None else options
        if wants_top_k(source) and self.options.topk_feedback == 0:
            raise TopKFeedbackDisabled(
                "the draft source wants the best tokens of verified rows: topk_feedback must be at least 1, got 0"
            )
        if wants_top_k(source):
            top_ids(np.zeros((1, 1), np.float32), 1)  # compiled now, not in the middle of a step
        for name in GATE if gate is not None else ():
            if isinstance(gate, type) or not callable(getattr(gate, name, None)):
                raise InvalidOption(f"gate must be an object with {', '.join(GATE)}; {name} is missing in {gate!r}")
        self.gate = CostGate(self.options) if gate is None else gate
        self.cost = VerifyCost(self.options) if cost is None else cost
        self.timed, self.on_step = timed, on_step
        self.stats = Stats()
        self._vocab = vocab if vocab is not None else getattr(getattr(model, "config", None), "vocab_size", 1 << 31)
        self._seen: list[int] = []  # what the source was told
        self._kind = "fallback"
        self._knows_odds = callable(getattr(source, "odds", None))
        # a gate of one's own is asked in any case
        self._asks_budget = self.options.adapt_budget and (gate is not None or not self._knows_odds)
        watched = self.options.enabled and self.options.watch and callable(getattr(self.gate, "wake", None))
        self._watch = Watch(self.options) if watched else None

    def bootstrap_step(self, stream: DecodeStream, logits: np.ndarray) -> int:
        """See `Decoder.bootstrap_step`.  A history that does not continue the last one restarts the source."""
        stream.check(0)
        if stream.history[: len(self._seen)] != self._seen:
            self.restart()
        self._tell(stream.history)
        before = len(stream.history)
        try:
            committed = super().bootstrap_step(stream, logits)
        finally:
            self.stats.committed += len(stream.history) - before
        self._report(stream)
        return committed

    def restart(self) -> None:
        """Forget the text: the source is told of another one."""
        self._seen = []
        if self._watch is not None:
            self._watch.clear()
        if callable(getattr(self.source, "restart", None)):
            self.source.restart()

    def _tell(self, history: Sequence[int]) -> None:
        """Bring the source up to the history; also after a step that was broken off in the middle."""
        fresh = history[len(self._seen) :]
        if fresh:
            self._seen.extend(fresh)  # first: whatever the source does with them, it is not told twice
            self.source.observe(fresh)

    def _report(self, stream: DecodeStream) -> None:
        """Tell the source what a step committed.

        Where a sink ended the turn, its caller may drop the newest token (it completes a stop text): a source that
        cannot forget is told of it when the next turn shows that it stayed.
        """
        held_back = stream.ended and stream.stop_token is None
        self._tell(stream.history[:-1] if held_back else stream.history)

    # --- a step -------------------------------------------------------------------------------------------------------

    def plan(self, stream: DecodeStream, most: int | None = None) -> list[int]:
        """Check the stream and return the draft that the next pass should verify; none makes it a plain step.

        Raises
        ------
        InvalidDecodeState
        CannotRewind : the stream's state cannot drop rejected rows.
        """
        stream.check(1)
        if not stream.cache.can_truncate:
            raise CannotRewind(
                "the state of this model cannot drop positions, so that drafts cannot be rejected; decode plainly"
            )
        self._tell(stream.history)
        most = self.options.max_draft if most is None else most
        if not self.options.enabled or not self.gate.allows():
            self._kind = "off"
            if self._watch is not None:
                self._look(self._watch, stream, most)
            return []
        if self._watch is not None:
            self._watch.clear()
        draft = self._draft(stream, most)
        self._kind = "verify" if draft else "fallback"
        return draft

    def _look(self, watch: Watch, stream: DecodeStream, most: int) -> None:
        """While the gate is off: see what a draft would have won, and wake the gate if it is enough."""
        watch.look(stream.history)
        if watch.promising:
            watch.clear()
            self.gate.wake()
        elif not watch.waiting:
            draft = self._draft(stream, most)
            self._cut(0)  # it is not verified: no account of it
            watch.propose(draft, len(stream.history), self.cost.estimate(len(draft), stream.cache.len, self.streams))

    def _cut(self, n: int) -> None:
        if callable(getattr(self.source, "truncate_pending", None)):
            self.source.truncate_pending(n)

    def _draft(self, stream: DecodeStream, most: int) -> list[int]:
        options = self.options
        # a pass commits one token more than it accepts: the last allowed token needs no draft
        width = min(options.max_draft, most, stream.room - 1, stream.remaining - 1)
        if self._asks_budget:
            width = min(width, self.gate.budget())
        if width < options.min_draft:
            return []
        proposed = self._proposal(stream.history, width)
        if proposed is None:
            return []
        draft = self._usable(proposed, width, stream.stop_tokens)
        draft = draft[: self._worth(len(draft), stream.cache.len)]
        if len(draft) < options.min_draft:
            draft = []
        if len(draft) != len(proposed):
            self._cut(len(draft))
        return draft

    def _proposal(self, history: list[int], width: int) -> Sequence[int] | None:
        """Ask the source.  It is shown a list of the decoder's own: writing into it cannot change the text."""
        if len(self._seen) != len(history):  # the history was changed behind our back
            self._seen = list(history)
        try:
            return self.source.suggest(self._seen, width)
        finally:
            if len(self._seen) != len(history):
                self._seen = list(history)

    def _worth(self, drafts: int, context: int) -> int:
        """How many of so many drafts to verify."""
        options = self.options
        if drafts < options.min_draft:
            return 0
        costs = self.cost.estimates(drafts, context, self.streams)
        allowed = 1.0 + getattr(self.gate, "allowance", math.inf)
        while drafts and costs[drafts] > allowed:
            drafts -= 1
        if not options.adapt_budget or drafts < options.min_draft:
            return drafts
        if self._knows_odds:
            odds = self.source.odds(drafts)  # type: ignore[attr-defined]
            return best_draft(odds, costs[: drafts + 1], options.min_draft)
        return best_width(self.cost.curve(context), drafts, options.min_draft)

    def _usable(self, proposed: Sequence[int], width: int, stops: frozenset[int]) -> list[int]:
        """The proposal up to what cannot be verified: too much, not an id of the vocabulary, the end of the turn."""
        draft: list[int] = []
        for token in proposed[:width]:
            try:
                token = operator.index(token)
            except TypeError:
                break
            if not 0 <= token < self._vocab or token in stops:
                break
            draft.append(token)
        return draft

    def settle(self, stream: DecodeStream, rows: np.ndarray, draft: list[int], taken: PassTaken) -> int:
        """Commit what the rows of the pass say, and let source, gate and counts know; return how many tokens."""
        before = len(stream.history)
        try:
            stream.commit_rows(rows, draft, self.on_row)
        finally:
            committed, accepted = self._count(stream, before, draft)
        sampled = committed + (stream.stop_token is not None)
        cost = self._judge(draft, sampled, accepted, taken)
        self._report(stream)
        if draft and wants_top_k(self.source):
            best = top_ids(rows[:sampled], self.options.topk_feedback)
            tokens = [stream.history[before - 1], *draft]
            self.source.observe_top_k([TopKRow(*pair) for pair in zip(tokens, best, strict=False)])  # type: ignore[attr-defined]
        if self.on_step is not None:
            self.on_step(StepRecord(self._kind, len(draft), accepted, committed, cost, taken))
        return committed

    def _count(self, stream: DecodeStream, before: int, draft: list[int]) -> tuple[int, int]:
        """Enter a step into the counts, one that was broken off too; return how many were committed and accepted."""
        fresh, stats = stream.history[before:], self.stats
        accepted = common_prefix(fresh, draft)
        chosen = len(fresh) + (stream.stop_token is not None)
        stats.steps += 1
        stats.spec_steps += self._kind == "verify"
        stats.fallback_steps += self._kind == "fallback"
        stats.disabled_steps += self._kind == "off"
        stats.drafted += len(draft)
        stats.accepted += accepted
        stats.committed += len(fresh)
        if draft:
            stats.bonus += len(fresh) > len(draft)
            stats.rejected_steps += accepted < chosen <= len(draft)
        return len(fresh), accepted

    def _judge(self, draft: list[int], sampled: int, accepted: int, taken: PassTaken) -> float:
        """Let the gate know what the step cost this stream, in plain steps; return it.

        A pass of several streams is paid by those that drafted, in proportion: a stream's own step, and its part of
        what the drafts made the pass longer for everybody.
        """
        cost, seconds = taken.cost, taken.seconds if self.timed else None
        if cost is None:
            if not taken.drafted:
                if seconds is not None:
                    self.cost.note_plain(seconds, taken.streams)
                return 1.0
            cost = self.cost.verify(taken.rows, taken.context, taken.streams, seconds)
        if not taken.drafted:
            return 1.0
        cost = 1.0 + taken.streams * (cost - 1.0) * len(draft) / taken.drafted
        if draft:
            # a stop token that ended the turn would have been a plain step too
            self.gate.record(sampled, accepted, len(draft), cost)
        return cost
