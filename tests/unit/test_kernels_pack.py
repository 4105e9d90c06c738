"""Repacking at load: layout, padding, slices, threads, release of file pages."""

import numpy as np
import pytest

from fucina.kernels import packing
from fucina.kernels import reference_weights as reference
from fucina.kernels.formats import FORMATS, NAMES, packed_bytes
from tests.unit.kernel_inputs import FLOATS, packed, random_bits, stacked, weights


def some(fmt, n, cols):
    rng = np.random.default_rng(n)
    return weights(rng, fmt, n, cols) if fmt in FLOATS else random_bits(rng, fmt, n, cols)


@pytest.mark.parametrize("fmt", NAMES)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 24, 67])
def test_layout_and_padding(fmt, n):
    cols = 11 if fmt in FLOATS else 512
    raw = some(fmt, n, cols)
    w = packed(raw, fmt)
    assert np.array_equal(w.data, reference.pack(raw, fmt).reshape(-1))
    assert (w.rows, w.cols, w.format, w.nbytes) == (n, cols, fmt, packed_bytes(fmt, n, cols))
    assert w.addr == w.data.ctypes.data and w.addr % 64 == 0


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
