"""The order of recorded forwards, against an oracle that looks at every pair of records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache.parts import Kv, Latent, Layout, Recurrent
from fucina.errors import ModelError
from fucina.kernels.record import COLS, HOST, ROWS
from fucina.models import gemma3
from fucina.ops.native.explain import explain, summary
from fucina.ops.native.recorder import PARTIAL, Recorder
from fucina.ops.native.schedule import MAX_UNIT, Partition, Record, Schedule, Value
from fucina.ops.native.spaces import OUTPUT, PASS, routed
from fucina.ops.rope import RopeSpec
from fucina.ops.vocabulary import AttentionSpec, RouterSpec

from .recorded import FakeSources, FakeWeight, check_order, record, record_llama


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
        assert logits.space == OUTPUT


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
    config = gemma3.Config(
        n_layers=7, dim=640, ffn_dim=2048, heads=4, kv_heads=1, head_dim=256, vocab_size=1000, context_length=512,
        eps=1e-6, windows=(64,) * 5 + (0, 64), rope=RopeSpec(256, 1e6, "half"), rope_local=RopeSpec(256, 1e4, "half"),
        scale=256**-0.5,
    )  # fmt: skip
    formats = {"v": "q8_0", "attn_output": "q4_k", "down": "q6_k", "embedding": "q8_0"}
    recorder, _ = record(gemma3.FAMILY, config, lambda name: formats.get(name, "q5_0"))
    check_order(recorder.schedule, recorder.values)
    # windows differ by layer, kinds of quantised activations too
    kernels = {r.kernel for r in recorder.schedule.records}
    assert {"quantise.q8.rows", "quantise.q8k.rows", "quantise.q8k.cols", "linear.q4_k", "linear.q6_k"} <= kernels


TWO = Layout([Kv(2, 64, 64)] * 2)
ALL = AttentionSpec(4, 1.0)


def test_shared_rows_of_a_slot_are_ordered():
    """A later layer that reads what an earlier layer stored in a slot, and one that stores there again."""
    r = Recorder(FakeSources(), TWO)
    x = r.embed(FakeWeight("e", 100, 256))
    k = r.linear(x, FakeWeight("k", 128, 256))
    a = r.attention(0, x, k, k, ALL)
    b = r.attention(0, r.add(x, a), None, None, ALL)
    c = r.attention(0, b, r.linear(b, FakeWeight("k2", 128, 256)), k, ALL)  # must wait for both readers
    r.linear(r.output_rows(c), FakeWeight("o", 100, 256))
    check_order(r.schedule, r.values)


def test_independent_attentions_do_not_share_partial_results():
    r = Recorder(FakeSources(), TWO)
    x = r.embed(FakeWeight("e", 100, 256))
    a, b = r.attention(0, x, None, None, ALL), r.attention(1, x, None, None, ALL)
    r.output_rows(r.add(a, b))
    check_order(r.schedule, r.values)
    steps = [i for i, step in enumerate(r.schedule.steps) for c in step for rec in c.records if PARTIAL in rec.changes]
    assert len(set(steps)) == 2


def test_every_op_of_the_vocabulary_is_ordered():
    """Views, experts, a recurrent part and a latent in one forward."""
    r = Recorder(FakeSources(), Layout([Latent(48, 32), Recurrent((4, 64, 32))]))
    m = FakeWeight
    x = r.embed(m("e", 100, 256))
    nope, turned = r.split(r.linear(x, m("q", 4 * 64, 256)), 32, 32, heads=4)
    turned = r.rope(turned, 4, RopeSpec(32, 1e4, "half"))
    q = r.concat(r.linear_heads(nope, m("k_b", 4, 32, 32), 4), r.split(turned, 16, 16, heads=4)[0], heads=4)
    a = r.attention(0, q, r.linear(x, m("kv", 48, 256)), None, AttentionSpec(4, 0.1))
    a = r.linear(r.linear_heads(a, m("v_b", 4, 64, 32), 4), m("o", 256, 256))
    mixed = r.linear(r.add(x, a), m("qkv", 2 * 256 + 128 + 8, 256))
    q, k, v, decay, beta = r.split(mixed, 256, 256, 128, 4, 4)
    s = r.delta_rule(1, q, k, v, r.sigmoid(decay), beta, 4)
    x = r.add(x, r.mul(r.linear(s, m("gate", 256, 128)), a))
    experts, weights = r.route(x, m("router", 8, 256, fmt="f32"), RouterSpec(2))
    stacks = m("gate_exps", 8, 96, 256), m("up_exps", 8, 96, 256), m("down_exps", 8, 256, 96)
    y = r.moe_ffn(x, experts, weights, *stacks)
    logits = r.linear(r.output_rows(r.add(x, y)), m("out", 100, 256))
    check_order(r.schedule, r.values)
    assert logits.space == OUTPUT
    spaces = {c.partition.space.name for step in r.schedule.steps for c in step}
    assert spaces == {"row", "out row", "stream", "routed row"}
    # an expert's row goes through gate, up, their product and its int8 form in one chain
    chains = [[rec.kernel for rec in c.records] for step in r.schedule.steps for c in step]
    assert ["linear_routed.q4_1", "linear_routed.q4_1", "swiglu", "quantise.q8.cols"] in chains
    text = explain(r.schedule, 2)
    assert text.isascii() and "routed rows" in text and "streams x 4" in text and "gate_exps [8 x 96 x 256]" in text


def test_row_spaces_count_their_rows():
    job = [0] * 16
    job[PASS.word], job[OUTPUT.word] = 7, 2
    assert (PASS.count(job), OUTPUT.count(job), routed(3).count(job)) == (7, 2, 21)
    assert routed(3).limit == 3 * PASS.limit and routed(3) == routed(3) != routed(2)


def test_quantised_form_is_made_once_a_kind():
    r = Recorder(FakeSources(), TWO)
    x = r.embed(FakeWeight("e", 100, 256))
    for i, fmt in enumerate(("q4_1", "q8_0", "q5_0", "q4_0", "q4_k", "q6_k", "f32", "f16")):
        r.linear(x, FakeWeight(f"w{i}", 64, 256, fmt=fmt))
    kernels = [rec.kernel for rec in r.schedule.records if rec.kernel.startswith("quantise")]
    assert sorted(kernels) == ["quantise.q8.rows", "quantise.q8k.rows"]


def test_mistakes_of_a_family_are_named():
    r = Recorder(FakeSources(), Layout([Kv(2, 64, 64), Kv(2, 64, 64, 100), Kv(1, 4, 4)]))
    x = r.embed(FakeWeight("e", 100, 256))
    with pytest.raises(ModelError, match="w has 128 columns, its input 256"):
        r.linear(x, FakeWeight("w", 64, 128))
    with pytest.raises(ModelError, match="expected \\[256\\] / 3 heads"):
        r.rms_norm(x, FakeWeight("n", 64), 1e-5, heads=3)
    with pytest.raises(ModelError, match="slot 0: 3 heads"):
        r.attention(0, x, None, None, AttentionSpec(3, 1.0))
    with pytest.raises(ModelError, match="slot 0 keeps 2 heads of 64 and 64, got 256 and 256"):
        r.attention(0, x, x, x, ALL)
    with pytest.raises(ModelError, match="slot 1 keeps 100 positions, a row cannot see all"):
        r.attention(1, x, None, None, ALL)
    with pytest.raises(ModelError, match="slot 7 is not a part"):
        r.attention(7, x, None, None, ALL)
    with pytest.raises(ModelError, match="multiple of 8, got 4 and 4"):
        narrow = r.split(x, 4, 252)[0]
        r.attention(2, narrow, narrow, narrow, AttentionSpec(1, 1.0))
    with pytest.raises(ModelError, match="after output_rows"):
        r.rope(r.output_rows(x), 4, RopeSpec(64, 1e4, "half"))
    with pytest.raises(ModelError, match="one shape"):
        r.add(x, r.linear(x, FakeWeight("w2", 64, 256)))
    with pytest.raises(ModelError, match="blocks of 256"):
        r.linear(r.linear(x, FakeWeight("w3", 96, 256)), FakeWeight("w4", 32, 96, fmt="q4_k"))


def test_explain_names_weights_and_steps():
    recorder, _ = record_llama(1)
    text = explain(recorder.schedule, 2)
    assert "linear.q4_1" in text and "blk.0.ffn_gate [1536 x 576]" in text and "state of slot 0" in text
    assert text.isascii()
    assert "11 steps" in text.splitlines()[0]


# --- random forwards -------------------------------------------------------------------------------------------------


def random_schedule(rng: random.Random) -> tuple[Schedule, list[Value]]:
    """Records with random partitions, reads and resources, as no family would write them."""
    schedule, values = Schedule(), []
    for i in range(rng.randint(1, 40)):
        rule = rng.choice((ROWS, ROWS, COLS, COLS, COLS, HOST))
        cols = rng.choice((64, 256))
        out = Value(f"v{i}", cols, PASS, 4 * cols * rng.choice((1, 2)))
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
