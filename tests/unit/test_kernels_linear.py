"""Matrix products: equal to their NumPy twins, in every lowering, for any number of rows and any cut of the work."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.errors import KernelArgumentError
from fucina.gguf import dequantize
from fucina.kernels import panels, reference
from fucina.kernels import record as R
from fucina.kernels.catalogue import kernel_words
from fucina.kernels.formats import FORMATS, NAMES
from fucina.kernels.invoke import invoke
from fucina.kernels.isa import LOWERINGS, supported
from fucina.kernels.packing import pack
from tests.unit import one_op
from tests.unit.kernel_inputs import FLOATS, ISAS, QUANTISED, extreme, packed, random_bits, rows, same_bits, weights


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", NAMES)
def test_equal_to_the_twin(fmt, isa):
    rng = np.random.default_rng(len(fmt))
    cols, n = (37, 13) if fmt in FLOATS else (512, 21)
    raw, x = weights(rng, fmt, n, cols), rows(rng, 5, cols)
    assert same_bits(one_op.linear(x, packed(raw, fmt), isa), reference.linear(x, raw, fmt))


@pytest.mark.parametrize("fmt", NAMES)
def test_close_to_plain_arithmetic(fmt):
    """Independent of the twin: dequantised weights times float activations."""
    rng = np.random.default_rng(1)
    raw, x = weights(rng, fmt, 24, 768), rng.standard_normal((3, 768)).astype(np.float32)
    y = one_op.linear(x, packed(raw, fmt))
    w = dequantize(raw, FORMATS[fmt].ggml_type).astype(np.float64)
    size = np.abs(x) @ np.abs(w).T  # what rounding errors are relative to
    limit = 1e-6 if fmt in FLOATS else 4e-3 if fmt == "tq2_0" else 2e-3  # most of its weights are 0: few errors cancel
    assert np.max(np.abs(y - x @ w.T) / size) < limit


@pytest.mark.parametrize("fmt", QUANTISED)
def test_extremes_do_not_saturate(fmt):
    """All weights at their largest, all activations at ±127: sums in int16 would overflow here if they could."""
    raw = extreme(fmt, 8, 512)
    x = np.ones((4, 512), np.float32)
    x[1], x[2, ::2], x[3, : 512 // 2] = -1, -1, 0
    expected = reference.linear(x, raw, fmt)
    w = dequantize(raw, FORMATS[fmt].ggml_type).astype(np.float64)
    assert np.allclose(expected, x @ w.T, rtol=1e-5, atol=1e-2)
    for isa in ISAS:
        assert same_bits(one_op.linear(x, packed(raw, fmt), isa), expected), isa


@pytest.mark.parametrize("fmt", NAMES)
def test_lowerings_agree_on_random_bits(fmt):
    rng = np.random.default_rng(7)
    cols, n = (50, 19) if fmt in FLOATS else (768, 19)
    raw = weights(rng, fmt, n, cols) if fmt in FLOATS else random_bits(rng, fmt, n, cols)
    x = rows(rng, 9, cols)
    x[3], x[4, 32:64] = 0.0, 1e-39  # a row of zeros, a block of subnormal numbers
    x[5] *= np.float32(1e-37)
    results = [one_op.linear(x, packed(raw, fmt), isa) for isa in ISAS]
    assert np.isfinite(results[0]).all() and not results[0][3].any()
    for isa, y in zip(ISAS, results):
        assert same_bits(y, results[-1]), isa


@pytest.mark.parametrize("isa", LOWERINGS.values(), ids=lambda isa: isa.name)
def test_a_tile_has_at_most_one_row_too_many(isa):
    """Where rows that are left run in a tile filled up by repeating one, it never repeats two."""
    for sizes in (isa.tiles, isa.float_tiles):
        gaps = [more - less for more, less in itertools.pairwise(sizes)]
        assert sizes[-1] == 1 and min(gaps) > 0 and (max(gaps) <= 2 or not isa.repeats)


@pytest.mark.parametrize("fmt", NAMES)
def test_a_row_does_not_depend_on_the_rows_beside_it(fmt):
    rng = np.random.default_rng(3)
    cols = 41 if fmt in FLOATS else 256
    w, x = packed(weights(rng, fmt, 24, cols), fmt), rows(rng, 37, cols)
    alone = np.concatenate([one_op.linear(x[i : i + 1], w) for i in range(len(x))])
    for m in (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 31, 37):
        assert same_bits(one_op.linear(x[:m], w), alone[:m]), m


@pytest.mark.parametrize("fmt", ["q4_k", "q6_k", "iq2_s", "q2_k", "tq2_0"])
def test_more_rows_than_share_an_unpacked_block(fmt):
    """Two blocks of rows and some that fill no tile; five groups, of which the last is alone; nothing past the scratch."""
    m = 2 * panels.ROWS - 7
    rng = np.random.default_rng(m)
    raw, x = weights(rng, fmt, 37, 512), rows(rng, m, 512)
    w, y = packed(raw, fmt), np.empty((m, 37), np.float32)
    scratch = np.full(panels.SCRATCH_BYTES + 128, 77, np.uint8)
    product(x, w, y, (0, 2), 32, {R.SCRATCH: scratch.ctypes.data})
    assert same_bits(y, reference.linear(x, raw, fmt))
    assert (scratch[panels.SCRATCH_BYTES :] == 77).all()


@settings(max_examples=30)
@given(st.data())
def test_any_cut_gives_the_same(data):
    fmt = data.draw(st.sampled_from(["q4_1", "q8_0", "q6_k", "f32"]))
    n, unit = data.draw(st.integers(1, 70)), data.draw(st.sampled_from([8, 16, 32]))
    last = -(-n // unit)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, last), max_size=4))), last]
    rng = np.random.default_rng(n)
    cols = 19 if fmt == "f32" else 256
    raw, x = weights(rng, fmt, n, cols), rows(rng, 3, cols)
    y, w = np.empty((3, n), np.float32), packed(raw, fmt)
    for units in itertools.pairwise(cuts):
        product(x, w, y, units, unit)
    assert same_bits(y, one_op.linear(x, packed(raw, fmt)))
    assert same_bits(y, one_op.linear(x, packed(raw, fmt), cut=3))


def product(x, w, out, units, unit, job=None):
    """Some units of out = x Wᵀ, by the kernel alone."""
    kept, f = {"q": x}, FORMATS[w.format]  # until the kernel is done
    params = {"w": w.addr, "cols": w.cols, "x_step": w.cols, "d": 0, "s": 0, "out": out.ctypes.data, "n": w.rows}
    if f.sums:
        kept = one_op.quantise(x, f.activations)
        params |= {"d": kept["d"].ctypes.data, "s": kept[f.sums].ctypes.data}
    invoke(
        f"linear.{w.format}",
        {**params, "x": kept["q"].ctypes.data},
        units=units,
        unit=unit,
        job={R.M: len(x), **(job or {})},
    )


@pytest.mark.parametrize("fmt", ["q4_1", "f16"])
def test_nothing_is_written_outside_the_units_asked_for(fmt):
    w, x = packed(weights(np.random.default_rng(0), fmt, 27, 64), fmt), np.ones((3, 64), np.float32)
    out = np.full((5, 27), 77, np.float32)
    product(x, w, out[1:], (2, 99), 8)  # columns 16 … 26
    assert (out[[0, 4]] == 77).all() and (out[:, :16] == 77).all() and (out[1:4, 16:] != 77).all()


@pytest.mark.parametrize("fmt", ["q4_1", "q8_0"])
def test_every_lowering_of_this_cpu(fmt):
    """The other tests leave out AVX-VNNI where AVX-512 has the same instruction."""
    rng = np.random.default_rng(2)
    raw, x = random_bits(rng, fmt, 16, 64), rows(rng, 5, 64)
    for isa in supported():
        assert same_bits(one_op.linear(x, packed(raw, fmt), isa), reference.linear(x, raw, fmt)), isa


def test_wrong_arguments_are_refused():
    names = dict.fromkeys("w cols x x_step d s out n".split(), 1)
    assert kernel_words("linear.q4_1", **names) == [1] * 8
    with pytest.raises(TypeError, match="kernel linear lacks out, n; its parameters: w cols x x_step d s out n"):
        kernel_words("linear.q4_1", **{k: 1 for k in names if k not in ("out", "n")})
    with pytest.raises(TypeError, match="kernel linear has no rows;"):
        kernel_words("linear.q4_1", **names, rows=3)
    with pytest.raises(KernelArgumentError, match="multiple of 32, got 8 x 40"):
        pack(np.zeros((8, 25), np.uint8), FORMATS["q4_1"].ggml_type, 8, 40)
    with pytest.raises(KernelArgumentError, match="no native kernel"):
        pack(np.zeros((8, 25), np.uint8), 40, 8, 256)
    with pytest.raises(KernelArgumentError, match=r"shape \(8, 40\)"):
        pack(np.zeros((8, 25), np.uint8), FORMATS["q4_1"].ggml_type, 8, 64)
