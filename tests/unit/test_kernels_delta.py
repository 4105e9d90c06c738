"""The gated delta rule and the convolution: equal to their twins, whatever company a stream has and however its rows are
cut into passes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import State
from fucina.cache.parts import Kv, Recurrent
from fucina.errors import ModelError
from fucina.kernels import reference
from tests.unit import one_op
from tests.unit.kernel_inputs import ISAS, same_bits

SHAPES = [
    (1, 1, 1),
    (3, 7, 5),
    (2, 16, 8),
    (2, 12, 20),
    (4, 33, 17),
    (2, 9, 75),
    (1, 16, 64),
]  # heads, width of keys, of values


def rows(rng, m, shape):
    """Inputs of m rows: q, k, v, decay, beta."""
    heads, k_dim, v_dim = shape
    q, k, v = (rng.standard_normal((m, heads * d)).astype(np.float32) for d in (k_dim, k_dim, v_dim))
    decay, beta = -rng.random((m, heads)).astype(np.float32) * 3, rng.random((m, heads)).astype(np.float32)
    return q, k / np.float32(k_dim**0.5), v, decay, beta


def state_of(shape):
    """A state with two recurrent parts; the second one is used."""
    return State([Recurrent((3,)), Kv(1, 8, 8), Recurrent(shape)], 1000)


def pass_over(states, counts, inputs, shape, isa=None, cut=1):
    """One pass of counts[i] rows of states[i]; commits."""
    for state, n in zip(states, counts):
        state.begin(n)
    op = lambda r, *x: r.delta_rule(2, *x, shape[0])
    over = one_op.Pass(states, [s.len for s in states], counts)
    out = one_op.run(op, *inputs, parts=states[0].parts, dtype="f16", over=over, isa=isa, cut=cut)
    for state, n in zip(states, counts):
        state.next_pass()
        state.commit(n)
    return out


def twin(inputs, shape):
    """Outputs of all rows of one stream, and the matrices after them."""
    heads, k_dim, v_dim = shape
    s, out = np.zeros(shape, np.float32), []
    for q, k, v, decay, beta in zip(*inputs):
        args = (q.reshape(heads, k_dim), k.reshape(heads, k_dim), v.reshape(heads, v_dim), decay, beta)
        s, o = reference.delta_rule(s, *args)
        out.append(o.reshape(-1))
    return np.stack(out), s


def matrices(state):
    state.begin(0)
    found = state.recurrent(2)[0].copy()
    state.rollback()
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_twin(shape, isa):
    inputs = rows(np.random.default_rng(1), 20, shape)
    want, s = twin(inputs, shape)
    for cut in (1, 3):
        state = state_of(shape)
        assert same_bits(pass_over([state], [20], inputs, shape, isa, cut), want)
        assert same_bits(matrices(state), s)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_plain_arithmetic(shape):
    heads, _k_dim, _v_dim = shape
    inputs = rows(np.random.default_rng(2), 30, shape)
    q, k, v, decay, beta = (x.astype(np.float64).reshape(30, heads, -1) for x in inputs)
    s, out = np.zeros(shape), []
    for t in range(30):
        s *= np.exp(decay[t])[:, :, None]
        s += k[t][:, :, None] * (beta[t] * (v[t] - np.einsum("hk,hkv->hv", k[t], s)))[:, None, :]
        out.append(np.einsum("hk,hkv->hv", q[t], s).reshape(-1))
    assert np.allclose(twin(inputs, shape)[0], np.stack(out), rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(st.data())
def test_any_company_and_any_cuts(data):
    """Three streams in passes together, each against itself alone."""
    shape = data.draw(st.sampled_from(SHAPES))
    states, given_rows, got = [state_of(shape) for _ in range(3)], [[] for _ in range(3)], [[] for _ in range(3)]
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(data.draw(st.integers(1, 5))):
        counts = data.draw(st.tuples(*[st.integers(0, 9)] * 3).filter(any))
        active = [i for i in range(3) if counts[i]]
        inputs = rows(rng, sum(counts), shape)
        out = pass_over([states[i] for i in active], [counts[i] for i in active], inputs, shape)
        at = 0
        for i in active:
            given_rows[i].append([x[at : at + counts[i]] for x in inputs])
            got[i].append(out[at : at + counts[i]])
            at += counts[i]
    for i in range(3):
        if got[i]:
            want, s = twin([np.concatenate(x) for x in zip(*given_rows[i])], shape)
            assert same_bits(np.concatenate(got[i]), want) and same_bits(matrices(states[i]), s)


def test_the_committed_bank_is_not_written():
    shape = (2, 12, 20)
    state, inputs = state_of(shape), rows(np.random.default_rng(3), 6, shape)
    pass_over([state], [6], inputs, shape)
    before = matrices(state)
    state.begin(6)
    op = lambda r, *x: r.delta_rule(2, *x, 2)
    over = one_op.Pass([state], [6], [6])
    first, second = (one_op.run(op, *inputs, parts=state.parts, dtype="f16", over=over) for _ in range(2))
    state.rollback()
    assert same_bits(matrices(state), before) and same_bits(first, second)


def test_mistakes_are_named():
    inputs = rows(np.random.default_rng(0), 2, (2, 8, 8))
    state = state_of((2, 8, 4))
    with pytest.raises(ModelError, match=r"slot 2 keeps \(2, 8, 4\)"):
        pass_over([state], [2], inputs, (2, 8, 8))
    with pytest.raises(ModelError, match="slot 1 is not a part"):
        one_op.run(lambda r, *x: r.delta_rule(1, *x, 2), *inputs, parts=state.parts)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("key_heads", [1, 2, 3])
def test_heads_that_share_keys(key_heads, isa):
    """Head h has key head h mod key_heads: as if the keys came again and again."""
    shape = (6, 7, 5)
    q, k, v, decay, beta = rows(np.random.default_rng(4), 12, shape)
    few = [x[:, : key_heads * 7].copy() for x in (q, k)]
    many = [np.tile(x, (1, 6 // key_heads)) for x in few]
    got = pass_over([state_of(shape)], [12], (*few, v, decay, beta), shape, isa, cut=2)
    assert same_bits(got, twin((*many, v, decay, beta), shape)[0])


# --- convolution ------------------------------------------------------------------------------------------------------


def convolve(states, counts, x, w, isa=None, cut=1):
    """One pass of counts[i] rows of states[i]; commits."""
    for state, n in zip(states, counts, strict=True):
        state.begin(n)
    over = one_op.Pass(states, [s.len for s in states], counts)
    op = lambda r, x: r.conv(1, x, one_op.Array(w))
    out = one_op.run(op, x, parts=states[0].parts, over=over, isa=isa, cut=cut)
    for state, n in zip(states, counts, strict=True):
        state.next_pass()
        state.commit(n)
    return out


def conv_twin(x, w):
    """Outputs of all rows of one stream, and its latest inputs."""
    padded = np.concatenate([np.zeros((w.shape[1] - 1, len(w)), np.float32), x])
    out = [reference.conv(padded[i : i + w.shape[1]], w) for i in range(len(x))]
    return np.stack(out), padded[len(x) :]


def conv_state(cols, taps):
    return State([Recurrent((5,)), Recurrent((taps - 1, cols))], 1000, "f32")


def latest(state):
    state.begin(0)
    found = state.recurrent(1)[0].copy()
    state.rollback()
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("cols", "taps"), [(1, 2), (13, 4), (256, 3), (300, 4), (520, 9)])
def test_conv_is_equal_to_its_twin(cols, taps, isa):
    rng = np.random.default_rng(cols)
    x, w = rng.standard_normal((12, cols)).astype(np.float32), rng.standard_normal((cols, taps)).astype(np.float32)
    want, last = conv_twin(x, w)
    for cut in (1, 3):
        state = conv_state(cols, taps)
        assert same_bits(convolve([state], [12], x, w, isa, cut), want)
        assert same_bits(latest(state), last)
    plain = [np.convolve(x[:, c].astype(float), w[c, ::-1])[:12] for c in range(cols)]
    assert np.allclose(want, np.stack(plain, 1), rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(st.data())
def test_conv_in_any_company_and_any_cuts(data):
    cols, taps = data.draw(st.sampled_from([(3, 2), (21, 4), (260, 5)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    w = rng.standard_normal((cols, taps)).astype(np.float32)
    texts = [rng.standard_normal((0, cols)).astype(np.float32) for _ in range(3)]
    states, got = [conv_state(cols, taps) for _ in range(3)], [[] for _ in range(3)]
    for _ in range(data.draw(st.integers(1, 6))):
        counts = data.draw(st.tuples(*[st.integers(0, 6)] * 3).filter(any))
        active = [i for i in range(3) if counts[i]]
        x = rng.standard_normal((sum(counts), cols)).astype(np.float32)
        out = convolve([states[i] for i in active], [counts[i] for i in active], x, w)
        ends = np.cumsum([counts[i] for i in active])
        for i, mine, y in zip(active, np.split(x, ends[:-1]), np.split(out, ends[:-1]), strict=True):
            texts[i] = np.concatenate([texts[i], mine])
            got[i].append(y)
    for state, text, outs in zip(states, texts, got, strict=True):
        if outs:
            want, last = conv_twin(text, w)
            assert same_bits(np.concatenate(outs), want) and same_bits(latest(state), last)


def test_mistakes_of_a_convolution_are_named():
    state, x = conv_state(8, 4), np.zeros((2, 8), np.float32)
    for shape in ((8, 3), (7, 4), (8,)):
        with pytest.raises(ModelError, match=r"slot 1 keeps \(3, 8\)"):
            convolve([state], [2], x, np.zeros(shape, np.float32))
