"""Attention: chunks, windows, splits; what lies outside a row's span is never read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import State
from fucina.cache.dtypes import DTYPES
from fucina.cache.parts import Kv, Latent
from fucina.kernels import record as R
from fucina.kernels import reference
from fucina.kernels.attention import part_bytes, scratch_bytes
from fucina.kernels.invoke import invoke
from fucina.kernels.memory import aligned
from fucina.ops.vocabulary import AttentionSpec
from tests.unit import one_op
from tests.unit.kernel_inputs import ISAS, same_bits

SHAPES = [(3, 3, 64, 64), (1, 2, 16, 8), (4, 1, 256, 256), (5, 2, 24, 40)]  # queries per kv head, kv heads, widths
BLOCKS = [(3, 3, 64, 64), (1, 2, 32, 64), (4, 1, 256, 256), (5, 2, 32, 96)]  # in q8_0
CASES = [(s, d) for d in ("f16", "f32") for s in SHAPES] + [(s, "q8_0") for s in (*BLOCKS, (8, 1, 128, 128))]
STRIDE = 320
POSITIONS = [0, 1, 7, 63, 64, 65, 127, 200, 300, 319]


def inputs(shape, dtype, seed=0):
    """An empty state, its planes full of NaN; keys, values and queries for it."""
    group, kv_heads, k_dim, v_dim = shape
    rng = np.random.default_rng(seed)
    state = State([Kv(kv_heads, k_dim, v_dim)], STRIDE, dtype)
    spoil(state)
    key, value = (rng.standard_normal((STRIDE, kv_heads * d)).astype(np.float32) * 2 for d in (k_dim, v_dim))
    q = rng.standard_normal((len(POSITIONS), group * kv_heads * k_dim)).astype(np.float32)
    return state, key, value, q


def spoil(state, *where):
    """No number of these rows is one."""
    for plane in state.planes(0):
        plane[(slice(None), *where)] = 255 if state.dtype == "q8_0" else np.nan


def run(state, q, shape, scale, window=0, split=False, isa=None, positions=POSITIONS, cut=1):
    return one_op.attention(state, q, shape[0] * shape[1], scale, positions, window, split, isa, cut=cut)


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_cache_rows(shape, dtype):
    state, key, value, _ = inputs(shape, dtype)
    form = DTYPES[dtype]
    for isa in (*ISAS, "generic"):
        spoil(state)
        k, v = state.planes(0)
        one_op.append(state, key[:5], value[:5], [3, 0, 319, 64, 5], isa)
        for plane, rows, dim in ((k, key, shape[2]), (v, value, shape[3])):
            written = plane[:, [3, 0, 319, 64, 5]].swapaxes(0, 1)
            assert same_bits(written.copy(), form.encode(rows[:5].reshape(5, -1, dim)))
        everything = [form.decode(plane) for plane in (k, v)]
        assert sum(np.isfinite(x).sum() for x in everything) == 5 * shape[1] * (shape[2] + shape[3])


def test_blocks_of_q8_0_are_those_of_the_twin():
    """Ties, zeros, numbers so small that the scale is none, so large that it is infinite, and no numbers at all."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((STRIDE, 64)).astype(np.float32) * (10.0 ** rng.integers(-44, 37, (STRIDE, 1)))
    rows = rows.astype(np.float32)
    rows[:60] = rng.integers(-254, 255, (60, 64)) / 2
    rows[:60:2, 5] = 127  # a scale of 1: what ends in .5 is a tie
    rows[60:64] = [[0.0], [-0.0], [1e-45], [2.0**-100 * 127]]
    rows[64:70, 3], rows[70:72, 40] = np.inf, -np.inf
    rows[72:80, ::7] = np.nan
    with np.errstate(all="ignore"):
        want = DTYPES["q8_0"].encode(rows)
    bits = want.copy().reshape(STRIDE, 2, 34)
    nan = np.isnan(bits[..., :2].copy().view(np.float16)[..., 0])
    assert nan.sum() == 16 and (bits[62] == 0).all() and (bits[60:62] == 0).all()
    for isa in (*ISAS, "generic"):
        state = State([Kv(1, 64, 32)], STRIDE, "q8_0")
        one_op.append(state, rows, rows[:, :32].copy(), range(STRIDE), isa)
        found = state.planes(0)[0][0].reshape(STRIDE, 2, 34)
        assert same_bits(found[..., 2:].copy(), bits[..., 2:].copy()), isa
        assert same_bits(found[~nan], bits[~nan]), isa
        assert np.isnan(found[nan][:, :2].copy().view(np.float16)).all()


@pytest.mark.parametrize("window", [0, 1, 7, 64, 100])
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_equal_to_the_twin_and_to_softmax(shape, dtype, window):
    group, kv_heads, k_dim, v_dim = shape
    state, key, value, q = inputs(shape, dtype)
    one_op.append(state, key, value, range(STRIDE))
    got = run(state, q, shape, 0.3, window)
    for isa in (ISAS[0], "generic") if dtype != "q8_0" else (*ISAS, "generic"):
        assert same_bits(run(state, q, shape, 0.3, window, isa=isa), got)
        assert same_bits(run(state, q, shape, 0.3, window, split=True, isa=isa), got)
    k, v = state.read(0, 0, STRIDE)
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


@pytest.mark.parametrize(
    ("shape", "dtype", "poison"),
    [(s, "f16", x) for s in SHAPES[:2] for x in (np.nan, np.inf)] + [(s, "q8_0", 255) for s in BLOCKS[:2]],
    ids=str,
)
def test_masked_rows_are_never_read(shape, dtype, poison):
    state, key, value, q = inputs(shape, dtype)
    one_op.append(state, key, value, range(STRIDE))
    kept = [plane.copy() for plane in state.planes(0)]
    for i, p in enumerate(POSITIONS):
        for window in (0, 20):
            clean = run(state, q[i : i + 1], shape, 0.3, window, positions=[p])
            lo = max(0, p - window + 1) if window else 0
            for plane in state.planes(0):
                plane[:, p + 1 :], plane[:, :lo] = poison, poison
            for split in (False, True):
                assert same_bits(run(state, q[i : i + 1], shape, 0.3, window, split, positions=[p]), clean)
            for plane, clean_plane in zip(state.planes(0), kept):
                plane[...] = clean_plane


@pytest.mark.parametrize(("shape", "dtype"), [(s, "f16") for s in SHAPES] + [(s, "q8_0") for s in BLOCKS], ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(shape, dtype):
    """Neighbouring positions of one stream, as in a prefill, against one at a time."""
    group, kv_heads, k_dim, _v_dim = shape
    state, key, value, _ = inputs(shape, dtype)
    one_op.append(state, key, value, range(STRIDE))
    for first, m in ((0, 21), (50, 30), (126, 7), (250, 70)):
        q = np.random.default_rng(first).standard_normal((m, group * kv_heads * k_dim)).astype(np.float32)
        for window in (0, 33):
            positions = np.arange(first, first + m)
            together = run(state, q, shape, 0.2, window, positions=positions)
            for i in (0, 1, m // 2, m - 2, m - 1):
                alone = run(state, q[i : i + 1], shape, 0.2, window, positions=positions[i : i + 1])
                assert same_bits(together[i : i + 1], alone), (first, window, i)


def test_large_scores_stay_finite():
    shape = SHAPES[1]
    state, key, value, q = inputs(shape, "f32")
    one_op.append(state, key * 1e4, value, range(STRIDE))
    y = run(state, q * 1e4, shape, 1.0)
    assert np.isfinite(y).all() and np.abs(y).max() <= np.abs(value).max() * (1 + 1e-6)


def test_numbers_that_are_not_finite_show_in_the_result():
    shape = SHAPES[1]
    for dirty in ("key", "value", "q"):
        state, key, value, q = inputs(shape, "f32")
        {"key": key, "value": value, "q": q}[dirty][2] = np.nan
        one_op.append(state, key, value, range(STRIDE))
        y = run(state, q, shape, 0.3)
        assert np.isnan(y[2]).all() and np.isfinite(y[:2]).all()


@settings(max_examples=40)
@given(st.data())
def test_rows_of_several_streams_cut_anywhere(data):
    """As the team runs it: runs of rows of two states, the units cut into several calls."""
    dtype = data.draw(st.sampled_from(["f16", "q8_0"]))
    shape = group, kv_heads, k_dim, _v_dim = data.draw(st.sampled_from(BLOCKS if dtype == "q8_0" else SHAPES))
    window = data.draw(st.sampled_from([0, 0, 5, 90]))
    starts = [data.draw(st.integers(0, 280)) for _ in range(2)]
    counts = [data.draw(st.integers(1, 28)) for _ in range(2)]
    cut, split = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    states = []
    for seed in (0, 1):
        state, key, value, _ = inputs(shape, dtype, seed)
        one_op.append(state, key, value, range(STRIDE))
        states.append(state)
    over = one_op.Pass(states, starts, counts)
    q = np.random.default_rng(counts[0]).standard_normal((sum(counts), group * kv_heads * k_dim)).astype(np.float32)
    spec = AttentionSpec(group * kv_heads, 0.3, window)
    out = one_op.run(
        lambda r, q: r.attention(0, q, None, None, spec),
        q,
        parts=state.parts,
        dtype=dtype,
        over=over,
        cut=cut,
        split=split,
    )
    for i, (s, p) in enumerate(zip(np.repeat([0, 1], counts), over.positions)):
        alone = run(states[s], q[i : i + 1], shape, 0.3, window, positions=[p])
        assert same_bits(out[i : i + 1], alone), (i, s, p, cut)


def test_sizes_of_scratch():
    """Nothing is written after what the sizes promise."""
    for (group, kv_heads, k_dim, v_dim), dtype in [(s, "f16") for s in SHAPES] + [(s, "q8_0") for s in BLOCKS]:
        state, key, value, _ = inputs((group, kv_heads, k_dim, v_dim), dtype)
        one_op.append(state, key, value, range(STRIDE))
        m, size = 40, scratch_bytes(group, k_dim, v_dim)
        q = np.ones((m, group * kv_heads * k_dim), np.float32)
        out = np.empty((m, group * kv_heads * v_dim), np.float32)
        parts = aligned(m * kv_heads * 5 * part_bytes(group, v_dim) + 64)
        scratch = aligned(size + 64)
        scratch[:], parts[:] = 0xA5, 0xA5
        rows, streams = np.zeros((m, R.ROW_WORDS), np.int64), np.zeros((1, R.STREAM_WORDS), np.int64)
        rows[:, R.POS], streams[0, R.STREAM_STATE : R.STREAM_STATE + 2] = np.arange(280, 280 + m), state.words()
        params = {"q": q.ctypes.data, "q_step": q.shape[1], "out": out.ctypes.data, "kv_heads": kv_heads, "k_offset": 0}
        params |= {"v_offset": kv_heads * k_dim, "area": R.area_word(0), "window": 0, "scale": 0.3}
        for split in (0, 1):
            job = {R.M: m, R.ROW_TABLE: rows.ctypes.data, R.STREAM_TABLE: streams.ctypes.data, R.SPLIT: split}
            job |= {R.SCRATCH: scratch.ctypes.data, R.SCRATCH_STEP: size, R.PART: parts.ctypes.data, R.NPART: 5}
            units = m * kv_heads * (5 if split else 1)
            name = f"{dtype}.{group}.{k_dim}.{v_dim}"
            invoke("attention." + name, params, units=(0, units), job=job)
            invoke("combine." + name, params, units=(0, m * kv_heads), job=job)
            assert (scratch[size:] == 0xA5).all() and (parts[-64:] == 0xA5).all()


# --- rings and latents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 63, 64, 100])
@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_a_ring_gives_the_bits_of_all_positions(window, isa, dtype):
    """A stream of 700 positions in passes of 1 to 128 rows, against planes that keep everything."""
    group, kv_heads, k_dim, v_dim = shape = (3, 2, 32, 64) if dtype == "q8_0" else (3, 2, 16, 24)
    rng = np.random.default_rng(window)
    ring, full = State([Kv(*shape[1:], window)], 700, dtype), State([Kv(*shape[1:])], 700, dtype)
    assert ring.planes(0)[0].shape[1] < 300 < full.planes(0)[0].shape[1]
    spoil(ring)
    start = 0
    while start < 700:
        m = min(int(rng.choice([1, 2, 50, 127, 128])), 700 - start)
        widths = (group * kv_heads * k_dim, kv_heads * k_dim, kv_heads * v_dim)
        q, key, value = (rng.standard_normal((m, n)).astype(np.float32) for n in widths)
        positions = range(start, start + m)
        args = (q, group * kv_heads, 0.3, positions, window)
        want = one_op.attention(full, *args, isa=isa, key=key, value=value)
        for split in (False, True):
            assert same_bits(one_op.attention(ring, *args, split, isa, key, value), want), (start, m, split)
        start += m


LATENTS = [(1, 16, 8, 3), (6, 24, 16, 0), (16, 40, 32, 8), (10, 16, 16, 0)]
LATENT_BLOCKS = [(1, 64, 32, 32), (6, 96, 64, 0), (16, 96, 32, 32), (16, 576, 512, 0)]


@pytest.mark.parametrize(
    ("heads", "k_dim", "v_dim", "v_at", "dtype"),
    [(*w, d) for d in ("f16", "f32") for w in LATENTS] + [(*w, "q8_0") for w in LATENT_BLOCKS],
)
def test_a_latent_is_one_key_head_that_holds_its_values(heads, k_dim, v_dim, v_at, dtype):
    rng = np.random.default_rng(heads)
    state = State([Latent(k_dim, v_dim, v_at)], STRIDE, dtype)
    key = rng.standard_normal((STRIDE, k_dim)).astype(np.float32)
    q = rng.standard_normal((len(POSITIONS), heads * k_dim)).astype(np.float32)
    one_op.append(state, key, None, range(STRIDE))
    results = [
        one_op.attention(state, q, heads, 0.3, POSITIONS, 0, split, isa, cut=cut)
        for isa in (*ISAS, "generic")
        for split, cut in ((False, 1), (True, 3), (False, 4))
    ]
    k = state.read(0, 0, STRIDE)[0][0]
    assert same_bits(k, DTYPES[dtype].decode(DTYPES[dtype].encode(key)))
    want = [
        reference.attention(k, k[:, v_at : v_at + v_dim], row[h * k_dim : (h + 1) * k_dim], p, 0.3)
        for row, p in zip(q, POSITIONS)
        for h in range(heads)
    ]
    for got in results:
        assert same_bits(got, np.concatenate(want).reshape(got.shape))
