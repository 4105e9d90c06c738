# ruff: noqa: F821
# mypy: ignore-errors
from time import perf_counter
from typing import NamedTuple

import numpy as np

# ======================================================================================================================
# 7. A step that verifies drafts (chapter 07), and when they pay (09)
# ======================================================================================================================

#: ch07.verify
#: ch07.mid_step
#: ch09.break_even
#: ch09.best_draft
#: ch09.ewma
#: ch09.gate

LONGEST_DRAFT = 16


class Step(NamedTuple):
    """What one step of a run did."""

    drafted: int  # drafted tokens in the pass; 0 in a plain step
    accepted: int  # how many of them were committed
    committed: int  # all committed tokens
    cost: float  # of the pass, in plain steps


class Ledger:
    """What drafts may lose in all, in plain steps."""

    def __init__(self):
        self.tokens, self.won = 0, 0.0

    @property
    def allowance(self):
        """What the next draft may lose: one step, a hundredth of the tokens so far, and what drafts have won."""
        return 1.0 + 0.01 * self.tokens + self.won

    def enter(self, committed, cost):
        """Enter a step.  Of what was won, eight steps may be lost again."""
        self.tokens += committed
        self.won = min(self.won + committed - cost, 8.0)


class Watched:
    """A model that remembers the rows of its latest pass."""

    def __init__(self, model):
        self.model, self.rows = model, []

    def forward(self, tokens, cache):
        """As the model's."""
        self.rows = self.model.forward(tokens, cache)
        return self.rows


class Judge:
    """Decides how much of a draft is verified.

    A draft whose source knows its odds has the length that is expected to win most (`best_draft`).  For any other the
    gate decides whether it pays to draft, and `break_even` whether this draft could win at all.

    Parameters
    ----------
    by_odds : bool
        False: odds do not count.
    gate : Gate, optional
        None: what has no odds is always verified.
    """

    def __init__(self, by_odds=False, gate=None):
        self.by_odds, self.gate, self.ledger = by_odds, gate, Ledger()
        self.open, self.gated = True, False

    def begin(self):
        """A step begins: the gate wants to be asked once in each."""
        self.open = self.gate is None or self.gate.allows()

    def shorten(self, draft, source, price):
        """The part of a draft that is to be verified; price(rows) is the cost of a pass."""
        odds = source.odds() if self.by_odds else None
        self.gated = odds is None and self.gate is not None
        if odds is not None:
            return draft[: best_draft(odds, price, self.ledger.allowance)]
        if self.gated:
            draft = draft[: self.gate.budget()] if self.open else []
            if draft and break_even(len(draft), price) is None:
                return []  # it could not win even if all of it were right
        return draft

    def record(self, committed, accepted, drafted, cost):
        """What a step did."""
        self.ledger.enter(committed, cost)
        if drafted and self.gated:
            self.gate.record(committed, accepted, drafted, cost)


def agree(draft, committed):
    """How many tokens of a draft were committed."""
    pairs = zip(draft, committed, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(committed)))


def decode_with_drafts(model, cache, history, max_tokens, sampler, source, judge, emit=None, stop=None):
    """Decode up to `max_tokens` tokens, several in a step where drafts are right.

    The tokens are those of `decode`: a draft is verified, never believed.

    Parameters
    ----------
    source : object with `observe(committed)`, `suggest(context, limit)` and, if it likes, `learn` and `odds`
    judge : Judge
        Decides how much of a draft is verified.
    emit : callable, optional
        Is handed each new token.
    stop : int, optional
        The text ends after this token.

    Returns
    -------
    list of Step
        What each step did.
    """
    watched, log, live = Watched(model), [], LiveCost()
    rows_measured, costs = zip(*model.costs(), strict=True)
    goal = len(history) + max_tokens
    source.observe(list(history))

    def table(rows):
        """On straight lines between the points that were measured."""
        return float(np.interp(rows, rows_measured, costs))

    def price(rows):
        return max(live.scale * table(rows), 1.0)

    try:
        while len(history) < goal and (not log or history[-1] != stop):
            limit = min(goal - len(history) - 1, LONGEST_DRAFT)  # a step commits one token more than it drafts
            judge.begin()
            draft = list(source.suggest(list(history), limit)) if limit > 0 else []
            draft = judge.shorten(draft, source, price) if draft else []
            before, began = len(history), perf_counter()
            if emit is None and stop is None:
                verify_step(watched, cache, history, draft, sampler)
            else:
                safe_step(watched, cache, history, draft, sampler, emit or (lambda token: None), stop)
            seconds, committed, cost = perf_counter() - began, history[before:], 1.0
            accepted = agree(draft, committed)
            if draft:
                cost = live.verify(table(len(draft) + 1), seconds)
            else:
                live.note_plain(seconds)
            judge.record(len(committed), accepted, len(draft), cost)
            source.observe(committed)
            if hasattr(source, "learn"):
                fed = [history[before - 1], *draft][: len(committed)]
                source.learn(fed, watched.rows[: len(committed)], len(draft), accepted, committed)
            log.append(Step(len(draft), accepted, len(committed), cost))
    finally:
        cache.truncate(len(history) - 1)
    return log


HOW = {
    "reread": "no cache: the whole text for each token",
    "cache": "the loop, with a cache",
    "lookup": "drafts by prompt lookup, verified",
    "index": "drafts from the suffix automaton",
    "cascade": "the automaton, and recycled logits",
    "odds": "the same, and as many of them as pay, by their odds",
    "gate": "all of that, and the gate decides what has no odds",
}


def go_on(model, cache, history, max_tokens, how="gate", sampler=None, emit=None, stop=None, references=()):
    """Decode in one of the ways of HOW; `cache` holds the rows of all tokens of `history` but the last.

    Returns
    -------
    list of Step
    """
    sampler = Sampler() if sampler is None else sampler
    before = len(history)
    if how in ("reread", "cache"):
        say = (lambda token: None) if emit is None else emit
        if how == "reread":
            decode_without_cache(model, history, max_tokens, sampler, say, stop)
        else:
            decode(OneRow(model, sampler, history), cache, history, max_tokens, say, stop)
        return [Step(0, 0, 1, 1.0)] * (len(history) - before)
    source = {"lookup": PromptLookup, "index": lambda: Drafter(Automaton())}.get(how, lambda: Cascade(references))()
    judge = Judge(how in ("odds", "gate"), Gate() if how == "gate" else None)
    return decode_with_drafts(model, cache, history, max_tokens, sampler, source, judge, emit, stop)
