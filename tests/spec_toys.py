"""What tests of speculative decoding share: a toy model whose cache shows what it was fed, all sorts of sources."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace

import numpy as np

from fucina.engine import Scheduler, Stream
from fucina.errors import KvCacheOverflow
from fucina.sampling import Sampler
from fucina.speculative import CascadeOptions, SpeculationIndex

# what a source can be like: see source_of
KINDS = ("perfect", "hungry", "garbage", "alternating", "part", "random", "lying", "lengths", "cascade", "beside")


class ToyState:
    """Rows are the tokens themselves; rows past `len` stay as garbage, as in the real state.

    With `recurrent` it goes back to no position but its last two ends, and keeps a pass whole or not at all.
    """

    def __init__(self, capacity, recurrent=False):
        self.capacity, self.len, self.recurrent = capacity, 0, recurrent
        self.layout = SimpleNamespace(recurrent=recurrent)
        self.rows = [None] * capacity
        self.begun = 0
        self.owner = None
        self.ends = (0,)

    def begin(self, rows):
        if self.len + rows > self.capacity:
            raise KvCacheOverflow("toy")
        self.begun = rows

    def commit(self, rows):
        assert 0 <= rows <= self.begun
        if self.recurrent and rows < self.begun:
            rows = 0
        self.begun = 0
        if rows:
            self.ends = (self.len, self.len + rows)
        self.len += rows

    def rewind_point(self, n):
        n = min(n, self.len)
        return n if not self.recurrent else max((end for end in self.ends if end <= n), default=0)

    def rewind(self, n):
        assert self.rewind_point(n) == n
        self.len = n

    def held(self):
        return list(self.rows[: self.len])


class ToyModel:
    """Logits that depend on the last few tokens: with a short memory, text repeats itself."""

    def __init__(self, vocab=24, seed=0, memory=5, recurrent=False):
        self.vocab, self.seed, self.memory, self.recurrent = vocab, seed, memory, recurrent
        self.n_tokens = vocab
        self.passes = []  # rows of each pass

    def new_cache(self, capacity):
        return ToyState(capacity, self.recurrent)

    def row(self, tokens):
        return toy_row(self.vocab, self.seed, tuple(tokens[-self.memory :]))

    def forward_rows(self, requests):
        for state, tokens, _ in requests:
            state.begin(len(tokens))
        out = []
        for state, tokens, want in requests:
            wanted = {"all": len(tokens), "last": 1, "none": 0}.get(want, want)
            end = state.len + len(tokens)
            state.rows[state.len : end] = list(tokens)
            rows = [self.row(state.rows[max(0, e - self.memory) : e]) for e in range(end - wanted + 1, end + 1)]
            out.append(np.stack(rows) if rows else np.empty((0, self.vocab), np.float32))
        for state, tokens, want in requests:
            if isinstance(want, str):
                state.commit(len(tokens))
        self.passes.append(sum(len(t) for _, t, _ in requests))
        return out


@cache
def toy_row(vocab, seed, latest):
    """The toy's logits after these tokens."""
    return np.random.RandomState(hash((seed, *latest)) % (1 << 32)).randn(vocab).astype(np.float32) * 2


class Replay:
    """A source that knows the text to come; `spoil(i, token)` may change the i-th drafted token of a draft."""

    def __init__(self, text, spoil=None, length=None):
        self.text, self.spoil, self.length = list(text), spoil, length
        self.seen, self.suggested, self.feedback, self.cuts = [], 0, [], []
        self.strict = True  # every committed token must have been observed

    def suggest(self, context, limit):
        assert list(context) == self.seen or not self.strict
        self.suggested += 1
        n = limit if self.length is None else self.length(self.suggested)
        draft = self.text[len(context) : len(context) + n]
        return [t if self.spoil is None else self.spoil(i, t) for i, t in enumerate(draft)]

    def observe(self, committed):
        self.seen += list(committed)


class Hungry(Replay):
    """A source that also takes feedback and cuts."""

    def observe_top_k(self, rows):
        self.feedback.append(list(rows))

    def truncate_pending(self, n):
        self.cuts.append(n)


class Random:
    """Drafts of random tokens and lengths, inside the vocabulary or (lying) not."""

    def __init__(self, seed, vocab, lying=False):
        self.rng, self.vocab, self.lying = random.Random(seed), vocab, lying

    def suggest(self, context, limit):
        r = self.rng
        n = r.randrange(0, limit + 1) if not self.lying else r.randrange(0, 3 * limit + 3)
        draft = [r.randrange(self.vocab) for _ in range(n)]
        if self.lying and n:
            draft[r.randrange(n)] = r.choice([-1, self.vocab, 1 << 70, 1.5, "x", None, np.int64(self.vocab)])
            return r.choice([draft, tuple(draft), None, np.arange(n), np.array([], float)])
        return draft

    def observe(self, committed):
        pass


class Logged:
    """A processor that bans by position and notes every commit."""

    def __init__(self):
        self.log = []

    def process(self, logits, history):
        logits[(len(history) * 7) % len(logits)] = -np.inf

    def commit(self, token):
        self.log.append(token)

    def reset(self):
        self.log.append("reset")


def start(model, prompt, capacity, sampler=None, drafter=None, **ends):
    """A stream that begins with a prompt."""
    return Stream(model.new_cache(capacity), list(prompt), Sampler() if sampler is None else sampler, drafter, **ends)


def resume(stream):
    """A stream that goes on where another one ended with an error: the same tokens, state, sampler and drafter."""
    again = Stream(
        stream.state, stream.tokens, stream.sampler, stream.drafter,
        stop_tokens=stream.stop_tokens, max_tokens=max(stream.remaining, 1), on_token=stream.on_token,
        prefix_rows=stream.prefix_rows, on_row=stream.on_row,
    )  # fmt: skip
    again.finish = "length" if not stream.remaining else None
    return again


def decode(model, stream, steps=10**9):
    """Run a stream to its end, or for a number of steps; raises what ended it."""
    scheduler = Scheduler(model)
    scheduler.add(stream)
    while steps > 0 and scheduler.step() is not None:
        steps -= 1
    if stream.error is not None:
        raise stream.error
    return stream.tokens


def rows_of(state):
    """All that a state holds, as bytes or tokens."""
    if isinstance(state, ToyState):
        return state.held()
    held = state.snapshot()
    return [p.tobytes() for slot in sorted(held.rows) for p in held.rows[slot]]


def source_of(kind, text, vocab, seed):
    """A source that knows what plain decoding committed, and how good it wants to be."""
    r = random.Random(seed)
    wrong = lambda t: (t + 1) % vocab
    spoil = {
        "garbage": lambda i, t: wrong(t),
        "alternating": lambda i, t: wrong(t) if i % 2 else t,
        "part": lambda i, t: wrong(t) if r.random() < 0.15 else t,
    }
    if kind in ("random", "lying"):
        return Random(seed, vocab, kind == "lying")
    if kind == "cascade":
        index = SpeculationIndex(vocab, CascadeOptions(accounting_min_draft=1))
        index.add_reference(text[len(text) // 2 :])
        return index
    if kind == "beside":  # right tokens, one too late
        return Replay([*text[1:], 0])
    if kind == "lengths":
        return Replay(text, length=lambda n: r.choice([0, 1, 2, 3, 16, 17, 40, 200]))
    return (Hungry if kind == "hungry" else Replay)(text, spoil.get(kind))
