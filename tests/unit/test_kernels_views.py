"""Split and concat: parts of tensors as inputs of every op that reads activations, without a copy."""

import numpy as np
import pytest

from fucina.cache import State
from fucina.cache.parts import Kv, Layout
from fucina.errors import ModelError
from fucina.kernels import reference
from fucina.ops.native.recorder import Recorder
from fucina.ops.rope import RopeSpec
from fucina.ops.vocabulary import AttentionSpec
from tests.unit import one_op
from tests.unit.kernel_inputs import ISAS, packed, rows, same_bits, weights
from tests.unit.one_op import Array

RNG = np.random.default_rng(5)
X = rows(RNG, 6, 3 * (32 + 5 + 64))  # three heads of 32, 5 and 64 numbers, or one of 96, 15 and 192


def parts(heads):
    """The three parts of X as arrays of their own."""
    by_head = X.reshape(6, heads, -1)
    a, b = 3 * 32 // heads, 3 * 37 // heads
    return [np.ascontiguousarray(p).reshape(6, -1) for p in (by_head[:, :, :a], by_head[:, :, a:b], by_head[:, :, b:])]


def on_part(op, which, heads, isa=None, **options):
    """What op computes from a part of X that was split."""
    widths = [n * 3 // heads for n in (32, 5, 64)]
    return one_op.run(lambda r, x: op(r, r.split(x, *widths, heads=heads)[which]), X, isa=isa, **options)


Q4 = weights(RNG, "q4_1", 13, 192)
F16 = weights(RNG, "f16", 13, 192)
NORM = RNG.standard_normal(64).astype(np.float32)
TABLE = RNG.standard_normal((9, 20)).astype(np.float32)
POSITIONS = [0, 1, 2, 3, 4, 5]
ROPE = RopeSpec(20, 1e4, "half")
OPS = {
    "q4_1": (lambda r, v: r.linear(v, Array(packed(Q4, "q4_1"))), lambda v: reference.linear(v, Q4, "q4_1")),
    "f16": (lambda r, v: r.linear(v, Array(packed(F16, "f16"))), lambda v: reference.linear(v, F16, "f16")),
    "norm": (lambda r, v: r.rms_norm(v, Array(NORM), 1e-5, 3), lambda v: reference.rms_norm(v, NORM, 1e-5, 3)),
    "rope": (
        lambda r, v: r.rope(v, 3, ROPE),
        lambda v: reference.rope(v, 3, 20, TABLE, POSITIONS, "half"),
    ),
    "add": (lambda r, v: r.add(v, v), lambda v: v + v),
    "sigmoid": (lambda r, v: r.sigmoid(v), reference.sigmoid),
    "output rows": (lambda r, v: r.output_rows(v), lambda v: v[[1, 4]]),
    "split again": (
        lambda r, v: r.split(v, 24, 40, heads=3)[1],
        lambda v: v.reshape(6, 3, 64)[:, :, 24:].reshape(6, -1),
    ),
    "concat": (
        lambda r, v: r.concat(v, r.split(v, 60, 4, heads=3)[1], heads=3),
        lambda v: np.concatenate([v.reshape(6, 3, 64), v.reshape(6, 3, 64)[:, :, 60:]], 2).reshape(6, -1),
    ),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", list(OPS))
def test_a_part_is_as_good_as_a_copy(name, heads, isa):
    op, plain = OPS[name]
    options = {"table": TABLE, "positions": POSITIONS, "out_rows": [1, 4]}
    for cut in (1, 2):
        assert same_bits(on_part(op, 2, heads, isa, cut=cut, **options), np.ascontiguousarray(plain(parts(heads)[2])))


def test_parts_as_keys_values_and_queries():
    x = RNG.standard_normal((9, 6 * 16 + 2 * 16 + 2 * 24)).astype(np.float32)
    whole, split = State([Kv(2, 16, 24)], 64), State([Kv(2, 16, 24)], 64)
    q, k, v = (np.ascontiguousarray(part) for part in np.split(x, (96, 128), axis=1))
    want = one_op.attention(whole, q, 6, 0.3, range(9), key=k, value=v)
    op = lambda r, x: r.attention(0, *r.split(x, 96, 32, 48), AttentionSpec(6, 0.3))
    got = one_op.run(op, x, parts=split.parts, dtype="f16", over=one_op.Pass([split], [0], [9]))
    assert same_bits(got, want)
    assert all(same_bits(a[:, :9].copy(), b[:, :9].copy()) for a, b in zip(whole.planes(0), split.planes(0)))


def test_split_costs_nothing():
    r = Recorder(None, Layout([Kv(1, 8, 8)]))
    x = r.host(lambda arrays, batch: None, [], 96)
    before = len(r.schedule.records)
    a, b = r.split(x, 12, 20, heads=3)
    assert len(r.schedule.records) == before and (a.cols, b.cols) == (36, 60)
    r.concat(a, b, heads=3)
    assert len(r.schedule.records) == before + 1
    assert r.joined(a) is r.joined(a) is not a  # where a run of numbers is needed: one copy
    assert len(r.schedule.records) == before + 2


def test_mistakes_are_named():
    for widths, heads in (((40, 40), 1), ((101, 101), 3), ((), 1), ((303, 0), 1)):
        with pytest.raises(ModelError, match="303 columns cannot be split"):
            one_op.run(lambda r, x, w=widths, h=heads: r.split(x, *w, heads=h), X)
    with pytest.raises(ModelError, match="cannot be joined"):
        one_op.run(lambda r, x: r.concat(x, x, heads=2), X)
