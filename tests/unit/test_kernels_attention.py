"""Attention: chunks, windows, splits; what lies outside a row's span is never read."""

import numpy as np
import pytest

from fucina.kernels import call, reference
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
