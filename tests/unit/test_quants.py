"""Block formats against ggml's own output, and quantising back."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fucina.errors import BlockFormatError
from fucina.gguf import SUPPORTED, WRITABLE, GgmlType, block_shape, dequantize, quantize, row_bytes
from fucina.gguf.fit import ratio, rounded, step_and_floor, step_of
from fucina.gguf.grids import grid
from fucina.gguf.kquants import pack_scales, unpack_scales
from tests.models import DATA
from tests.unit.block_bits import SCALES, random_blocks

READ = sorted(SUPPORTED)
FORMATS = sorted(WRITABLE)
BLOCKED = [t for t in FORMATS if block_shape(t)[0] > 1]
BITS = {
    "Q8_0": 8, "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6,
    "IQ4_NL": 4, "TQ2_0": 1.58,
}  # fmt: skip


@pytest.fixture(scope="module")
def blocks():
    with np.load(DATA / "blocks.npz") as file:
        return dict(file)


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(x).mean(axis=1))


def test_the_supported_formats():
    bits = {t.name: block_shape(t)[1] * 8 / block_shape(t)[0] for t in SUPPORTED}
    assert bits == {
        "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6,
        "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "IQ1_S": 1.5625, "IQ1_M": 1.75,
        "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "IQ3_XXS": 3.0625, "IQ3_S": 3.4375, "IQ4_NL": 4.5,
        "IQ4_XS": 4.25, "TQ1_0": 1.6875, "TQ2_0": 2.0625, "Q1_0": 1.125, "Q2_0": 2.25, "MXFP4": 4.25, "NVFP4": 4.5,
    }  # fmt: skip


DIGESTS = {
    "Q8_0": "36f25a970a8919f1", "Q4_0": "a1677a9de83decaa", "Q4_1": "2d2b254d759a7200", "Q5_0": "1fb2ba39cbc17fa2",
    "Q5_1": "511eed865a542bcf", "Q2_K": "74c78b22d80a2e27", "Q3_K": "cdcd1178f766d2b0", "Q4_K": "cb2a0a1a4c67e4c5",
    "Q5_K": "d5bccc537e7b4a85", "Q6_K": "0d7f01e17cb565ef", "IQ1_S": "e600a7bff9a28439", "IQ2_XXS": "9cafff9540494135",
    "IQ2_XS": "354143c1c64d3bdd", "IQ2_S": "afaaad3ac5306198", "IQ3_XXS": "4ed7613b0bd91a40", "IQ3_S": "c106c8f83668028c",
    "IQ4_NL": "306310a7ad9afb5f", "IQ4_XS": "10053b5d9a8c17e2", "TQ1_0": "dfee60b8e4850803", "TQ2_0": "4f58e8b48d7cbed9",
    "Q1_0": "b898dcb22b975a68", "Q2_0": "04d9b436dd3b446a", "IQ1_M": "4cda2504605f9197", "MXFP4": "52a8a253e467502c",
    "NVFP4": "e9852478de052820",
}  # fmt: skip
"""The first 16 hex digits of the SHA-256 of what ggml makes of 64 blocks of 16 rows of `random_blocks`, as float32."""


@pytest.mark.parametrize("name", SCALES)
def test_random_blocks_equal_ggml(name):
    """Every point of every grid, every scale and sign: the blocks of the other test use only a part of them."""
    t = GgmlType[name]
    found = dequantize(random_blocks(np.random.default_rng(int(t)), t, 16, 64), t)
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()[:16] == DIGESTS[name]


def test_grids_are_ascending_sets_of_points():
    for name, points, base in (("IQ1", 2048, 3), ("IQ2_XXS", 256, 3), ("IQ3_S", 512, 8)):
        found = grid(name)
        number = (found.astype(int) * base ** np.arange(found.shape[1])).sum(1)
        assert len(found) == points and (np.diff(number) > 0).all() and not found.flags.writeable


@pytest.mark.parametrize("t", [t for t in READ if t != GgmlType.F32], ids=str)
def test_dequantize_equals_ggml(blocks, t):
    raw, wanted = blocks[f"{t}.raw"], blocks[f"{t}.dequant"]
    assert blocks[f"{t}.ggml_type"] == t
    for format in (t, int(t), t.name, blocks[f"{t}.ggml_type"]):
        found = dequantize(raw, format)
        assert found.dtype == np.float32 and found.flags.writeable and not np.shares_memory(found, raw)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("t", FORMATS, ids=str)
def test_rows_are_independent(blocks, t):
    raw = quantize(blocks["src"], t)
    whole = dequantize(raw, t)
    for i in range(len(raw)):
        np.testing.assert_array_equal(dequantize(raw[i : i + 1], t)[0], whole[i])
    backwards = raw[::-1]  # not contiguous
    np.testing.assert_array_equal(dequantize(backwards, t), whole[::-1])
    np.testing.assert_array_equal(dequantize(np.asfortranarray(raw), t), whole)


@pytest.mark.parametrize("t", ["F16", "BF16", "Q8_0"])
def test_quantize_equals_ggml(blocks, t):
    np.testing.assert_array_equal(quantize(blocks["src"], t), blocks[f"{t}.raw"])


@pytest.mark.parametrize("t", BLOCKED, ids=str)
def test_quantize_is_nearly_as_good_as_ggml(blocks, t):
    # ggml had an importance vector and searched scales; without, its own reference quantiser is a little worse.
    src = blocks["src"]
    ours = rms(dequantize(quantize(src, t), t) - src)
    theirs = rms(blocks[f"{t}.dequant"] - src)
    assert (ours < 1.2 * theirs).all()


def test_a_guess_more_is_never_worse():
    """The best of several guesses: adding one cannot raise the error of a part."""
    x = np.random.default_rng(3).standard_t(3, (16, 200)).astype(np.float32)
    error = lambda step, low, high: np.square(step * rounded(x, ratio(np.float32(1), step), low, high) - x).sum(0)
    few, many = (step_of(x, -4, 3, np.linspace(-0.9, 0.9, n, dtype=np.float32)) for n in (3, 7))
    assert error(many, -4, 3).mean() <= error(few, -4, 3).mean()
    for top in (3, 15):
        step, floor = step_and_floor(x, top, (0.0,))
        assert (step >= 0).all() and (floor >= 0).all()
        whole = np.maximum(x.max(0), 0) - np.minimum(x.min(0), 0)
        plain = np.square(
            whole / top * np.rint((x - np.minimum(x.min(0), 0)) / whole * top) + np.minimum(x.min(0), 0) - x
        )
        q = rounded(x + floor, ratio(np.float32(1), step), 0, top)
        assert np.square(step * q - floor - x).sum() <= plain.sum() * 1.0001


GGML_ERROR = {
    "Q8_0": (0.00534, 0.00723), "Q4_0": (0.08576, 0.11585), "Q4_1": (0.07818, 0.09406), "Q5_0": (0.04275, 0.05747),
    "Q5_1": (0.03779, 0.04534), "Q2_K": (0.29644, 0.34472), "Q3_K": (0.15075, 0.18389), "Q4_K": (0.07131, 0.08722),
    "Q5_K": (0.03605, 0.04398), "Q6_K": (0.01765, 0.02283), "IQ4_NL": (0.07624, 0.09350), "TQ2_0": (0.80778, 0.84445),
}  # fmt: skip
"""Relative RMS errors of ggml's quantiser (no importance matrix) for the two matrices of the next test."""


@pytest.mark.parametrize("t", BLOCKED, ids=str)
def test_error_is_at_most_a_fiftieth_above_ggml(t):
    rng = np.random.default_rng(9)
    normal = rng.standard_normal((64, 1024)).astype(np.float32)
    outliers = (rng.standard_t(4, (64, 1024)) * 0.02).astype(np.float32)
    for x, theirs in zip((normal, outliers), GGML_ERROR[t.name], strict=True):
        error = dequantize(quantize(x, t), t) - x
        assert np.sqrt(np.square(error).mean() / np.square(x).mean()) < 1.02 * theirs


@pytest.mark.parametrize("t", FORMATS, ids=str)
def test_quantize_keeps_the_rms_error_low(t):
    x = np.random.default_rng(5).normal(0, 0.3, (7, 768)).astype(np.float32)
    error = rms(dequantize(quantize(x, t), t) - x) / rms(x)
    bound = {"F32": 1e-12, "F16": 4e-4, "BF16": 3e-3}.get(t.name) or {"TQ2_0": 0.9}.get(t.name, 1.6 / 2 ** BITS[t.name])
    assert (error < bound).all()


def test_f32_is_exact():
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_array_equal(dequantize(quantize(x, "F32"), "F32"), x)


def test_bf16_rounds_to_nearest_even():
    one = 0x3F80_0000
    bits = np.array([[one, one + 0x7FFF, one + 0x8000, one + 0x8001, one + 0x1_8000, one + 0x1_7FFF]], np.uint32)
    found = quantize(bits.view(np.float32), "BF16").view("<u2")[0]
    assert [int(v) - 0x3F80 for v in found] == [0, 0, 0, 1, 2, 1]


def test_one_block_by_hand():
    # Q4_1: scale 0.5, minimum -1, byte j = (q[j], q[j + 16]) = (j, 15 - j)
    raw = np.array([0.5, -1], "<f2").view(np.uint8).tolist() + [j | (15 - j) << 4 for j in range(16)]
    found = dequantize(np.array([raw], np.uint8), "Q4_1")[0]
    np.testing.assert_array_equal(found[:16], np.arange(16) * 0.5 - 1)
    np.testing.assert_array_equal(found[16:], np.arange(15, -1, -1) * 0.5 - 1)


# --- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", READ, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_bytes_dequantize(t, data):
    cols, size = block_shape(t)
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    raw = data.draw(arrays(np.uint8, (shape[0], shape[1] * size)))
    found = dequantize(raw, t)
    assert found.shape == (shape[0], shape[1] * cols) and found.dtype == np.float32


@pytest.mark.parametrize("t", BLOCKED, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_error_is_bounded_by_the_step_of_the_widest_weight(t, data):
    cols, _ = block_shape(t)
    scale = data.draw(st.sampled_from([1e-2, 1.0, 1e3]))
    numbers = st.one_of(st.floats(-1, 1, width=32), st.sampled_from([0.0, 1.0, -1.0]))
    x = data.draw(arrays(np.float32, (2, cols), elements=numbers, fill=st.just(np.float32(0)))) * np.float32(scale)
    found = dequantize(quantize(x, t), t)
    # 2**bits steps over twice the widest weight of the block.  The symmetric formats lose one step at the positive end
    # when the widest weight is negative; K-quants add the rounding of their scales, and Q4_K and Q5_K may give up some
    # of an outlier for the sake of the others.  Scales below the smallest half (2**-24) are lost.
    steps = 2.0 ** BITS[t.name]
    slack = {"Q2_K": 6.5, "Q3_K": 4, "Q4_K": 6.5, "Q5_K": 6.5, "Q6_K": 4, "IQ4_NL": 3}.get(t.name, 2.1)
    lost = 2.0**-24 * steps * {"Q2_K": 16, "Q3_K": 32, "Q4_K": 64, "Q5_K": 64, "Q6_K": 128, "IQ4_NL": 8}.get(t.name, 1)
    widest = np.abs(x).max(axis=1, keepdims=True)
    assert (np.abs(found - x) <= slack * widest / steps + 1e-3 * widest + lost).all()


@pytest.mark.parametrize("t", FORMATS, ids=str)
def test_zeros_and_constants(t):
    zeros = np.zeros((2, 256), np.float32)
    np.testing.assert_array_equal(dequantize(quantize(zeros, t), t), zeros)
    for value in (0.75, -0.75):
        found = dequantize(quantize(zeros + np.float32(value), t), t)
        np.testing.assert_allclose(found, value, rtol=0.02)


@settings(max_examples=50, deadline=None)
@given(arrays(np.uint8, (3, 8), elements=st.integers(0, 63)), arrays(np.uint8, (3, 8), elements=st.integers(0, 63)))
def test_packed_scales_round_trip(scale, floor):
    found_scale, found_floor = unpack_scales(pack_scales(scale, floor))
    np.testing.assert_array_equal(found_scale, scale)
    np.testing.assert_array_equal(found_floor, floor)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (np.zeros((2, 40), np.int8), r"int8 \[2, 40\].*uint8"),
        (np.zeros(40, np.uint8), r"uint8 \[40\]"),
        (np.zeros((1, 2, 40), np.uint8), r"uint8 \[1, 2, 40\]"),
        (np.zeros((2, 39), np.uint8), "39 bytes; expected a multiple of 20"),
        (np.zeros((2, 0), np.uint8), "0 bytes"),
        ([[0] * 20], "list"),
        (b"\0" * 20, "bytes"),
    ],
)
def test_dequantize_refuses(raw, said):
    with pytest.raises(BlockFormatError, match=said):
        dequantize(raw, "Q4_1")


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((2, 64), np.int32), r"int32 \[2, 64\]"),
        (np.zeros(64, np.float32), r"float32 \[64\]"),
        (np.zeros((2, 65), np.float32), "65 columns.*blocks of 32"),
        (np.zeros((2, 0), np.float32), "0 columns"),
        ([[0.0] * 32], "list"),
        (np.full((1, 32), np.nan, np.float32), "NaN"),
        (np.full((1, 32), np.inf, np.float32), "infinities"),
        (np.full((1, 32), 1e9, np.float32), "range"),
        (np.full((1, 32), 1e300), "range"),
    ],
)
def test_quantize_refuses(x, said):
    with pytest.raises(BlockFormatError, match=said):
        quantize(x, "Q4_1")


@pytest.mark.parametrize("t", FORMATS, ids=str)
def test_one_nan_anywhere_is_refused(t):
    for at in (0, 100, 255):
        for bad in (np.nan, np.inf, -np.inf):
            x = np.ones((2, 256), np.float32)
            x[1, at] = bad
            with pytest.raises(BlockFormatError):
                quantize(x, t)


@pytest.mark.parametrize("format", ["Q8_1", 15, GgmlType.I32])
def test_unsupported_formats(format):
    for call, x in ((dequantize, np.zeros((1, 256), np.uint8)), (quantize, np.zeros((1, 256), np.float32))):
        with pytest.raises(BlockFormatError, match="supported: F32, F16, Q4_0"):
            call(x, format)


@pytest.mark.parametrize("t", sorted(SUPPORTED - WRITABLE), ids=str)
def test_formats_that_are_only_read(t):
    with pytest.raises(BlockFormatError, match=rf"\({t.name}\) cannot be written; supported: F32, F16, Q4_0"):
        quantize(np.zeros((1, 256), np.float32), t)


@pytest.mark.parametrize("format", ["q9", 200, -1, 1.5, None])
def test_unknown_formats(format):
    with pytest.raises(BlockFormatError, match="not a tensor format"):
        dequantize(np.zeros((1, 256), np.uint8), format)


def test_row_bytes():
    assert row_bytes(576, "Q4_1") == 360 and row_bytes(5, "F16") == 10 and block_shape("I64") == (1, 8)
    for cols in (0, -32, 33):
        with pytest.raises(BlockFormatError, match="columns"):
            row_bytes(cols, "Q8_0")
    with pytest.raises(BlockFormatError, match=r"15 \(Q8_K\) is not supported"):
        block_shape("Q8_K")
