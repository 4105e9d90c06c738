"""Ctrl-C at every instruction of a state's methods: what it holds afterwards, a fresh state could hold."""

from pathlib import Path

import numpy as np
import pytest

import fucina.cache
from tests.interrupts import every_interrupt
from tests.state_models import PARTS, check_claims, clone, extend, fail, image, run_pass, toy_state

CACHE = Path(fucina.cache.__file__).parent
SOME = PARTS[:4]  # one of each kind
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 1000, 300)]


def held(n, checkpoint=True):
    """A state of the first `n` tokens, that has gone through several transactions and holds a checkpoint."""
    state = toy_state(SOME)
    for end in (n - 14, n - 6, n):
        extend(state, TOKENS[:end])
        if end == n - 14 and checkpoint:
            state.checkpoint()
    return state


def begun(rows, passes=0):
    state = held(150)
    fail(state, rows, passes)
    return state


def computed(rows):
    """A state whose transaction is computed and wants nothing but `commit`."""
    state = held(150)
    end = state.len + rows
    state.begin(rows)
    for first in range(state.len, end, 8):
        run_pass(state, TOKENS, first, min(first + 8, end))
        state.next_pass()
    return state


SOURCE = held(180)
SNAPSHOT = held(140).snapshot()
OTHER = [9 * t % 1000 for t in TOKENS]  # another continuation after position 60
OTHER[:60] = TOKENS[:60]


def branch():
    """A state of other tokens, which shares the first 60 with `SOURCE`."""
    state = toy_state(SOME)
    for end in (60, 90):
        extend(state, OTHER[:end])
    state.rewind(60)
    return state


CASES = {
    # name: (a state, the call, the lengths that it may have afterwards)
    "begin": (lambda: held(150), lambda s: s.begin(8), {150}),
    "begin, rings copied": (lambda: held(150), lambda s: s.begin(120), {150}),
    "begin, one open": (lambda: begun(100, 13), lambda s: s.begin(8), {150}),
    "next_pass": (lambda: begun(100, 3), lambda s: s.next_pass(), {150}),
    "commit": (lambda: computed(8), lambda s: s.commit(8), {150, 158}),
    "commit of passes": (lambda: computed(100), lambda s: s.commit(100), {150, 250}),
    "rollback": (lambda: begun(8, 1), lambda s: s.rollback(), {150}),
    "rollback, rings copied": (lambda: begun(100, 13), lambda s: s.rollback(), {150}),
    "rewind to the commit before": (lambda: held(150), lambda s: s.rewind(144), {150, 144}),
    "rewind to a checkpoint": (lambda: held(150), lambda s: s.rewind(136), {150, 136}),
    "rewind, one open": (lambda: begun(8, 1), lambda s: s.rewind(144), {150, 144}),
    "rewind to 0": (lambda: held(150), lambda s: s.rewind(0), {150, 0}),
    "reset, one open": (lambda: begun(100, 13), lambda s: s.reset(), {150, 0}),
    "truncate": (lambda: held(150), lambda s: s.truncate(144), {150, 144}),
    "checkpoint": (lambda: held(150), lambda s: s.checkpoint(), {150}),
    "snapshot": (lambda: begun(100, 13), lambda s: s.snapshot(), {150}),
    "restore": (lambda: held(150), lambda s: s.restore(SNAPSHOT), {150, 0, 140}),
    "restore, one open": (lambda: begun(100, 13), lambda s: s.restore(SNAPSHOT), {150, 0, 140}),
    "copy_rows": (branch, lambda s: s.copy_rows(SOURCE, 60, 180), {60, 180}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_leaves_what_a_fresh_state_could_hold(name):
    make, call, lengths = CASES[name]
    original, states = make(), []

    def scene():
        states[:] = [clone(original)]
        return lambda: call(states[0])

    count, seen = 0, set()
    for _ in every_interrupt(scene, CACHE):
        count += 1
        if image(states[0]) in seen:
            continue
        seen.add(image(states[0]))
        assert states[0].len in lengths
        unclosed = clone(states[0])
        check_claims(states[0], TOKENS)
        for state in (states[0], unclosed):  # whether or not somebody has closed the transaction
            extend(state, TOKENS[: state.len + 20])
            check_claims(state, TOKENS)
    assert count > 10 and len(seen) < count
    check_claims(states[0], TOKENS)  # of the call that came to its end
    assert states[0].len in lengths


def test_the_cases_cover_every_kind_of_part():
    assert {slot.kind for slot in SOURCE.layout.slots} == {"kv", "latent", "recurrent"}
    assert {area.kind for area in SOURCE.layout.areas} == {"full", "ring", "recurrent"}
