"""Attention: chunks, windows, splits; what lies outside a row's span is never read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.kernels import call, reference
from fucina.kernels import record as R
from fucina.kernels.attention import part_bytes, scratch_bytes
from fucina.kernels.pack import aligned
from tests.unit.kernel_inputs import ISAS, same_bits

SHAPES = [(3, 3, 64, 64), (1, 2, 16, 8), (4, 1, 256, 256), (5, 2, 24, 40)]  # queries a kv head, kv heads, widths
STRIDE = 320
POSITIONS = [0, 1, 7, 63, 64, 65, 127, 200, 300, 319]


def inputs(shape, dtype, seed=0):
    group, kv_heads, k_dim, v_dim = shape
    rng = np.random.default_rng(seed)
    cache = np.full(STRIDE * kv_heads * (k_dim + v_dim), np.nan, dtype)
    key, value = (rng.standard_normal((STRIDE, kv_heads * d)).astype(np.float32) * 2 for d in (k_dim, v_dim))
    q = rng.standard_normal((len(POSITIONS), group * kv_heads * k_dim)).astype(np.float32)
    return cache, key, value, q


def planes(cache, shape):
    """Keys [kv heads, STRIDE, k_dim] and values, views on the cache."""
    _, kv_heads, k_dim, v_dim = shape
    border = STRIDE * kv_heads * k_dim
    return cache[:border].reshape(kv_heads, STRIDE, k_dim), cache[border:].reshape(kv_heads, STRIDE, v_dim)


def run(cache, q, shape, scale, window=0, split=False, isa=None, positions=POSITIONS):
    group, kv_heads, _, v_dim = shape
    return call.attention(cache, q, group * kv_heads, kv_heads, v_dim, positions, scale, window, split, isa)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cache_rows(shape, dtype):
    cache, key, value, _ = inputs(shape, dtype)
    for isa in (ISAS[0], "generic"):
        cache[:] = np.nan
        call.kv_append(cache, key[:5], value[:5], shape[1], [3, 0, 319, 64, 5], isa)
        k, v = planes(cache, shape)
        for plane, rows, dim in ((k, key, shape[2]), (v, value, shape[3])):
            written = plane[:, [3, 0, 319, 64, 5]].swapaxes(0, 1)
            assert same_bits(written.copy(), rows[:5].reshape(5, -1, dim).astype(dtype))
        assert np.isfinite(cache).sum() == 5 * shape[1] * (shape[2] + shape[3])


@pytest.mark.parametrize("window", [0, 1, 7, 64, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_twin_and_to_softmax(shape, dtype, window):
    group, kv_heads, k_dim, v_dim = shape
    cache, key, value, q = inputs(shape, dtype)
    call.kv_append(cache, key, value, kv_heads, range(STRIDE))
    got = run(cache, q, shape, 0.3, window)
    for isa in (ISAS[0], "generic"):
        assert same_bits(run(cache, q, shape, 0.3, window, isa=isa), got)
        assert same_bits(run(cache, q, shape, 0.3, window, split=True, isa=isa), got)
    k, v = (p.astype(np.float32) for p in planes(cache, shape))
    heads = got.reshape(len(POSITIONS), kv_heads, group, v_dim)
    queries = q.reshape(len(POSITIONS), kv_heads, group, k_dim)
    for i, p in enumerate(POSITIONS):
        lo = max(0, p - window + 1) if window else 0
        for h in range(kv_heads):
            s = k[h, lo : p + 1].astype(np.float64) @ queries[i, h].T * 0.3  # [n, group]
            w = np.exp(s - s.max(0))
            assert np.allclose(heads[i, h], (w / w.sum(0)).T @ v[h, lo : p + 1], rtol=1e-4, atol=2e-5)
        h, g = i % kv_heads, i % group
        twin = reference.attention(k[h], v[h], queries[i, h, g], p, 0.3, window)
        assert same_bits(heads[i, h, g].copy(), twin), p


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_masked_rows_are_never_read(shape, poison):
    cache, key, value, q = inputs(shape, np.float16)
    call.kv_append(cache, key, value, shape[1], range(STRIDE))
    k, v = planes(cache, shape)
    for i, p in enumerate(POSITIONS):
        for window in (0, 20):
            clean = run(cache, q[i : i + 1], shape, 0.3, window, positions=[p])
            dirty = cache.copy()
            lo = max(0, p - window + 1) if window else 0
            for plane in planes(dirty, shape):
                plane[:, p + 1 :], plane[:, :lo] = poison, poison
            for split in (False, True):
                assert same_bits(run(dirty, q[i : i + 1], shape, 0.3, window, split, positions=[p]), clean)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(shape):
    """Neighbouring positions of one stream, as in a prefill, against one at a time."""
    group, kv_heads, k_dim, v_dim = shape
    cache, key, value, _ = inputs(shape, np.float16)
    call.kv_append(cache, key, value, kv_heads, range(STRIDE))
    for first, m in ((0, 21), (50, 30), (126, 7), (250, 70)):
        q = np.random.default_rng(first).standard_normal((m, group * kv_heads * k_dim)).astype(np.float32)
        for window in (0, 33):
            positions = np.arange(first, first + m)
            together = run(cache, q, shape, 0.2, window, positions=positions)
            for i in (0, 1, m // 2, m - 2, m - 1):
                alone = run(cache, q[i : i + 1], shape, 0.2, window, positions=positions[i : i + 1])
                assert same_bits(together[i : i + 1], alone), (first, window, i)


def test_large_scores_stay_finite():
    shape = SHAPES[1]
    cache, key, value, q = inputs(shape, np.float32)
    call.kv_append(cache, key * 1e4, value, shape[1], range(STRIDE))
    y = run(cache, q * 1e4, shape, 1.0)
    assert np.isfinite(y).all() and np.abs(y).max() <= np.abs(value).max() * (1 + 1e-6)


def test_numbers_that_are_not_finite_show_in_the_result():
    shape = SHAPES[1]
    for dirty in ("key", "value", "q"):
        cache, key, value, q = inputs(shape, np.float32)
        {"key": key, "value": value, "q": q}[dirty][2] = np.nan
        call.kv_append(cache, key, value, shape[1], range(STRIDE))
        y = run(cache, q, shape, 0.3)
        assert np.isnan(y[2]).all() and np.isfinite(y[:2]).all()


@settings(max_examples=40)
@given(st.data())
def test_rows_of_several_streams_cut_anywhere(data):
    """As the team runs it: rows of two caches in any order, the units cut into calls on threads of their own."""
    shape = group, kv_heads, k_dim, v_dim = data.draw(st.sampled_from(SHAPES))
    window = data.draw(st.sampled_from([0, 0, 5, 90]))
    run_of_rows = st.tuples(st.integers(0, 1), st.integers(0, 280), st.integers(1, 14))  # stream, first position, rows
    starts = data.draw(st.lists(run_of_rows, min_size=1, max_size=4))
    rows = [(stream, p) for stream, first, n in starts for p in range(first, first + n)]
    m, positions = len(rows), [p for _, p in rows]
    units = m * kv_heads
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, units), max_size=5))), units]
    caches = []
    for seed in (0, 1):
        cache, key, value, _ = inputs(shape, np.float16, seed)
        call.kv_append(cache, key, value, kv_heads, range(STRIDE))
        caches.append(cache)
    q = np.random.default_rng(m).standard_normal((m, group * kv_heads * k_dim)).astype(np.float32)
    out = np.full((m, group * kv_heads * v_dim), np.nan, np.float32)
    table = call.row_table(None, positions, [caches[s].ctypes.data for s, _ in rows], [STRIDE] * m)
    scratch = aligned(scratch_bytes(group, k_dim, v_dim))
    words = [q.ctypes.data, out.ctypes.data, kv_heads, 0, kv_heads * k_dim, window, 0.3]
    job = {R.SCRATCH: scratch.ctypes.data, R.SCRATCH_STEP: scratch.size}
    name = f"attention.f16.{group}.{k_dim}.{v_dim}"
    for cut in zip(cuts, cuts[1:]):
        call.invoke(name, words, units=cut, rows=m, table=table, job=job)
    for i, (s, p) in enumerate(rows):
        alone = run(caches[s], q[i : i + 1], shape, 0.3, window, positions=[p])
        assert same_bits(out[i : i + 1], alone), (i, rows[i], cuts)


def test_sizes_of_scratch():
    """Nothing is written behind what the sizes promise."""
    for group, kv_heads, k_dim, v_dim in SHAPES:
        cache, key, value, _ = inputs((group, kv_heads, k_dim, v_dim), np.float16)
        call.kv_append(cache, key, value, kv_heads, range(STRIDE))
        m, size = 40, scratch_bytes(group, k_dim, v_dim)
        q = np.ones((m, group * kv_heads * k_dim), np.float32)
        out = np.empty((m, group * kv_heads * v_dim), np.float32)
        parts = aligned(m * kv_heads * 5 * part_bytes(group, v_dim) + 64)
        scratch = aligned(size + 64)
        scratch[:], parts[:] = 0xA5, 0xA5
        table = call.row_table(None, np.arange(280, 280 + m), [cache.ctypes.data] * m, [STRIDE] * m)
        words = [q.ctypes.data, out.ctypes.data, kv_heads, 0, kv_heads * k_dim, 0, 0.3]
        for split in (0, 1):
            job = {R.SCRATCH: scratch.ctypes.data, R.SCRATCH_STEP: size, R.SPLIT: split, R.NPART: 5}
            units = m * kv_heads * (5 if split else 1)
            job[R.PART] = parts.ctypes.data
            name = f"f16.{group}.{k_dim}.{v_dim}"
            call.invoke("attention." + name, words, units=(0, units), rows=m, table=table, job=job)
            call.invoke("combine." + name, words, units=(0, m * kv_heads), rows=m, table=table, job=job)
            assert (scratch[size:] == 0xA5).all() and (parts[-64:] == 0xA5).all()
