"""Row operations: quantising, embedding, norms, rope, gates, cache rows, float16."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import State
from fucina.cache.parts import Kv
from fucina.errors import ModelError
from fucina.gguf import GgmlType
from fucina.kernels import record as R
from fucina.kernels import reference
from fucina.kernels.formats import NAMES
from fucina.kernels.invoke import function, invoke, record_words
from tests.unit import one_op
from tests.unit.kernel_inputs import FLOATS, ISAS, packed, random_bits, rows, same_bits, weights
from tests.unit.tiny_models import ArrayWeight


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["q8", "q8k"])
def test_quantise(kind, isa):
    x = rows(np.random.default_rng(0), 6, 1024)
    x[1], x[2, :256], x[3, 5], x[4] = 0, 1e-40, 3e38, 2.0**-120 * np.sign(x[4])
    x[5], x[5, ::32] = np.arange(1024) % 31 - 15.5, 127  # ties go to even
    expected = reference.quantise(x, kind)
    for rule, parts in (("rows", 1), ("rows", 2), ("rows", 3), ("cols", 1)):
        got = one_op.quantise(x, kind, isa, rule, parts)
        assert all(same_bits(got[n], expected[n]) for n in ("q", "d", "s", "s16")), (rule, parts)
    assert expected["q"].min() == -127 and expected["q"].max() == 127 and not expected["q"][1].any()


@pytest.mark.parametrize("kind,block", [("q8", 32), ("q8k", 256)])
def test_numbers_that_are_not_finite_show_in_the_scale(kind, block):
    x = np.ones((2, 2 * block), np.float32)
    x[0, 3], x[1, block] = np.nan, np.inf
    d = one_op.quantise(x, kind)["d"]
    assert np.isnan(d[0, 0]) and np.isfinite(d[0, 1]) and np.isinf(d[1, 1]) and np.isfinite(d[1, 0])


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("fmt", NAMES)
def test_embed(fmt, isa):
    rng = np.random.default_rng(5)
    n, cols = (13, 21) if fmt in FLOATS else (13, 512)
    raw = weights(rng, fmt, n, cols) if fmt in FLOATS else random_bits(rng, fmt, n, cols)
    tokens = [12, 0, 7, 7, 8]
    for scale in (1.0, float(np.float32(23.7))):
        assert same_bits(one_op.embed(tokens, packed(raw, fmt), scale, isa), reference.embed(tokens, raw, fmt, scale))


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("n,heads", [(1, 1), (7, 3), (8, 2), (31, 2), (32, 1), (33, 1), (40, 4), (63, 2), (576, 1)])
def test_rms_norm(n, heads, isa):
    rng = np.random.default_rng(n)
    x, w = rows(rng, 4, n * heads), rng.standard_normal(n).astype(np.float32)
    y = one_op.rms_norm(x, w, 1e-5, heads, isa)
    assert same_bits(y, reference.rms_norm(x, w, 1e-5, heads))
    v = x.reshape(4, heads, n).astype(np.float64)
    assert np.allclose(y.reshape(v.shape), v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5) * w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("head_dim,dims", [(64, 64), (16, 8), (8, 2), (24, 20), (20, 6), (256, 256), (10, 10)])
def test_rope(head_dim, dims, pairing, isa):
    rng, heads = np.random.default_rng(dims), 3
    x, positions = rows(rng, 5, heads * head_dim), [0, 11, 3, 3, 7]
    angle = np.arange(12)[:, None] * 10000.0 ** (-np.arange(dims // 2) / (dims / 2))
    table = np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    y = one_op.rope(x, heads, dims, table, positions, pairing, isa)
    assert same_bits(y, reference.rope(x, heads, dims, table, positions, pairing))
    a, b = x.reshape(5, heads, head_dim), y.reshape(5, heads, head_dim)
    assert same_bits(a[..., dims:].copy(), b[..., dims:].copy())  # the rest is copied
    assert np.allclose((a**2).sum(-1), (b**2).sum(-1), rtol=1e-5)  # a rotation keeps lengths
    first = (0, 1) if pairing == "interleaved" else (0, dims // 2)  # the pair that turns fastest
    turned = a[1, 0, first[0]] * np.cos(11) - a[1, 0, first[1]] * np.sin(11)
    assert np.isclose(b[1, 0, first[0]], turned, rtol=1e-4, atol=1e-4 * np.abs(a[1, 0]).max())


TWINS = {
    "add": np.add,
    "mul": np.multiply,
    "sigmoid": reference.sigmoid,
    "softplus": reference.softplus,
    "swiglu": reference.swiglu,
    "geglu": reference.geglu,
}
PLAIN = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "swiglu": lambda x, y: x / (1 + np.exp(-x)) * y,
    "geglu": lambda x, y: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) * y,
}


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("name", list(PLAIN))
def test_elementwise(name, isa):
    rng = np.random.default_rng(0)
    for cols in (1, 8, 13, 72, 77):
        x, y = (rng.standard_normal((3, cols)).astype(np.float32) * 8 for _ in range(2))
        x[0, 0], x[1, 0], x[2, 0] = -200, 200, 0
        inputs = (x,) if name in ("sigmoid", "softplus") else (x, y)
        for cut in (1, 2, 3):
            got = one_op.elementwise(name, *inputs, isa=isa, cut=cut)
            assert same_bits(got, TWINS[name](*inputs))
        assert np.allclose(got, PLAIN[name](*(v.astype(float) for v in inputs)), rtol=2e-5, atol=1e-5)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40))
def test_softplus_is_accurate(values):
    """Also where it is tiny: as long as e^x is not clamped."""
    x = np.array([values], np.float32)
    x = np.maximum(x, np.float32(-87))
    got, true = one_op.elementwise("softplus", x), np.logaddexp(0, x.astype(np.float64))
    assert same_bits(got, reference.softplus(x))
    assert (np.abs(got - true) <= 4e-7 * true).all()


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("cap", [0.5, 30.0, 1e4])
def test_softcap(cap, isa):
    x = np.random.default_rng(1).standard_normal((3, 21)).astype(np.float32) * 50
    x[0, :3] = -1e30, 0, 1e30
    for cut in (1, 2):
        got = one_op.run(lambda r, x: r.softcap(x, cap), x, isa=isa, cut=cut)
        assert same_bits(got, reference.softcap(x, cap))
    assert np.allclose(got, cap * np.tanh(x.astype(float) / cap), rtol=1e-5, atol=3e-7 * cap)


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
def test_one_vector_for_all_rows(isa):
    rng = np.random.default_rng(2)
    x, w, one = (rng.standard_normal(s).astype(np.float32) for s in ((5, 77), 77, 1))
    run = lambda op: one_op.run(op, x, isa=isa, cut=2)
    assert same_bits(run(lambda r, x: r.scale(x, one_op.Array(w))), x * w)
    assert same_bits(run(lambda r, x: r.bias(x, one_op.Array(w))), x + w)
    assert same_bits(run(lambda r, x: r.scale(x, 0.1)), x * np.float32(0.1))
    assert same_bits(run(lambda r, x: r.scale(x, ArrayWeight("one", one, GgmlType.F32))), x * one)
    assert same_bits(run(lambda r, x: r.rms_norm(x, None, 1e-5, 7)), reference.rms_norm(x, np.ones(11, "f"), 1e-5, 7))
    y = rng.standard_normal((5, 1)).astype(np.float32)
    assert same_bits(one_op.run(lambda r, x, y: r.mul(x, y), x, y, isa=isa, cut=2), x * y)
    for wrong in (w[:76], one_op.Array(w).data.reshape(1, 77)):
        with pytest.raises(ModelError, match=r"expected \[77\]"):
            run(lambda r, x, wrong=wrong: r.bias(x, one_op.Array(wrong)))


def test_elementwise_keeps_to_its_units():
    x = np.ones((2, 20), np.float32)
    out = np.full((2, 20), 7, np.float32)
    at = x.ctypes.data
    params = {"x": at, "x_step": 20, "y": at, "y_step": 20, "out": out.ctypes.data, "cols": 20}
    invoke("add", params, units=(1, 2), unit=6, job={R.M: 2})
    assert (out[:, 6:12] == 2).all() and (out[:, :6] == 7).all() and (out[:, 12:] == 7).all()


def test_output_rows_of_a_pass():
    """A column kernel works on the rows of its row space: ROWS_TIMES times what ROWS_WORD of the job says."""
    for space, count in (((R.N_OUT, 1), 2), ((R.M, 1), 4), ((R.N_OUT, 3), 6)):
        x, out, job = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32), np.zeros(R.JOB_WORDS, np.int64)
        job[[R.M, R.N_OUT]] = 4, 2
        params = {"x": x.ctypes.data, "x_step": 8, "out": out.ctypes.data, "cols": 8}
        record = record_words("test.add_one", params, unit=8, rows=space)
        function("test.add_one")(record.ctypes.data, job.ctypes.data, 0, 1, 0)
        assert (out[:count] == 2).all() and not out[count:].any()


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
def test_gather_rows(isa):
    x = rows(np.random.default_rng(0), 6, 21)
    assert same_bits(one_op.gather_rows(x, [1, 2, 5], isa), x[[1, 2, 5]])


@pytest.mark.parametrize("isa", ISAS)
def test_float16_is_exact_both_ways(isa):
    """Every float16 number through the cache's reader, every kind of rounding through its writer."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    exact = finite.astype(np.float32)
    odd = np.float32(1) + np.random.default_rng(0).standard_normal(len(exact)).astype(np.float32) * np.float32(2.0**-12)
    halfway = (exact[:-1] + exact[1:]) / np.float32(2)
    special = [65519.99, 65520, 1e9, 1e-9, np.inf, -np.inf, 2.0**-25, 2.0**-24 * 1.5]
    x = np.concatenate([special, exact, exact * odd, halfway])
    x = x[: len(x) // 8 * 8].astype(np.float32)
    state = State([Kv(1, len(x), 8)], 1)
    value = np.zeros((1, 8), np.float32)
    one_op.append(state, x[None], value, [0], isa)
    with np.errstate(over="ignore"):
        assert same_bits(state.planes(0)[0][0, 0].view(np.uint16), x.astype(np.float16).view(np.uint16))


@settings(max_examples=50)
@given(st.lists(st.floats(-90, 90, width=32), min_size=1, max_size=40))
def test_exp_is_accurate(values):
    """Through silu's denominator: x / silu(x) - 1 = e^-x."""
    x = np.array([values], np.float32)
    e = reference.exp(x)
    assert np.allclose(e, np.exp(np.clip(x.astype(np.float64), -87, 88)), rtol=3e-7)
    ones = np.ones_like(x)
    assert same_bits(one_op.elementwise("swiglu", x, ones), reference.swiglu(x, ones))


@settings(max_examples=200)
@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_the_twins_fma_rounds_once(x, y, z):
    """Against exact rational arithmetic."""
    from fractions import Fraction

    exact = Fraction(x) * Fraction(y) + Fraction(z)
    got = float(reference.fma(np.float32(x), np.float32(y), np.float32(z)))
    if np.isfinite(got) and abs(exact) < 3e38:
        near = [np.nextafter(np.float32(got), np.float32(s)) for s in (-np.inf, np.inf)]
        assert all(abs(exact - Fraction(got)) <= abs(exact - Fraction(float(n))) for n in near if np.isfinite(n))
