"""The order of recorded forwards, against an oracle that looks at every pair of records."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import LayerGeometry
from fucina.errors import ModelError
from fucina.gguf import GgmlType
from fucina.kernels.formats import FORMATS
from fucina.kernels.record import COLS, HOST, ROWS
from fucina.models import gemma3, llama
from fucina.ops.native.buffers import place
from fucina.ops.native.explain import explain, summary
from fucina.ops.native.recorder import PARTIAL, Recorder
from fucina.ops.native.schedule import MAX_UNIT, Partition, Record, Schedule, Value
from fucina.ops.rope import RopeSpec


def check_order(schedule: Schedule, values: list[Value]) -> None:
    """Every pair of records that touch the same memory, one of them writing, runs in a safe order.

    Memory is bytes of buffers (as they will really be reused) and named resources.  Two records are ordered if they are
    in different steps, or in one chain and need only what the same unit of it wrote.  And every reader sees its value:
    between the value's writer and its reader nobody else writes to that buffer.
    """
    offsets, _ = place(values)
    where: dict[int, tuple[int, int, int]] = {}  # step, chain, place in the chain
    for step, chains in enumerate(schedule.steps):
        assert chains, "an empty step"
        for c, chain in enumerate(chains):
            assert chain.step == step
            for place_, record in enumerate(chain.records):
                where[id(record)] = (step, c, place_)
    assert len(where) == len(schedule.records)

    def touches(record: Record) -> list[tuple[str, bool, object, int, int]]:
        """(kind, writes, what, first byte, end) of everything that a record touches."""
        found: list[tuple[str, bool, object]] = [("local", False, v) for v in record.local]
        found += [("whole", False, v) for v in record.whole]
        found += [("local", True, v) for v in record.writes]  # a kernel writes its own unit's part
        found += [("whole", False, name) for name in record.uses] + [("whole", True, name) for name in record.changes]
        return [
            (kind, writes, x, *((0, 0) if isinstance(x, str) else (offsets[id(x)], offsets[id(x)] + x.nbytes)))
            for kind, writes, x in found
        ]

    touched = [(record, touches(record)) for record in schedule.records]
    for (a, of_a), (b, of_b) in combinations(touched, 2):  # a comes before b in the forward
        for kind_a, writes_a, x, x0, x1 in of_a:
            for kind_b, writes_b, y, y0, y1 in of_b:
                if not (writes_a or writes_b):
                    continue
                (sa, ca, pa), (sb, cb, pb) = where[id(a)], where[id(b)]
                if isinstance(x, str) or isinstance(y, str):
                    if x == y:
                        assert sa < sb, (a.kernel, b.kernel, x)
                elif x is y:
                    if sa == sb:
                        assert ca == cb and pa < pb and kind_a == kind_b == "local", (a.kernel, b.kernel, x.name)
                    else:
                        assert sa < sb, (a.kernel, b.kernel, x.name)
                elif x0 < y1 and y0 < x1:
                    # one buffer, two values: all of one before all of the other
                    assert sa != sb, (a.kernel, b.kernel, x.name, y.name)
                    one, two = (x, y) if sa < sb else (y, x)
                    assert one.last < two.first, (one.name, two.name)
    for record in schedule.records:
        for value in (*record.local, *record.whole):
            assert value.first <= where[id(record)][0] <= value.last


class FakeWeight:
    def __init__(self, name: str, *shape: int, fmt: str = "q4_1") -> None:
        self.name, self.shape = name, shape
        self.ggml_type = GgmlType(FORMATS[fmt].ggml_type) if len(shape) > 1 else GgmlType.F32


class FakeSources:
    def matrix(self, w):
        return 0, next(f.name for f in FORMATS.values() if f.ggml_type == int(w.ggml_type))

    def vector(self, w):
        return 0

    def rope(self, spec):
        return 0


def record_llama(layers: int = 3, dim: int = 576, ffn: int = 1536, heads: int = 9, kv: int = 3, fmt: str = "q4_1"):
    d = dim // heads
    c = llama.Config(layers, dim, ffn, heads, kv, d, 1000, 512, 1e-5, RopeSpec(d, 1e4, "interleaved"))
    m = lambda name, *shape: FakeWeight(name, *shape, fmt=fmt)
    one = lambda i: llama.Layer(
        m(f"blk.{i}.attn_norm", dim), m(f"blk.{i}.attn_q", dim, dim), m(f"blk.{i}.attn_k", kv * d, dim),
        m(f"blk.{i}.attn_v", kv * d, dim), m(f"blk.{i}.attn_output", dim, dim), m(f"blk.{i}.ffn_norm", dim),
        m(f"blk.{i}.ffn_gate", ffn, dim), m(f"blk.{i}.ffn_up", ffn, dim), m(f"blk.{i}.ffn_down", dim, ffn),
    )  # fmt: skip
    embedding = m("token_embd", 1000, dim)
    w = llama.Weights(embedding, tuple(one(i) for i in range(layers)), m("output_norm", dim), embedding)
    recorder = Recorder(FakeSources(), c.cache_geometry())
    return recorder, llama.forward(recorder, c, w)


def test_llama_layer_is_nine_steps_five_of_them_shared():
    small, _ = record_llama(2)
    large, _ = record_llama(5)
    a, b = summary(small.schedule), summary(large.schedule)
    assert b["steps"] - a["steps"] == 3 * 9
    assert b["shared"] - a["shared"] == 3 * 5
    assert a["steps"] == 2 * 9 + 2  # and: the last norm, the logits


def test_llama_schedule_is_ordered():
    for fmt in ("q4_1", "q4_k", "f32"):
        recorder, logits = record_llama(3, 512, 1536, 8, 2, fmt)
        check_order(recorder.schedule, recorder.values)
        assert logits.sel == 1


def test_llama_chains():
    recorder, _ = record_llama(1)
    chains = [[r.kernel for r in c.records] for step in recorder.schedule.steps for c in step]
    assert chains == [
        ["embed.q4_1", "rms_norm", "quantise.q8.rows"],
        ["linear.q4_1"],  # q
        ["linear.q4_1", "linear.q4_1"],  # k, v: beside q
        ["rope.interleaved", "rope.interleaved", "kv_append.f16"],
        ["attention.f16.3.64.64"],
        ["combine.f16.3.64.64", "quantise.q8.rows"],
        ["linear.q4_1", "add"],
        ["rms_norm", "quantise.q8.rows"],
        ["linear.q4_1", "linear.q4_1", "swiglu", "quantise.q8.cols"],
        ["linear.q4_1", "add"],
        ["gather_rows", "rms_norm", "quantise.q8.rows"],
        ["linear.q4_1"],
    ]


def test_blocks_that_span_heads_wait_for_the_whole_row():
    """256 columns of one block hold eight heads of 32, which different threads may write."""
    recorder, _ = record_llama(1, 256, 512, 8, 2, "q4_k")
    chains = [[r.kernel for r in c.records] for step in recorder.schedule.steps for c in step]
    at = chains.index(["combine.f16.4.32.32"])
    assert chains[at + 1] == ["quantise.q8k.rows"]
    recorder, _ = record_llama(1, 512, 512, 8, 2, "q4_k")  # four heads of 64: a block a key head
    chains = [[r.kernel for r in c.records] for step in recorder.schedule.steps for c in step]
    assert ["combine.f16.4.64.64", "quantise.q8k.rows"] in chains


def test_gemma3_schedule_is_ordered():
    dim, ffn, heads, d, layers = 640, 2048, 4, 256, 7
    spec = RopeSpec(d, 1e6, "half")
    c = gemma3.Config(
        n_layers=layers, dim=dim, ffn_dim=ffn, heads=heads, kv_heads=1, head_dim=d, vocab_size=1000, context_length=512,
        eps=1e-6, window=64, rope=spec, rope_local=RopeSpec(d, 1e4, "half"), scale=d**-0.5,
    )  # fmt: skip
    m = FakeWeight
    layer = lambda i: gemma3.Layer(
        m("attn_norm", dim), m("q", heads * d, dim, fmt="q5_0"), m("k", d, dim, fmt="q5_0"), m("v", d, dim, fmt="q8_0"),
        m("q_norm", d), m("k_norm", d), m("o", dim, heads * d, fmt="q4_k"), m("post", dim), m("ffn_norm", dim),
        m("gate", ffn, dim, fmt="q5_0"), m("up", ffn, dim, fmt="q5_0"), m("down", dim, ffn, fmt="q6_k"), m("post2", dim),
    )  # fmt: skip
    embedding = m("embd", 1000, dim, fmt="q8_0")
    w = gemma3.Weights(embedding, tuple(layer(i) for i in range(layers)), m("output_norm", dim), embedding)
    recorder = Recorder(FakeSources(), c.cache_geometry())
    gemma3.forward(recorder, c, w)
    check_order(recorder.schedule, recorder.values)
    # windows differ by layer, kinds of quantised activations too
    kernels = {r.kernel for r in recorder.schedule.records}
    assert {"quantise.q8.rows", "quantise.q8k.rows", "quantise.q8k.cols", "linear.q4_k", "linear.q6_k"} <= kernels


def test_shared_rows_of_a_layer_are_ordered():
    """A later layer that reads an earlier layer's cache rows, and one that writes them again."""
    r = Recorder(FakeSources(), (LayerGeometry(2, 64, 64),) * 2)
    x = r.embed(FakeWeight("e", 100, 256))
    k = r.linear(x, FakeWeight("k", 128, 256))
    r.kv_append(0, k, k)
    a = r.attention(0, x, 4, 1.0)
    b = r.attention(0, r.add(x, a), 4, 1.0)  # shares layer 0's rows
    r.kv_append(0, r.linear(b, FakeWeight("k2", 128, 256)), k)  # must wait for both readers
    r.linear(r.output_rows(r.attention(0, b, 4, 1.0)), FakeWeight("o", 100, 256))
    check_order(r.schedule, r.values)


def test_independent_attentions_do_not_share_partial_results():
    r = Recorder(FakeSources(), (LayerGeometry(2, 64, 64),) * 2)
    x = r.embed(FakeWeight("e", 100, 256))
    a, b = r.attention(0, x, 4, 1.0), r.attention(1, x, 4, 1.0)
    r.output_rows(r.add(a, b))
    check_order(r.schedule, r.values)
    steps = [i for i, step in enumerate(r.schedule.steps) for c in step for rec in c.records if PARTIAL in rec.changes]
    assert len(set(steps)) == 2


def test_quantised_form_is_made_once_a_kind():
    r = Recorder(FakeSources(), ())
    x = r.embed(FakeWeight("e", 100, 256))
    for i, fmt in enumerate(("q4_1", "q8_0", "q5_0", "q4_0", "q4_k", "q6_k", "f32", "f16")):
        r.linear(x, FakeWeight(f"w{i}", 64, 256, fmt=fmt))
    kernels = [rec.kernel for rec in r.schedule.records if rec.kernel.startswith("quantise")]
    assert sorted(kernels) == ["quantise.q8.rows", "quantise.q8k.rows"]


def test_mistakes_of_a_family_are_named():
    r = Recorder(FakeSources(), (LayerGeometry(2, 64, 64),))
    x = r.embed(FakeWeight("e", 100, 256))
    with pytest.raises(ModelError, match="w has 128 columns, its input 256"):
        r.linear(x, FakeWeight("w", 64, 128))
    with pytest.raises(ModelError, match="expected \\[256\\] / 3 heads"):
        r.rms_norm(x, FakeWeight("n", 64), 1e-5, heads=3)
    with pytest.raises(ModelError, match="layer 0: 3 heads"):
        r.attention(0, x, 3, 1.0)
    with pytest.raises(ModelError, match="behind output_rows"):
        r.rope(r.output_rows(x), 4, RopeSpec(64, 1e4, "half"))
    with pytest.raises(ModelError, match="one shape"):
        r.add(x, r.linear(x, FakeWeight("w2", 64, 256)))
    with pytest.raises(ModelError, match="blocks of 256"):
        r.linear(r.linear(x, FakeWeight("w3", 96, 256)), FakeWeight("w4", 32, 96, fmt="q4_k"))


def test_explain_names_weights_and_steps():
    recorder, _ = record_llama(1)
    text = explain(recorder.schedule, 2)
    assert "linear.q4_1" in text and "blk.0.ffn_gate [1536 x 576]" in text and "K/V of layer 0" in text
    assert text.isascii()
    assert "11 steps" in text.splitlines()[0]


# --- random forwards -------------------------------------------------------------------------------------------------


def random_schedule(rng: random.Random) -> tuple[Schedule, list[Value]]:
    """Records with random partitions, reads and resources, as no family would write them."""
    schedule, values = Schedule(), []
    for i in range(rng.randint(1, 40)):
        rule = rng.choice((ROWS, ROWS, COLS, COLS, COLS, HOST))
        cols = rng.choice((64, 256))
        out = Value(f"v{i}", cols, 0, 4 * cols * rng.choice((1, 2)))
        whole = rng.sample(values, min(len(values), rng.randint(0, 2)))
        # local reads only where columns agree: a unit must mean the same in both
        fitting = [v for v in values if v.cols == cols and v not in whole]
        local = [] if rule == HOST else rng.sample(fitting, min(len(fitting), rng.randint(0, 2)))
        resources = rng.sample("abc", rng.randint(0, 2))
        cut = rng.randint(0, len(resources))
        record = Record(f"k{i}", [], local, whole, [out], resources[:cut], resources[cut:])
        if rule == HOST:
            record.host = lambda arrays, batch: None
            schedule.add(record, Partition(HOST, 1))
        elif rule == ROWS:
            schedule.add(record, Partition(ROWS, rng.choice((1, 4))))
        else:
            schedule.add(record, Partition(COLS, cols), rng.choice((8, 32, 256)))
        values.append(out)
    return schedule, values


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_random_schedules_are_ordered(seed):
    schedule, values = random_schedule(random.Random(seed))
    check_order(schedule, values)
    for step in schedule.steps:
        assert all(c.unit <= MAX_UNIT for c in step)
        if step[0].partition.rule == HOST:
            assert len(step) == 1 and len(step[0].records) == 1
