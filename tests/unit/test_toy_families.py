"""Toy families, and real ones in the sizes of a toy: the same however the rows are cut; toys also against a plain loop."""

from contextlib import closing

import numpy as np
import pytest

from fucina.cache import State
from fucina.errors import CannotRewind
from fucina.gguf import GgufFile
from fucina.ops.naive import Naive
from fucina.ops.native import Native
from fucina.ops.native_bits import NATIVE_BITS
from fucina.ops.rows import MAX_ROWS, RowBatch
from tests.toy_families import FORMATS, KINDS, registered, toy_family, toy_oracle, toy_path
from tests.unit.tiny_models import EAGER

TEXT = np.random.default_rng(3).integers(0, 256, 400).tolist()
DTYPE = {"f32": "f32", "quantised": "f16"}
THREADS = {"threads": 2, "context": 512, **EAGER}


def compute(interpreter, entries):
    """The next tokens of several streams in one call, cut into passes of at most 128 rows: logits of every row."""
    for state, ids in entries:
        state.begin(len(ids))
    rows = [(i, state.len + p, t) for i, (state, ids) in enumerate(entries) for p, t in enumerate(ids)]
    out = []
    for at in range(0, len(rows), MAX_ROWS):
        stream, positions, tokens = (np.array(column) for column in zip(*rows[at : at + MAX_ROWS], strict=True))
        here = np.unique(stream)
        states = [entries[i][0] for i in here]
        batch = RowBatch(tokens, positions, np.searchsorted(here, stream), states, np.arange(len(tokens)))
        out.append(interpreter.run(batch))
        for state in states:
            state.next_pass()
    for state, ids in entries:
        state.commit(len(ids))
    return np.split(np.concatenate(out), np.cumsum([len(ids) for _, ids in entries])[:-1])


def alone(interpreter, family, tokens, dtype="f32", cuts=()):
    """Logits of one text in a fresh state, in as many calls as there are parts."""
    state = State(family.parts, 512, dtype)
    parts = np.split(np.asarray(tokens), list(cuts))
    return np.concatenate([compute(interpreter, [(state, part.tolist())])[0] for part in parts if len(part)])


@pytest.fixture(scope="module", params=[*KINDS, "qwen35", "gemma4"])
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=FORMATS)
def fmt(request):
    return request.param


@pytest.fixture(scope="module")
def family(kind, fmt):
    return toy_family(kind, fmt)


@pytest.fixture(scope="module", params=["naive", "native"])
def interpreter(request, family, fmt):
    made = Naive(family) if request.param == "naive" else Native(family, **THREADS, cache_dtype=DTYPE[fmt])
    yield made
    made.close()


@pytest.fixture(scope="module")
def native(family, fmt):
    with closing(Native(family, **THREADS, cache_dtype=DTYPE[fmt])) as made:
        yield made


LONG = TEXT[:205]  # the rings of 192 rows wrap


@pytest.fixture(scope="module")
def whole(fmt, family, interpreter):
    """Logits of the long text, computed in one call."""
    return alone(interpreter, family, LONG, DTYPE[fmt])


@pytest.mark.parametrize("kind", KINDS)
def test_the_mathematics_is_that_of_a_plain_loop(kind, fmt):
    """A loop over the whole text in float64, without rows, streams or states; the text is longer than two passes."""
    family, expected = toy_family(kind, fmt), toy_oracle(kind, fmt, TEXT[:270])
    got = alone(Naive(family), family, TEXT[:270])
    np.testing.assert_allclose(got, expected, atol=2e-4 * np.abs(expected).max())


def test_the_fast_engine_is_close_to_it(kind, fmt, family, native):
    expected = toy_oracle(kind, fmt, LONG) if kind in KINDS else alone(Naive(family), family, LONG)
    got = alone(native, family, LONG, DTYPE[fmt])
    limit = 1e-4 if fmt == "f32" else 0.1
    assert np.abs(got - expected).mean() < limit * np.abs(expected).mean()


def test_native_bits_are_those_of_the_fast_engine(fmt, family, native):
    """At the beginning of a text, and where rings have wrapped: there on a copy of the state."""
    state = State(family.parts, 512, DTYPE[fmt])
    twin = Naive(family, functions=NATIVE_BITS)
    for part in (TEXT[:9], TEXT[9:195], TEXT[195:200]):
        copy = State(family.parts, 512, DTYPE[fmt])
        copy.restore(state.snapshot())
        got = compute(native, [(state, part)])[0]
        if len(part) < 10:
            assert compute(twin, [(copy, part)])[0].tobytes() == got.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_matter(fmt, family, native, threads):
    expected = alone(native, family, LONG, DTYPE[fmt])
    with closing(Native(family, **{**THREADS, "threads": threads}, cache_dtype=DTYPE[fmt])) as other:
        assert alone(other, family, LONG, DTYPE[fmt], [7, 150]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("cuts", [[1], [128], range(1, 205, 7), [100, 101, 102, 129]], ids=str)
def test_cuts_do_not_matter(fmt, family, interpreter, whole, cuts):
    assert alone(interpreter, family, LONG, DTYPE[fmt], cuts).tobytes() == whole.tobytes()


def test_streams_do_not_meet(fmt, family, interpreter):
    texts = [TEXT[:40], TEXT[40:41], TEXT[50:150], TEXT[150:170]]
    expected = [alone(interpreter, family, text, DTYPE[fmt]) for text in texts]
    states = [State(family.parts, 512, DTYPE[fmt]) for _ in texts]
    first = compute(interpreter, [(s, t[: len(t) // 2]) for s, t in zip(states, texts, strict=True) if len(t) > 1])
    second = compute(interpreter, [(s, t[len(t) // 2 :]) for s, t in zip(states, texts, strict=True)])
    first.insert(1, second[1][:0])
    for a, b, whole in zip(first, second, expected, strict=True):
        assert np.concatenate([a, b]).tobytes() == whole.tobytes()


def test_a_pass_that_fails_changes_nothing(fmt, family, interpreter, whole):
    state = State(family.parts, 512, DTYPE[fmt])
    compute(interpreter, [(state, LONG[:195])])
    state.begin(150)
    rows = np.arange(100)
    interpreter.run(RowBatch(np.array(TEXT[200:300]), 195 + rows, 0 * rows, [state], rows))
    state.next_pass()  # and the second pass of this call never comes
    state.rollback()
    assert state.len == 195
    assert compute(interpreter, [(state, LONG[195:])])[0].tobytes() == whole[195:].tobytes()


def test_going_back_and_on(fmt, family, interpreter, whole):
    """Whatever the state can go back to, the rest computed again has the same bits."""
    state = State(family.parts, 512, DTYPE[fmt])
    compute(interpreter, [(state, LONG[:60])])
    state.checkpoint()
    compute(interpreter, [(state, LONG[60:204])])
    compute(interpreter, [(state, LONG[204:])])
    for keep in (204, 200, 64, 1):
        point = state.rewind_point(keep)
        if point != keep:
            with pytest.raises(CannotRewind):
                state.rewind(keep)
        state.rewind(point)
        assert compute(interpreter, [(state, LONG[point:])])[0].tobytes() == whole[point:].tobytes()


def test_what_each_kind_can_go_back_to(kind):
    family = toy_family(kind)
    naive, state = Naive(family), State(family.parts, 512, "f32")
    compute(naive, [(state, TEXT[:60])])
    state.checkpoint()
    compute(naive, [(state, TEXT[60:300])])
    points = {n: state.rewind_point(n) for n in (10, 61, 120, 290, 300)}
    expected = {
        "recurrent": {10: 0, 61: 60, 120: 60, 290: 60, 300: 300},
        "ring": {10: 0, 61: 0, 120: 0, 290: 290, 300: 300},
    }
    like = {"qwen35": "recurrent", "gemma4": "ring"}
    assert points == expected.get(like.get(kind, kind), {n: n for n in points})


@pytest.mark.parametrize("kind", KINDS)
def test_toys_are_known_only_while_they_are_registered(kind):
    from fucina.errors import UnsupportedArchitecture
    from fucina.models import read_family

    file = GgufFile(toy_path(kind))
    with registered():
        assert read_family(file).architecture == f"toy-{kind}"
    with pytest.raises(UnsupportedArchitecture):
        read_family(file)


def test_greedy_texts_wander(kind):
    """Otherwise equality of texts would prove little."""
    family = toy_family(kind)
    naive, state, token, text = Naive(family), State(family.parts, 512, "f32"), 65, []
    for _ in range(100):
        logits = compute(naive, [(state, [token])])[0][0][:258]
        token = int(logits.argmax())
        text.append(token)
    assert len(set(text)) > 20
