"""Any sequence of operations on states, against a plain model: lists of tokens, and which ring row holds what."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fucina.cache.record import CHECKPOINTS
from fucina.errors import CannotRewind
from tests.state_models import KINDS, TOY_ROWS, check_claims, extend, fail, toy_state


class Plain:
    """What a state of these parts should hold, in the plainest way."""

    def __init__(self, state):
        self.tokens = []
        self.windows = {a.window: a.stride(state.capacity, TOY_ROWS) for a in state.layout.areas if a.kind == "ring"}
        self.rings = {w: {} for w in self.windows}  # row -> the position that it holds
        self.recurrent = state.layout.recurrent
        self.marks = {0: False}  # position -> asked for

    def put(self, first, last, what=True):
        for window, stride in self.windows.items():
            for p in range(first, last):
                self.rings[window][p % stride] = p if what else None

    def keep_marks(self):
        self.marks = {p: asked for p, asked in self.marks.items() if asked or p == len(self.tokens)}

    def extend(self, tokens):
        start = len(self.tokens)
        if tokens:
            self.keep_marks()
        self.tokens += tokens
        self.put(start, len(self.tokens))
        self.marks.setdefault(len(self.tokens), False)

    def fail(self, count, passes):
        n = len(self.tokens)
        before = {w: dict(ring) for w, ring in self.rings.items()}
        self.put(n, n + count, False)
        for w in self.windows:
            if not self.ring_reaches(w, n):
                self.rings[w] = before[w]  # brought back
        if passes > 1:
            self.keep_marks()

    def ring_reaches(self, window, n):
        stride, ring = self.windows[window], self.rings[window]
        return all(ring.get(p % stride) == p for p in range(max(0, n - window + 1), n))

    def can(self, n):
        return n == 0 or (
            (not self.recurrent or n in self.marks) and all(self.ring_reaches(w, n) for w in self.windows)
        )

    def point(self, n):
        return next(m for m in range(min(n, len(self.tokens)), -1, -1) if self.can(m))

    def rewind(self, n):
        self.tokens = self.tokens[:n]
        self.marks = {p: asked for p, asked in self.marks.items() if p <= n} if n else {0: False}
        if n == 0:
            self.rings = {w: {} for w in self.windows}

    def checkpoint(self):
        if self.tokens:
            self.marks[len(self.tokens)] = True
            asked = [p for p in sorted(self.marks) if self.marks[p]]
            if len(asked) > CHECKPOINTS:
                del self.marks[asked[0]]

    def adopt(self, tokens, rings):
        """Take over the rows that `rings` hold, from the current length on."""
        start, end = len(self.tokens), len(tokens)
        self.keep_marks()
        for window, stride in self.windows.items():
            taken = [p for p in range(max(start, end - stride), end) if rings[window](p)]
            if taken and taken[0] > start:
                self.rings[window] = {}
            for p in taken:
                self.rings[window][p % stride] = p
        self.tokens = list(tokens)
        self.marks[end] = self.marks.get(end, False)

    def holds(self, window):
        ring, stride = dict(self.rings[window]), self.windows[window]
        return lambda p: ring.get(p % stride) == p


class Machine(RuleBasedStateMachine):
    """Two states of one model, that run, fail, go back, and copy from each other."""

    parts = KINDS["all"]

    @initialize(capacities=st.tuples(*[st.sampled_from([70, 200, 300])] * 2))
    def start(self, capacities):
        self.states = [toy_state(self.parts, n) for n in capacities]
        self.plain = [Plain(s) for s in self.states]
        self.next_token, self.snapshots = 1, []

    which = st.integers(0, 1)

    def new_tokens(self, count):
        tokens = [(self.next_token + i * i) % 1000 for i in range(count)]
        self.next_token += 17
        return tokens

    @rule(i=which, count=st.one_of(st.integers(0, 12), st.integers(0, 100)), rows=st.integers(1, TOY_ROWS))
    def run(self, i, count, rows):
        state, plain = self.states[i], self.plain[i]
        new = self.new_tokens(min(count, state.capacity - state.len))
        extend(state, plain.tokens + new, rows)
        plain.extend(new)

    @rule(
        i=which,
        count=st.one_of(st.integers(1, 12), st.integers(1, 100)),
        passes=st.integers(0, 14),
        close=st.booleans(),
    )
    def fail(self, i, count, passes, close):
        state, plain = self.states[i], self.plain[i]
        count = min(count, state.capacity - state.len)
        passes = min(passes, -(-count // TOY_ROWS))
        fail(state, count, passes)
        if close:
            state.rollback()
        plain.fail(count, passes)

    @rule(i=which, n=st.integers(0, 300))
    def rewind(self, i, n):
        state, plain = self.states[i], self.plain[i]
        n = min(n, state.len)
        if plain.point(n) != n:
            with pytest.raises(CannotRewind):
                state.truncate(n)
        state.rewind(state.rewind_point(n))
        plain.rewind(plain.point(n))

    @rule(i=which, dropped=st.integers(1, TOY_ROWS))
    def drop_a_few(self, i, dropped):
        self.rewind(i, max(0, self.states[i].len - dropped))

    @rule(i=which)
    def reset(self, i):
        self.states[i].reset()
        self.plain[i].rewind(0)

    @rule(i=which)
    def checkpoint(self, i):
        self.states[i].checkpoint()
        self.plain[i].checkpoint()

    @rule(i=which)
    def snapshot(self, i):
        plain = self.plain[i]
        rings = {w: plain.holds(w) for w in plain.windows}
        self.snapshots.append((self.states[i].snapshot(), list(plain.tokens), rings))

    @precondition(lambda self: self.snapshots)
    @rule(i=which, data=st.data())
    def restore(self, i, data):
        snapshot, tokens, rings = data.draw(st.sampled_from(self.snapshots))
        state, plain = self.states[i], self.plain[i]
        if len(tokens) > state.capacity:
            return
        state.restore(snapshot)
        plain.rewind(0)
        if tokens:
            plain.adopt(tokens, rings)

    @rule(i=which, n=st.integers(0, 300))
    def reuse(self, i, n):
        """Go back to what both have in common, and take the rest from the other."""
        (state, plain), (source, theirs) = ((self.states[j], self.plain[j]) for j in (i, 1 - i))
        same = [a == b for a, b in zip(plain.tokens, theirs.tokens, strict=False)]
        start = state.rewind_point(same.index(False) if False in same else len(same))
        state.rewind(start)
        plain.rewind(start)
        end = source.rewind_point(min(n, state.capacity))
        state.copy_rows(source, start, end)
        if end > start:
            plain.adopt(theirs.tokens[:end], {w: theirs.holds(w) for w in theirs.windows})

    @invariant()
    def agree(self):
        for state, plain in zip(getattr(self, "states", ()), getattr(self, "plain", ()), strict=True):
            n = len(plain.tokens)
            assert state.len == n
            for m in {n, n - 1, n - 5, n - 12, n - 44, n - 60, n // 2, 3}:
                if m >= 0:
                    assert state.rewind_point(m) == plain.point(m), m
            if state._held.open is None:
                check_claims(state, plain.tokens)


def machine(name):
    kind = type(name, (Machine,), {"parts": KINDS[name]})
    case = kind.TestCase
    case.settings = settings(max_examples=50 if name == "all" else 12, stateful_step_count=30, deadline=None)
    return case


TestAll = machine("all")
TestFull = machine("full")
TestLatent = machine("latent")
TestRings = machine("rings")
TestNarrow = machine("narrow")
TestRecurrent = machine("recurrent")


def test_the_toy_model_tells_positions_and_orders_apart():
    state = toy_state()
    extend(state, [1, 2, 3] * 30)
    with pytest.raises(AssertionError):
        check_claims(state, [1, 3, 2] * 30)
    state._planes[1].k[0, 80 % 64] = np.nan
    with pytest.raises(AssertionError):
        check_claims(state, [1, 2, 3] * 30)
