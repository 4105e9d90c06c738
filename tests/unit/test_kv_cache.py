"""The KV cache: append, advance, rewind, copy, snapshot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import KvCache, LayerGeometry
from fucina.errors import KvCacheOverflow, KvCacheShapeMismatch

GEOMETRY = (LayerGeometry(2, 8, 16), LayerGeometry(3, 16, 8))


def rows(rng, layer, m):
    g = GEOMETRY[layer]
    return (
        rng.standard_normal((m, g.kv_heads, g.k_dim)).astype(np.float32),
        rng.standard_normal((m, g.kv_heads, g.v_dim)).astype(np.float32),
    )


def fill(cache, rng, m):
    written = [rows(rng, layer, m) for layer in range(len(GEOMETRY))]
    for layer, (k, v) in enumerate(written):
        cache.append(layer, k, v)
    cache.advance(m)
    return written


def held(cache):
    return [
        (k[:, : cache.len].tobytes(), v[:, : cache.len].tobytes()) for k, v in map(cache.planes, range(len(GEOMETRY)))
    ]


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_append_writes_at_len_and_only_advance_moves_it(dtype):
    cache = KvCache(GEOMETRY, 10, dtype)
    rng = np.random.default_rng(0)
    k, v = rows(rng, 1, 3)
    cache.append(1, k, v)
    assert cache.len == 0
    cache.advance(3)
    assert cache.len == 3
    stored = cache.planes(1)[0][:, :3].transpose(1, 0, 2)
    np.testing.assert_array_equal(stored, k.astype(stored.dtype))


def test_planes_start_on_cache_lines_and_bytes_are_counted():
    for capacity in (1, 63, 64, 65):
        cache = KvCache(GEOMETRY, capacity)
        assert cache.stride % 64 == 0 and cache.stride >= capacity
        assert cache.address % 64 == 0
        per_position = 2 * (2 * (8 + 16) + 3 * (16 + 8))
        assert cache.byte_size() == per_position * cache.stride
        for layer in range(2):
            for plane in cache.planes(layer):
                assert plane.ctypes.data % 64 == 0


def test_element_addresses_follow_the_documented_formula():
    cache = KvCache(GEOMETRY, 70, "f32")
    base = cache.address
    offset = 0
    for layer, g in enumerate(GEOMETRY):
        keys, values = cache.planes(layer)
        for head in range(g.kv_heads):
            at = base + 4 * (cache.stride * (offset + head * g.k_dim) + 5 * g.k_dim + 3)
            assert keys[head, 5, 3:].ctypes.data == at
            v_offset = offset + g.kv_heads * g.k_dim
            at = base + 4 * (cache.stride * (v_offset + head * g.v_dim) + 69 * g.v_dim + 7)
            assert values[head, 69, 7:].ctypes.data == at
        offset += g.width


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=8), st.sampled_from(["f16", "f32"])
)
def test_truncate_and_reappend_equals_a_fresh_cache(steps, dtype):
    """Whatever was appended and dropped before, the bytes are those of a cache that only saw what is left."""
    rng = np.random.default_rng(7)
    cache = KvCache(GEOMETRY, 64, dtype)
    left = []  # rows still held, one entry a position
    for m, keep in steps:
        written = fill(cache, rng, m)
        left += [[(k[i : i + 1], v[i : i + 1]) for k, v in written] for i in range(m)]
        cache.truncate(keep)
        left = left[:keep]
        assert cache.len == len(left)
    fresh = KvCache(GEOMETRY, 64, dtype)
    for position in left:
        for layer, (k, v) in enumerate(position):
            fresh.append(layer, k, v)
        fresh.advance(1)
    assert held(cache) == held(fresh)


def test_truncate_above_len_changes_nothing():
    cache = KvCache(GEOMETRY, 8)
    fill(cache, np.random.default_rng(1), 4)
    cache.truncate(9)
    assert cache.len == 4
    with pytest.raises(KvCacheOverflow, match="at least 0"):
        cache.truncate(-1)
    assert cache.len == 4
    cache.reset()
    assert cache.len == 0


def test_overflow_and_shape_errors_change_nothing():
    cache = KvCache(GEOMETRY, 4)
    rng = np.random.default_rng(2)
    fill(cache, rng, 3)
    before = held(cache)
    k, v = rows(rng, 0, 2)
    with pytest.raises(KvCacheOverflow, match="capacity of 4"):
        cache.append(0, k, v)
    with pytest.raises(KvCacheOverflow):
        cache.advance(2)
    with pytest.raises(KvCacheOverflow):
        cache.advance(-1)
    with pytest.raises(KvCacheShapeMismatch, match="layer 0 expects"):
        cache.append(0, k[:, :1], v)
    with pytest.raises(KvCacheShapeMismatch, match="layer 7"):
        cache.append(7, k, v)
    assert held(cache) == before and cache.len == 3


def test_copy_rows_carries_positions_between_caches():
    rng = np.random.default_rng(3)
    source, target = KvCache(GEOMETRY, 9), KvCache(GEOMETRY, 6)
    fill(source, rng, 6)
    target.copy_rows(source, 0, 4)
    assert target.len == 4
    target.copy_rows(source, 4, 6)
    assert held(target) == held(source)
    target.copy_rows(source, 6, 6)
    assert target.len == 6


def test_copy_rows_refuses_what_does_not_fit():
    rng = np.random.default_rng(4)
    source = KvCache(GEOMETRY, 9)
    fill(source, rng, 6)
    with pytest.raises(KvCacheShapeMismatch, match="geometry and dtype"):
        KvCache(GEOMETRY[:1], 9).copy_rows(source, 0, 1)
    with pytest.raises(KvCacheShapeMismatch, match="geometry and dtype"):
        KvCache(GEOMETRY, 9, "f32").copy_rows(source, 0, 1)
    with pytest.raises(KvCacheShapeMismatch, match="same model"):
        KvCache(GEOMETRY, 9, fingerprint=b"other").copy_rows(source, 0, 1)
    with pytest.raises(KvCacheShapeMismatch, match="behind 2 rows"):
        KvCache(GEOMETRY, 9).copy_rows(source, 2, 3)
    with pytest.raises(KvCacheShapeMismatch, match="source holds 6"):
        KvCache(GEOMETRY, 9).copy_rows(source, 0, 7)
    with pytest.raises(KvCacheOverflow, match="capacity of 5"):
        KvCache(GEOMETRY, 5).copy_rows(source, 0, 6)


def test_snapshot_is_independent_and_restores():
    rng = np.random.default_rng(5)
    cache = KvCache(GEOMETRY, 8)
    fill(cache, rng, 5)
    before, snapshot = held(cache), cache.snapshot()
    cache.truncate(1)
    fill(cache, rng, 6)
    assert held(cache) != before
    cache.restore(snapshot)
    assert held(cache) == before and cache.len == 5
    larger = KvCache(GEOMETRY, 100)
    larger.restore(snapshot)
    assert held(larger) == before
    with pytest.raises(KvCacheOverflow, match="5 positions, the capacity is 3"):
        KvCache(GEOMETRY, 3).restore(snapshot)
    with pytest.raises(KvCacheShapeMismatch, match="geometry or dtype"):
        KvCache(GEOMETRY, 8, "f32").restore(snapshot)
    with pytest.raises(KvCacheShapeMismatch, match="another model"):
        KvCache(GEOMETRY, 8, fingerprint=b"x").restore(snapshot)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((), 4), KvCacheShapeMismatch),
        ((GEOMETRY, 0), KvCacheOverflow),
        ((GEOMETRY, 1 << 50), KvCacheOverflow),
        ((GEOMETRY, 1 << 90), KvCacheOverflow),
        ((GEOMETRY, 2.5), KvCacheOverflow),
        ((GEOMETRY, True), KvCacheOverflow),
        ((GEOMETRY, 4, "q8_0"), KvCacheShapeMismatch),
    ],
)
def test_impossible_caches_are_refused(arguments, error):
    with pytest.raises(error):
        KvCache(*arguments)
