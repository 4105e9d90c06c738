"""Weights of three dimensions: a matrix per head, routing to experts, and their feed-forward."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.errors import ModelError
from fucina.kernels import panels, reference, reference_experts
from fucina.ops.vocabulary import RouterSpec
from tests.unit import one_op
from tests.unit.kernel_inputs import FLOATS, ISAS, random_bits, rows, same_bits, stacked, weights
from tests.unit.one_op import Array, Stack


def stack(rng, fmt, count, n, cols):
    """A packed weight, and the rows of each of its matrices."""
    raw = weights(rng, fmt, count * n, cols) if fmt in FLOATS else random_bits(rng, fmt, count * n, cols)
    return Stack(stacked(raw, fmt, count)), raw.reshape(count, n, -1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt,heads,n,cols", [("q4_1", 3, 13, 64), ("f16", 5, 8, 21), ("q4_k", 2, 40, 256), ("q6_k", 2, 7, 256), ("q8_0", 1, 24, 32)])  # fmt: skip
def test_a_matrix_per_head(fmt, heads, n, cols, isa):
    rng = np.random.default_rng(n)
    w, raw = stack(rng, fmt, heads, n, cols)
    x = rows(rng, 7, heads * cols)
    parts = [reference.linear(np.ascontiguousarray(x[:, h * cols : (h + 1) * cols]), raw[h], fmt) for h in range(heads)]
    for cut in (1, 3):
        got = one_op.run(lambda r, x: r.linear_heads(x, w, heads), x, isa=isa, cut=cut)
        assert same_bits(got, np.concatenate(parts, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n,top_k", [(1, 1), (5, 5), (8, 2), (13, 4), (64, 8), (67, 3)])
def test_route(n, top_k, isa):
    rng = np.random.default_rng(n)
    w, x = rng.standard_normal((n, 6)).astype(np.float32), rng.standard_normal((9, 6)).astype(np.float32)
    x[0] = 0  # all experts equal: the first ones
    if n > 4:
        w[4] = w[1]  # two experts that tie in every row
    x[1] *= 1000  # one expert takes all
    raw = np.ascontiguousarray(w).view(np.uint8)
    packed = Array(stacked(raw, "f32", 1))
    experts, odds = one_op.run(lambda r, x: r.route(x, packed, RouterSpec(top_k)), x, isa=isa)
    want, shares = reference_experts.choose(reference.linear(x, raw, "f32"), top_k)
    assert np.array_equal(experts.view(np.int32), want) and same_bits(odds, shares)
    assert np.array_equal(want[0], np.arange(top_k))
    scores = x[2:].astype(np.float64) @ w.T.astype(np.float64)
    p = np.take_along_axis(np.exp(scores - scores.max(1, keepdims=True)), want[2:], 1)
    assert np.allclose(shares[2:], p / p.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


@settings(max_examples=60)
@given(st.data())
def test_routers(data):
    """Gating, norm, scale, groups, bias and scales: bits equal to the twin's, whatever is combined."""
    groups, size = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 9))
    used, n = data.draw(st.integers(1, groups)), groups * size
    spec = RouterSpec(
        top_k=data.draw(st.integers(1, used * size)),
        gating=data.draw(st.sampled_from(("softmax", "sigmoid"))),
        normalise=data.draw(st.booleans()),
        scale=data.draw(st.sampled_from((1.0, 2.5, 0.3))),
        groups=groups,
        groups_used=used,
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    w, x = (rng.standard_normal((rows, 6)).astype(np.float32) for rows in (n, 7))
    w[n - 1] = w[0]  # a tie
    if data.draw(st.booleans()):
        w[:, 0], x[:, 0] = -1, 20  # odds of a sigmoid that add up to less than the least divisor
    bias, scales = (rng.standard_normal(n).astype(np.float32) if data.draw(st.booleans()) else None for _ in range(2))
    raw = np.ascontiguousarray(w).view(np.uint8)
    extra = {k: None if v is None else Array(v) for k, v in (("bias", bias), ("scales", scales))}
    op = lambda r, x: r.route(x, Array(stacked(raw, "f32", 1)), spec, **extra)
    experts, weights = one_op.run(op, x)
    want, shares = reference_experts.choose(reference.linear(x, raw, "f32"), **asdict(spec), bias=bias, scales=scales)
    assert np.array_equal(experts.view(np.int32), want) and same_bits(weights, shares)


def test_route_of_numbers_that_are_not_finite_stays_inside():
    """The experts of such a row are some experts: nothing else may be read."""
    packed = Array(stacked(np.eye(5, 4, dtype=np.float32).view(np.uint8), "f32", 1))
    x = np.array([[np.nan] * 4, [np.inf, 1, 2, -np.inf], [1, 2, 3, 4]], np.float32)
    experts, _ = one_op.run(lambda r, x: r.route(x, packed, RouterSpec(3)), x)
    experts = experts.view(np.int32)
    assert experts.min() >= 0 and experts.max() < 5 and experts[2].tolist() == [3, 2, 1]


def feed_forward(x, experts, shares, gate, up, down, formats, gated=reference.swiglu):
    """As `ops.naive` computes it, with the arithmetic of the kernels."""
    out = []
    for row, chosen, share in zip(x, experts, shares):
        product = lambda v, raw, fmt: reference.linear(v, raw, fmt)
        results = []
        for e in chosen:
            h = gated(product(row[None], gate[e], formats[0]), product(row[None], up[e], formats[1]))
            results.append(product(h, down[e], formats[2])[0])
        out.append(reference_experts.weighted_sum(np.stack(results), share))
    return np.stack(out)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("formats,dim,ffn", [(("f32", "f16", "bf16"), 19, 13), (("q4_1", "q8_0", "q5_0"), 64, 96), (("q4_k", "q4_k", "q6_k"), 256, 256)])  # fmt: skip
def test_feed_forward_of_experts(formats, dim, ffn, isa):
    rng = np.random.default_rng(dim)
    count, top_k, m = 7, 3, 11
    (gate, g), (up, u), (down, d) = (
        (Stack(stacked(raw, fmt, count)), raw.reshape(count, n, -1))
        for fmt, n, cols in zip(formats, (ffn, ffn, dim), (dim, dim, ffn))
        for raw in [weights(rng, fmt, count * n, cols)]
    )
    x = rng.standard_normal((m, dim)).astype(np.float32)
    router = rng.standard_normal((count, dim)).astype(np.float32).view(np.uint8)
    experts, shares = reference_experts.choose(reference.linear(x, router, "f32"), top_k)

    def op(r, x):
        return r.moe_ffn(x, *r.route(x, Array(stacked(router, "f32", 1)), RouterSpec(top_k)), gate, up, down)

    want = feed_forward(x, experts, shares, g, u, d, formats)
    for cut in (1, 4):
        assert same_bits(one_op.run(op, x, isa=isa, cut=cut), want)
    alone = np.concatenate([one_op.run(op, x[i : i + 1], isa=isa) for i in range(m)])
    assert same_bits(alone, want)


@pytest.mark.parametrize("fmt", ["q8_0", "f32"])
def test_a_gate_that_holds_both_and_another_activation(fmt):
    """ffn_gate_up_exps: the rows of the gate first."""
    rng = np.random.default_rng(5)
    count, m, dim, ffn = 5, 9, 64, 32
    both, raw = stack(rng, fmt, count, 2 * ffn, dim)
    down, d = stack(rng, fmt, count, dim, ffn)
    x = rows(rng, m, dim)
    chosen = rng.integers(0, count, (m, 2)).astype(np.int32)
    shares = rng.random((m, 2)).astype(np.float32)
    op = lambda r, x, experts, shares: r.moe_ffn(x, experts, shares, both, None, down, gating="geglu")
    want = feed_forward(x, chosen, shares, raw[:, :ffn], raw[:, ffn:], d, [fmt] * 3, reference.geglu)
    assert same_bits(one_op.run(op, x, chosen.view(np.float32), shares), want)


@settings(max_examples=20)
@given(st.data())
def test_routed_rows_are_gathered_by_expert(data):
    """Any choice of experts, also the same one twice: each row gets its own."""
    m, top_k, count = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    rng = np.random.default_rng(m)
    chosen = rng.integers(0, count, (m, top_k)).astype(np.int32)
    shares = rng.random((m, top_k)).astype(np.float32)
    raws = [weights(rng, "f32", count * n, cols) for n, cols in ((5, 3), (5, 3), (3, 5))]
    gate, up, down = (Stack(stacked(raw, "f32", count)) for raw in raws)
    x = rng.standard_normal((m, 3)).astype(np.float32)
    op = lambda r, x, experts, shares: r.moe_ffn(x, experts, shares, gate, up, down)
    got = one_op.run(op, x, chosen.view(np.float32), shares)
    want = feed_forward(x, chosen, shares, *(raw.reshape(count, -1, raw.shape[1]) for raw in raws), ["f32"] * 3)
    assert same_bits(got, want)


def test_many_rows_of_one_expert():
    """So many that they share unpacked blocks, and a few of others between them."""
    m, count, dim = panels.ROWS + 30, 2, 256
    rng = np.random.default_rng(m)
    chosen = np.where(rng.random((m, 1)) < 0.9, 1, rng.integers(0, count, (m, 1))).astype(np.int32)
    shares = np.ones((m, 1), np.float32)
    formats = ["q4_k", "q6_k", "iq2_s"]
    raws = [weights(rng, fmt, count * dim, dim) for fmt in formats]
    gate, up, down = (Stack(stacked(raw, fmt, count)) for raw, fmt in zip(raws, formats, strict=True))
    x = rows(rng, m, dim)
    op = lambda r, x, experts, shares: r.moe_ffn(x, experts, shares, gate, up, down)
    results = []  # of every row, by each expert
    for g, u, d in zip(*(raw.reshape(count, dim, -1) for raw in raws), strict=True):
        h = reference.swiglu(reference.linear(x, g, formats[0]), reference.linear(x, u, formats[1]))
        results.append(reference.linear(h, d, formats[2]))
    want = [reference_experts.weighted_sum(results[e][i : i + 1], shares[i]) for i, e in enumerate(chosen[:, 0])]
    assert same_bits(one_op.run(op, x, chosen.view(np.float32), shares), np.stack(want))


def test_mistakes_are_named():
    rng = np.random.default_rng(0)
    w, _ = stack(rng, "q4_1", 3, 8, 64)
    x = np.zeros((2, 3 * 64), np.float32)
    with pytest.raises(ModelError, match="expected 3 dimensions"):
        one_op.run(lambda r, x: r.linear_heads(x, Array(stacked(weights(rng, "f32", 4, 64), "f32", 1)), 3), x)
    with pytest.raises(ModelError, match="has 64 columns, its input 192 in 2 heads"):
        one_op.run(lambda r, x: r.linear_heads(x, w, 2), x)
    with pytest.raises(ModelError, match="1 to 4 experts, got 5"):
        one_op.run(lambda r, x: r.route(x, Array(stacked(weights(rng, "f32", 4, 192), "f32", 1)), RouterSpec(5)), x)
