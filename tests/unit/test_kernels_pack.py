"""Repacking at load: layout, padding, slices, threads, release of file pages."""

import numpy as np
import pytest

from fucina.kernels import packing
from fucina.kernels import reference_weights as reference
from fucina.kernels.formats import FORMATS, packed_bytes
from fucina.kernels.pack import BLOCKS
from tests.unit.kernel_inputs import FLOATS, packed, random_bits, stacked, weights


def some(fmt, n, cols):
    rng = np.random.default_rng(n)
    return weights(rng, fmt, n, cols) if fmt in FLOATS else random_bits(rng, fmt, n, cols)


@pytest.mark.parametrize("fmt", list(BLOCKS))
@pytest.mark.parametrize("n", [1, 7, 8, 9, 24, 67])
def test_layout_and_padding(fmt, n):
    cols = 11 if fmt in FLOATS else 512
    raw = some(fmt, n, cols)
    w = packed(raw, fmt)
    assert np.array_equal(w.data, reference.pack(raw, fmt).reshape(-1))
    assert (w.rows, w.cols, w.format, w.nbytes) == (n, cols, fmt, packed_bytes(fmt, n, cols))
    assert w.addr == w.data.ctypes.data and w.addr % 64 == 0


def column(block, bits, planes, lane, c):
    """The code of column c of one of eight rows, from the planes of a packed block, bit by bit."""
    at, c, code, to = planes + c // 32 * 32 * bits, c % 32, 0, 0
    for width in (4, 2, 1):
        if bits & width:
            four, first = {4: (c % 16 // 4, c // 16 * 4), 2: (c // 16, c // 4 % 4 * 2), 1: (0, c // 4)}[width]
            byte = int(block[at + four * 32 + lane * 4 + c % 4])
            code |= (byte >> first & ((1 << width) - 1)) << to
            at, to = at + 32 * width, to + width
    return code


@pytest.mark.parametrize("fmt", [n for n, f in FORMATS.items() if f.coded])
@pytest.mark.parametrize("n", [1, 9])
def test_layout_of_coded_formats(fmt, n, monkeypatch):
    monkeypatch.setattr(packing, "CODED_SLICE", 1)  # a group at a time
    f, cols = FORMATS[fmt], 512
    raw = some(fmt, n, cols)
    b = f.coded.read(raw.reshape(n, -1, f.raw))
    data = packed(raw, fmt).data.reshape(-1, cols // f.cols, f.packed)
    assert data.size == packed_bytes(fmt, n, cols)
    for row in range(len(data) * 8):
        g, lane, mine = row // 8, row % 8, min(row, n - 1)
        for i in range(cols // f.cols):
            codes = [column(data[g, i], f.coded.bits, f.planes, lane, c) for c in range(f.cols)]
            assert codes == b.codes[mine, i].tolist()
            if f.coded.parts > 1 and f.floors != "nibbles":
                at = 32 if f.floors else 16
                found = data[g, i, at : at + 8 * f.coded.parts].view(np.int8).reshape(-1, 8)[:, lane]
                assert found.tolist() == b.scales[mine, i].tolist()


@pytest.mark.parametrize("fmt", ["iq2_s", "q5_1"])
def test_a_stack_of_a_coded_format(fmt):
    raw = some(fmt, 15, 512)
    w = stacked(raw, fmt, 5)
    parts = [packed(raw[i * 3 : i * 3 + 3], fmt).data for i in range(5)]
    assert w.step == len(parts[0]) and np.array_equal(w.data, np.concatenate(parts))


@pytest.mark.parametrize("fmt", ["q4_1", "q6_k", "f16"])
@pytest.mark.parametrize("n", [1, 8, 13])
def test_a_stack_is_its_matrices_one_after_the_other(fmt, n):
    cols = 11 if fmt in FLOATS else 512
    raw = some(fmt, 5 * n, cols)
    w = stacked(raw, fmt, 5)
    parts = [reference.pack(raw[i * n : (i + 1) * n], fmt).reshape(-1) for i in range(5)]
    assert (w.rows, w.cols, w.count, w.step) == (n, cols, 5, len(parts[0]))
    assert np.array_equal(w.data, np.concatenate(parts))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_slices_cover_everything_once(monkeypatch, threads):
    monkeypatch.setattr(packing, "SLICE", 4096)
    raw = some("q8_0", 1003, 64)
    raw.setflags(write=False)  # a view on a mapped file is read-only
    released = []
    w = packing.pack(
        raw, FORMATS["q8_0"].ggml_type, 1003, 64, release=lambda a, b: released.append((a, b)), threads=threads
    )
    assert np.array_equal(w.data, reference.pack(raw, "q8_0").reshape(-1))
    released.sort()
    assert len(released) > 10 and released[0][0] == 0 and released[-1][1] == raw.nbytes
    assert all(a[1] == b[0] for a, b in zip(released, released[1:]))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_release_reaches_the_caller(threads):
    def fail(start, stop):
        raise OSError("cannot release")

    with pytest.raises(OSError, match="cannot release"):
        packing.pack(some("q4_0", 64, 64), FORMATS["q4_0"].ggml_type, 64, 64, release=fail, threads=threads)
