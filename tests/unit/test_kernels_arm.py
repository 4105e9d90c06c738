"""The arm64 lowering has the bits of this CPU's: in an emulator where the package unicorn is installed."""

import numpy as np
import pytest

from fucina.cache import State
from fucina.cache.parts import Kv, Latent, Recurrent
from fucina.errors import IsaError
from fucina.kernels import invoke, reference
from fucina.kernels.formats import NAMES
from fucina.kernels.isa import supported
from fucina.ops.vocabulary import RouterSpec
from tests.unit import arm_emulator, one_op
from tests.unit.kernel_inputs import FLOATS, extreme, packed, random_bits, rows, same_bits, stacked, weights

pytest.importorskip("unicorn", reason="runs arm64 code in the emulator of the package unicorn")
NEON = "neon"


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Kernels asked for with isa="neon" run in the emulator."""
    if NEON in supported():
        pytest.skip("this CPU runs the arm64 lowering itself: the other tests cover it")
    native = invoke.function
    choose = lambda name, isa=None: (arm_emulator.function if isa == NEON else native)(name, isa)
    monkeypatch.setattr(invoke, "function", choose)
    try:
        arm_emulator.function("test.noop", NEON)
    except IsaError as e:
        pytest.skip(str(e))


@pytest.mark.parametrize("fmt", NAMES)
def test_linear_and_embed(fmt):
    rng = np.random.default_rng(0)
    cols = 33 if fmt in FLOATS else 256
    raw = weights(rng, fmt, 11, cols) if fmt in FLOATS else random_bits(rng, fmt, 11, cols)
    x = rows(rng, 7, cols)
    assert same_bits(one_op.linear(x, packed(raw, fmt), NEON), reference.linear(x, raw, fmt))
    assert same_bits(one_op.embed([3, 10, 0], packed(raw, fmt), 0.7, NEON), reference.embed([3, 10, 0], raw, fmt, 0.7))
    if fmt not in FLOATS:
        raw, x = extreme(fmt, 8, cols), np.ones((2, cols), np.float32)
        assert same_bits(one_op.linear(x, packed(raw, fmt), NEON), reference.linear(x, raw, fmt))


@pytest.mark.parametrize("kind", ["q8", "q8k"])
def test_quantise(kind):
    x = rows(np.random.default_rng(0), 3, 512)
    x[1], x[2, ::32] = 0, 1e-39
    got, expected = one_op.quantise(x, kind, NEON), reference.quantise(x, kind)
    assert all(same_bits(got[n], expected[n]) for n in expected)


def test_row_operations():
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((3, 44)).astype(np.float32) * 5 for _ in range(2))
    for name in ("add", "mul", "swiglu", "geglu"):
        assert same_bits(one_op.elementwise(name, x, y, isa=NEON), one_op.elementwise(name, x, y))
    assert same_bits(one_op.elementwise("sigmoid", x, isa=NEON), one_op.elementwise("sigmoid", x))
    assert same_bits(one_op.rms_norm(x, y[0, :22].copy(), 1e-5, 2, NEON), one_op.rms_norm(x, y[0, :22].copy(), 1e-5, 2))
    assert same_bits(one_op.gather_rows(x, [2, 0], NEON), x[[2, 0]])
    table = rng.standard_normal((9, 20)).astype(np.float32)
    for pairing in ("interleaved", "half"):
        args = (x, 2, 20, table, [8, 0, 3], pairing)
        assert same_bits(one_op.rope(*args, NEON), one_op.rope(*args))


@pytest.mark.parametrize(
    ("group", "kv_heads", "k_dim", "v_dim", "dtype"),
    [(*shape, d) for d in ("f16", "f32") for shape in ((3, 2, 16, 16), (5, 1, 24, 40))]
    + [(*shape, "q8_0") for shape in ((3, 2, 32, 32), (5, 1, 96, 64))],
)
def test_cache_rows_and_attention(group, kv_heads, k_dim, v_dim, dtype):
    rng = np.random.default_rng(2)
    key, value = (rng.standard_normal((150, kv_heads * d)).astype(np.float32) for d in (k_dim, v_dim))
    key[0, :8] = [65519, 65520, 1e9, 1e-9, 2.0**-25, 2.0**-24 * 1.5, -0.0, 1 + 2.0**-11]
    states = [State([Kv(kv_heads, k_dim, v_dim)], 150, dtype) for _ in range(2)]
    for state, isa in zip(states, (NEON, None)):
        one_op.append(state, key, value, range(150), isa)
    for mine, theirs in zip(*(state.planes(0) for state in states)):
        assert same_bits(mine, theirs)
    states[0].planes(0)[0][:, 0] = 1 if dtype == "q8_0" else 0.5  # no infinities in what follows
    q = rng.standard_normal((4, group * kv_heads * k_dim)).astype(np.float32)
    args = (states[0], q, group * kv_heads, 0.3, [3, 64, 100, 149])
    for window in (0, 70):
        for split in (False, True):
            assert same_bits(one_op.attention(*args, window, split, NEON), one_op.attention(*args, window, split))


def test_experts_heads_and_recurrences():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 2 * 64)).astype(np.float32)
    heads = one_op.Stack(stacked(random_bits(rng, "q4_1", 2 * 11, 64), "q4_1", 2))
    router = one_op.Array(stacked(weights(rng, "f32", 6, 128), "f32", 1))
    vector = x[0].copy()
    shapes = (("q8_0", 32, 128), ("q4_0", 32, 128), ("f16", 9, 32))
    stacks = [one_op.Stack(stacked(weights(rng, fmt, 6 * n, cols), fmt, 6)) for fmt, n, cols in shapes]
    for op in (
        lambda r, x: r.linear_heads(x, heads, 2),
        lambda r, x: r.moe_ffn(x, *r.route(x, router, RouterSpec(2)), *stacks),
        lambda r, x: r.softcap(r.softplus(r.scale(x, 3.0)), 5.0),
        lambda r, x: r.mul(r.bias(x, one_op.Array(vector)), r.split(x, 1, 127)[0]),
        lambda r, x: r.concat(r.split(x, 40, 24, heads=2)[1], r.sigmoid(x), heads=2),
    ):
        assert same_bits(one_op.run(op, x, isa=NEON), one_op.run(op, x))
    state = State([Recurrent((2, 12, 41)), Recurrent((3, 77))], 10)
    q, key, value, decay, beta = (rng.standard_normal((5, n)).astype(np.float32) for n in (12, 12, 82, 2, 2))
    state.begin(5)
    taps, columns = (rng.standard_normal(shape).astype(np.float32) for shape in ((77, 4), (5, 77)))
    convolved = [
        one_op.run(
            lambda r, x: r.conv(1, x, one_op.Array(taps)),
            columns,
            parts=state.parts,
            over=one_op.Pass([state], [0], [5]),
            isa=isa,
        )
        for isa in (NEON, None)
    ]
    assert same_bits(*convolved)
    results = [
        one_op.run(
            lambda r, *inputs: r.delta_rule(0, *inputs, 2),
            *(q, key, value, decay, beta),
            parts=state.parts,
            over=one_op.Pass([state], [0], [5]),
            isa=isa,
        )
        for isa in (NEON, None)
    ]
    assert same_bits(*results)


def test_latents():
    rng = np.random.default_rng(4)
    state = State([Latent(24, 16, 8)], 150)
    one_op.append(state, rng.standard_normal((150, 24)).astype(np.float32), None, range(150))
    q = rng.standard_normal((4, 6 * 24)).astype(np.float32)
    for split in (False, True):
        args = (state, q, 6, 0.3, [3, 64, 100, 149], 0, split)
        assert same_bits(one_op.attention(*args, NEON), one_op.attention(*args))
