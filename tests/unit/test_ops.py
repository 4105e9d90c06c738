"""The readable interpreter's ops one by one, each against its definition."""

import math
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest

from fucina.cache import Kv, Latent, Recurrent, State
from fucina.errors import ModelError
from fucina.gguf import GgmlType
from fucina.ops import functions
from fucina.ops.naive import Naive
from fucina.ops.native.recorder import Recorder
from fucina.ops.rows import RowBatch
from fucina.ops.vocabulary import AttentionSpec, Ops, RouterSpec
from tests.unit.tiny_models import ArrayWeight

RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


ONE_HEAD = (Kv(1, 4, 4),)


def run(forward, rows=3, parts=ONE_HEAD):
    """What a forward returns for one pass over the first rows of a stream, and the stream's state."""
    state, ids = State(parts, 64, "f32"), np.arange(rows)
    state.begin(rows)
    family = SimpleNamespace(forward=lambda ops, c, w: forward(ops), config=None, weights=None, parts=parts, head=None)
    out = Naive(family).run(RowBatch(ids, ids, 0 * ids, [state], ids))
    state.next_pass()
    state.commit(rows)
    return out, state


def stack(name, *shape):
    return ArrayWeight(name, normal(*shape), GgmlType.F32)


@pytest.mark.parametrize("interpreter", [Naive, Recorder])
def test_interpreters_have_every_op_with_the_same_arguments(interpreter):
    ops = [name for name in vars(Ops) if not name.startswith("_")]
    assert {"embed", "attention", "moe_ffn", "output_rows"} <= set(ops)
    for name in ops:
        theirs, ours = (list(signature(getattr(cls, name)).parameters) for cls in (Ops, interpreter))
        assert ours == theirs, name


def test_split_and_concat_work_per_head():
    x = np.arange(12, dtype=np.float32).reshape(1, 12)
    (a, b), _ = run(lambda ops: ops.split(x, 1, 3, heads=3))
    assert a.tolist() == [[0, 4, 8]] and b.tolist() == [[1, 2, 3, 5, 6, 7, 9, 10, 11]]
    assert run(lambda ops: ops.concat(a, b, heads=3))[0].tolist() == x.tolist()
    (a, b, c), _ = run(lambda ops: ops.split(x, 2, 4, 6))
    assert (a.shape, b.shape, c.shape) == ((1, 2), (1, 4), (1, 6))
    assert run(lambda ops: ops.concat(ops.concat(a, b), c))[0].tolist() == x.tolist()


def test_linear_heads_multiplies_each_head_by_its_own_matrix():
    x, w = normal(3, 8), stack("w", 2, 5, 4)
    out, _ = run(lambda ops: ops.linear_heads(x, w, 2))
    expected = np.concatenate([x[:, :4] @ w.float32()[0].T, x[:, 4:] @ w.float32()[1].T], axis=1)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_mul_and_sigmoid():
    x, y = normal(3, 7), normal(3, 7)
    assert run(lambda ops: ops.mul(x, y))[0].tobytes() == (x * y).tobytes()
    assert run(lambda ops: ops.mul(x, y[:, :1]))[0].tobytes() == (x * y[:, :1]).tobytes()
    far = np.array([[-200, -1, 0, 1, 200]], np.float32)
    np.testing.assert_allclose(run(lambda ops: ops.sigmoid(far))[0], [[0, 0.2689414, 0.5, 0.7310586, 1]], atol=1e-7)


def test_one_vector_for_all_rows():
    x, w, one = normal(3, 7), stack("w", 7), stack("one", 1)
    assert run(lambda ops: ops.scale(x, w))[0].tobytes() == (x * w.float32()).tobytes()
    assert run(lambda ops: ops.bias(x, w))[0].tobytes() == (x + w.float32()).tobytes()
    for number in (one, float(one.float32()[0])):
        assert run(lambda ops, by=number: ops.scale(x, by))[0].tobytes() == (x * one.float32()[0]).tobytes()


def test_softplus_and_softcap():
    x = np.array([[-200, -20, -1, 0, 1, 20, 200]], np.float32)
    expected = [[0, 2.0611537e-9, 0.3132617, 0.6931472, 1.3132617, 20, 200]]
    np.testing.assert_allclose(run(lambda ops: ops.softplus(x))[0], expected, rtol=1e-6)
    capped = run(lambda ops: ops.softcap(x, 30.0))[0]
    np.testing.assert_allclose(capped, 30 * np.tanh(x / 30), rtol=1e-6)
    assert np.abs(capped).max() <= 30


def test_a_norm_without_weight():
    x, ones = normal(3, 8), ArrayWeight("ones", np.ones(4, np.float32), GgmlType.F32)
    out, _ = run(lambda ops: ops.rms_norm(x, None, 1e-5, heads=2))
    assert out.tobytes() == run(lambda ops: ops.rms_norm(x, ones, 1e-5, heads=2))[0].tobytes()


def test_the_convolution_is_numpys():
    """With the newest tap last, it is a convolution with the taps the other way round."""
    x, w = normal(9, 3), stack("w", 3, 4)
    out, state = run(lambda ops: ops.conv(0, x, w), rows=9, parts=(Recurrent((3, 3)),))
    expected = [np.convolve(x[:, c], w.float32()[c, ::-1])[:9] for c in range(3)]
    np.testing.assert_allclose(out, np.stack(expected, 1), rtol=1e-5, atol=1e-6)
    state.begin(1)
    assert state.recurrent(0)[0].tobytes() == x[-3:].tobytes()


def test_heads_of_the_delta_rule_share_keys():
    """Four heads, two keys: heads 0 and 2 have the first, as if the keys were there twice."""
    q, k, v = normal(3, 8), normal(3, 8), normal(3, 12)
    decay, beta, parts = -np.abs(normal(3, 4)), np.abs(normal(3, 4)), (Recurrent((4, 4, 3)),)
    twice = [np.concatenate([x, x], 1) for x in (q, k)]
    shared, _ = run(lambda ops: ops.delta_rule(0, q, k, v, decay, beta, 4), parts=parts)
    apart, _ = run(lambda ops: ops.delta_rule(0, *twice, v, decay, beta, 4), parts=parts)
    assert shared.tobytes() == apart.tobytes()


def test_route_prefers_the_lower_number_in_a_tie_and_its_weights_add_up():
    scores = np.array([[1, 3, 3, 2], [0, 0, 0, 0], [5, -5, 5, 5]], np.float32)
    experts, weights = functions.choose(scores, RouterSpec(2))
    assert experts.tolist() == [[1, 2], [0, 1], [0, 2]]
    np.testing.assert_allclose(weights, 0.5)
    experts, weights = functions.choose(normal(20, 8), RouterSpec(3))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert (np.diff(weights, axis=1) <= 0).all()


def routed(scores, spec, bias, scales):
    """One row, as its docstring says: the experts and their weights, in Python's numbers."""
    n, size = len(scores), len(scores) // spec.groups
    e = [math.exp(s - max(scores)) for s in scores]
    odds = [x / sum(e) for x in e] if spec.gating == "softmax" else [1 / (1 + math.exp(-s)) for s in scores]
    merit = [o + b for o, b in zip(odds, bias, strict=True)]
    two = [sum(sorted(merit[g * size : (g + 1) * size])[-2:]) for g in range(spec.groups)]
    used = sorted(range(spec.groups), key=lambda g: -two[g])[: spec.groups_used]
    chosen = sorted((i for i in range(n) if i // size in used), key=lambda i: -merit[i])[: spec.top_k]
    share = max(sum(odds[i] for i in chosen), 2**-14) if spec.normalise else 1
    return chosen, [odds[i] / share * spec.scale * scales[i] for i in chosen]


@pytest.mark.parametrize(
    "spec",
    [
        RouterSpec(3, normalise=False),
        RouterSpec(1, scale=2.5),
        RouterSpec(4, gating="sigmoid"),
        RouterSpec(3, gating="sigmoid", normalise=False, scale=0.5, groups=4, groups_used=2),
        RouterSpec(6, groups=2, groups_used=1),
        RouterSpec(12, gating="sigmoid", groups=3, groups_used=3),
    ],
    ids=str,
)
def test_routers(spec):
    rng = np.random.default_rng(4)
    scores, bias, scales = (rng.standard_normal(n).astype(np.float32) for n in ((30, 12), 12, 12))
    scores, bias, scales = 2 * scores, 0.3 * bias, 1 + 0.2 * scales
    scores[20:] -= 15  # odds of a sigmoid that add up to less than the least divisor
    experts, weights = functions.choose(scores, spec, bias, scales)
    for row, ids, shares in zip(scores, experts, weights, strict=True):
        chosen, expected = routed(row.tolist(), spec, bias.tolist(), scales.tolist())
        assert ids.tolist() == chosen
        np.testing.assert_allclose(shares, expected, rtol=1e-5)
    spec.check(12)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RouterSpec(0), "1 to 12 experts, got 0"),
        (RouterSpec(13), "1 to 12 experts, got 13"),
        (RouterSpec(5, groups=3, groups_used=1), "1 to 4 experts, got 5"),
        (RouterSpec(1, groups=5), "12 experts cannot form 5 groups"),
        (RouterSpec(1, groups=12), "cannot form 12 groups of one size, two at least"),
        (RouterSpec(1, groups=0), "cannot form 0 groups"),
        (RouterSpec(1, groups=3, groups_used=4), "1 to 3 groups of experts, got 4"),
        (RouterSpec(1, gating="tanh"), "gating 'tanh' is not implemented; implemented: softmax, sigmoid"),
    ],
)
def test_routers_that_are_refused(spec, message):
    with pytest.raises(ModelError, match=message):
        spec.check(12)


def test_moe_ffn_adds_the_experts_of_each_row():
    x, router = normal(4, 6), stack("router", 5, 6)
    gate, up, down = stack("gate", 5, 3, 6), stack("up", 5, 3, 6), stack("down", 5, 6, 3)

    def forward(ops):
        experts, weights = ops.route(x, router, RouterSpec(2))
        return experts, weights, ops.moe_ffn(x, experts, weights, gate, up, down)

    (experts, weights, out), _ = run(forward, rows=4)
    for row, ids, shares, result in zip(x, experts, weights, out, strict=True):
        expected = 0
        for e, share in zip(ids, shares, strict=True):
            g, u = gate.float32()[e] @ row, up.float32()[e] @ row
            expected = expected + share * (down.float32()[e] @ (g / (1 + np.exp(-g)) * u))
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_the_delta_rule_recalls_what_a_key_was_given():
    """With decay 0 and beta 1, a key of length 1 answers with the value that it was given last."""
    keys = np.eye(4, dtype=np.float32)[[0, 1, 0]]  # the first key comes twice
    values, ones = normal(3, 2), np.ones((3, 1), np.float32)
    out, state = run(
        lambda ops: ops.delta_rule(0, keys, keys, values, 0 * ones, ones, 1), parts=(Recurrent((1, 4, 2)),)
    )
    np.testing.assert_allclose(out, values, rtol=1e-6)
    state.begin(1)
    np.testing.assert_allclose(state.recurrent(0)[0][0, :2], values[[2, 1]], rtol=1e-6)


def test_decay_forgets():
    k, v = np.eye(2, dtype=np.float32)[[0, 1]], np.ones((2, 1), np.float32)
    decay = np.log(np.array([[1.0], [0.25]], np.float32))
    out, _ = run(lambda ops: ops.delta_rule(0, k[::-1].copy(), k, v, decay, v, 1), 2, (Recurrent((1, 2, 1)),))
    np.testing.assert_allclose(out, [[0], [0.25]], atol=1e-7)  # asked for the other key each time


@pytest.mark.parametrize("window", [0, 2])
def test_attention_stores_before_it_looks(window):
    q, k, v = normal(3, 8), normal(3, 4), normal(3, 4)
    out, state = run(lambda ops: ops.attention(0, q, k, v, AttentionSpec(2, 0.5, window)))
    for t in range(3):
        first = max(0, t - window + 1) if window else 0
        for head in range(2):
            p = np.exp(k[first : t + 1] @ q[t, 4 * head : 4 * head + 4] * 0.5)
            expected = (p / p.sum()) @ v[first : t + 1]
            np.testing.assert_allclose(out[t, 4 * head : 4 * head + 4], expected, rtol=1e-4, atol=1e-6)
    assert state.read(0, 0, 3)[0][0].tobytes() == k.tobytes()


def test_a_layer_can_look_at_what_an_earlier_one_stored():
    q, other, k, v = (normal(3, 4) for _ in range(4))
    look = AttentionSpec(1, 1.0)
    (_, out), _ = run(lambda ops: (ops.attention(0, q, k, v, look), ops.attention(0, other, None, None, look)))
    assert out.tobytes() == run(lambda ops: ops.attention(0, other, k, v, look))[0].tobytes()


def test_the_values_of_a_latent_lie_inside_its_keys():
    q, k = normal(3, 12), normal(3, 6)
    look = AttentionSpec(2, 1.0)
    out, _ = run(lambda ops: ops.attention(0, q, k, None, look), parts=(Latent(6, 4, 2),))
    v = np.ascontiguousarray(k[:, 2:6])
    assert out.tobytes() == run(lambda ops: ops.attention(0, q, k, v, look), parts=(Kv(1, 6, 4),))[0].tobytes()


def test_no_rows_wanted_is_no_error():
    w, none = stack("w", 5, 4), np.empty((0, 4), np.float32)
    assert run(lambda ops: ops.linear(none, w))[0].shape == (0, 5)
    assert run(lambda ops: ops.rms_norm(none, ArrayWeight("n", np.ones(4), GgmlType.F32), 1e-5))[0].shape == (0, 4)
