"""What tests of speculative decoding share: a toy model whose cache shows what it was fed, all sorts of sources."""

from __future__ import annotations

import random

import numpy as np

from fucina.decoding import DecodeStream
from fucina.errors import KvCacheOverflow
from fucina.sampling import Sampler
from fucina.speculative import CascadeOptions, SpeculationIndex

# what a source can be like: see source_of
KINDS = ("perfect", "hungry", "garbage", "alternating", "part", "random", "lying", "lengths", "cascade", "beside")


class ToyCache:
    """Rows are the tokens themselves; rows past `len` stay as garbage, as in the real cache."""

    can_truncate = True

    def __init__(self, capacity):
        self.capacity, self.len = capacity, 0
        self.rows = [None] * capacity

    def truncate(self, keep):
        self.len = min(self.len, keep)

    def held(self):
        return list(self.rows[: self.len])


class ToyModel:
    """Logits that depend on the last few tokens: with a short memory, text repeats itself."""

    def __init__(self, vocab=24, seed=0, memory=5):
        self.vocab, self.seed, self.memory = vocab, seed, memory
        self.passes = []  # rows of each pass

    def new_cache(self, capacity):
        return ToyCache(capacity)

    def row(self, tokens):
        return (
            np.random.RandomState(hash((self.seed, *tokens[-self.memory :])) % (1 << 32))
            .randn(self.vocab)
            .astype(np.float32)
            * 2
        )

    def forward_rows(self, requests):
        for cache, tokens, _ in requests:
            if cache.len + len(tokens) > cache.capacity:
                raise KvCacheOverflow("toy")
        out = []
        for cache, tokens, want in requests:
            cache.rows[cache.len : cache.len + len(tokens)] = list(tokens)
            cache.len += len(tokens)
            ends = range(cache.len - len(tokens) + 1, cache.len + 1)
            rows = [self.row(cache.rows[max(0, e - self.memory) : e]) for e in ends]
            out.append(np.stack(rows if want == "all" else rows[-1:]))
        self.passes.append(sum(len(t) for _, t, _ in requests))
        return out


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


def prefilled(model, prompt, capacity, sampler=None, **ends):
    """A stream whose prompt is in the cache, and the logits after it."""
    cache = model.new_cache(capacity)
    stream = DecodeStream(cache, Sampler() if sampler is None else sampler, list(prompt), **ends)
    return stream, model.forward_rows([(cache, list(prompt), "last")])[0]


def decode(decoder, stream, logits, steps=10**9):
    """Run a turn to its end, or until the cache is full."""
    decoder.bootstrap_step(stream, logits)
    while not stream.ended and stream.room > 0 and steps > 0:
        decoder.step(stream)
        steps -= 1
    return stream.history


def rows_of(cache):
    """All that a cache holds, as bytes or tokens."""
    if isinstance(cache, ToyCache):
        return cache.held()
    planes = [p for i in range(len(cache.geometry)) for p in cache.planes(i)]
    return [p[:, : cache.len].tobytes() for p in planes]


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
