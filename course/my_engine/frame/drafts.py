# ruff: noqa: F821
# mypy: ignore-errors
from time import perf_counter

import numpy as np

# ======================================================================================================================
# 5. Drafts: a step that verifies them (chapter 07), where they come from (08), and when they pay (09)
# ======================================================================================================================

#: ch07.verify
#: ch07.stop
#: ch07.mid_step
#: ch07.drafter
#: ch07.stats
#: ch08.append
#: ch08.draft
#: ch08.recycle
#: ch08.cascade
#: ch09.break_even
#: ch09.interpolate
#: ch09.ewma
#: ch09.gate

LONGEST_DRAFT = 16
TOP_K = 8  # candidates that a row teaches the recycler


class Cascade:
    """Everybody who may draft: an index of the text, one of each reference, and the recycler when none of them matches.

    Parameters
    ----------
    references : list of list of int
        Documents that the text may quote.
    """

    def __init__(self, references=()):
        self.drafters = [Drafter(Automaton()) for _ in range(1 + len(references))]
        for drafter, document in zip(self.drafters[1:], references, strict=True):
            drafter.observe(list(document))
        self.names = ["conversation"] + ["reference"] * len(references)
        self.gates = [SourceGate() for _ in self.drafters]
        self.recycler = Recycler(k=TOP_K)
        self.chosen = None  # who made the latest draft

    def observe(self, committed):
        """Take note of tokens that were settled."""
        for drafter, gate in zip(self.drafters, self.gates, strict=True):
            drafter.observe(list(committed))
            gate.count_down(len(committed))
        self.recycler.observe(list(committed))

    def suggest(self, context, limit):
        """The draft of the source with the longest match; else recycled candidates."""
        known = [
            Source(name, drafter.index.match_length, gate.muted_for > 0)
            for name, drafter, gate in zip(self.names, self.drafters, self.gates, strict=True)
        ]
        self.chosen, budget = choose(known, limit)
        if self.chosen is None:
            return self.recycler.suggest(context, limit)
        return self.drafters[self.chosen].suggest(context, min(limit, budget))

    def learn(self, fed, rows, drafted, accepted):
        """What became of the latest draft: `rows` of logits after the tokens `fed`."""
        if self.chosen is not None and drafted:
            self.gates[self.chosen].record(drafted, accepted)
        best = np.argpartition(np.asarray(rows), -TOP_K, axis=1)[:, -TOP_K:]
        sorted_ids = [ids[np.argsort(-row[ids], kind="stable")].tolist() for row, ids in zip(rows, best, strict=True)]
        self.recycler.observe_top_k([TopKRow(*pair) for pair in zip(fed, sorted_ids, strict=True)])


class Watched:
    """A model that remembers the rows of its latest pass."""

    def __init__(self, model):
        self.model, self.rows = model, []

    def forward(self, tokens, cache):
        """As the model's."""
        self.rows = self.model.forward(tokens, cache)
        return self.rows


def decode_with_drafts(model, cache, history, max_tokens, sampler, source, gate=None, emit=None, stop=None):
    """Decode up to `max_tokens` tokens, several in a step where drafts are right.

    The tokens are those of `decode`: a draft is verified, never believed.

    Parameters
    ----------
    source : object with `observe(committed)`, `suggest(context, limit)` and, if it likes, `learn`
    gate : Gate, optional
        Decides when drafting pays.  None: each step drafts.
    emit : callable, optional
        Is handed each new token.
    stop : int, optional
        The text ends after this token.

    Returns
    -------
    list of Step
        What each step did.
    """
    watched, log, points, live = Watched(model), [], model.costs(), LiveCost()
    goal, ended = len(history) + max_tokens, False
    source.observe(list(history))

    def price(rows):
        return max(live.scale * verify_cost(rows - 1, points), 1.0)

    try:
        while len(history) < goal and not ended:
            limit = min(goal - len(history) - 1, LONGEST_DRAFT)  # a step commits one token more than it drafts
            draft = []
            if limit > 0 and (gate is None or gate.allows()):
                limit = limit if gate is None else min(limit, gate.budget())
                draft = list(source.suggest(list(history), limit))
                if gate is not None and draft and break_even(len(draft), price) is None:
                    draft = []  # it could not win even if all of it were right
            before, began = len(history), perf_counter()
            if stop is not None:
                ended = verify_until(watched, cache, history, draft, sampler, stop)
            elif emit is not None:
                safe_step(watched, cache, history, draft, sampler, emit)
            else:
                verify_step(watched, cache, history, draft, sampler)
            seconds, committed = perf_counter() - began, history[before:]
            if stop is not None and emit is not None:
                for token in committed:
                    emit(token)
            accepted = next((i for i, (a, b) in enumerate(zip(draft, committed, strict=False)) if a != b), None)
            accepted = min(len(draft), len(committed)) if accepted is None else accepted
            cost = 1.0
            if draft:
                cost = live.verify(verify_cost(len(draft), points), seconds)
                if gate is not None:
                    gate.record(len(committed), accepted, len(draft), cost)
            else:
                live.note_plain(seconds)
            source.observe(committed)
            if hasattr(source, "learn"):
                fed = [history[before - 1], *draft][: len(committed)]
                source.learn(fed, watched.rows[: len(committed)], len(draft), accepted)
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
    "gate": "all of that, and the gate decides",
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
    gate = Gate() if how == "gate" else None
    return decode_with_drafts(model, cache, history, max_tokens, sampler, source, gate, emit, stop)
