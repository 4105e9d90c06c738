"""Hidden states: the rows before the head, with the same bits in any company; and vectors of texts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fucina
from fucina.cache import State
from fucina.cache.parts import Layout
from fucina.engine import Engine, Hidden, HiddenStream, Scheduler, Stream
from fucina.errors import EmptyInput, InvalidOption, KvCacheOverflow, ModelError, TokenOutOfRange
from fucina.ops.naive import EXACT, Naive
from fucina.ops.native import Native
from fucina.ops.native_bits import NATIVE_BITS
from fucina.ops.rows import RowBatch
from fucina.sampling import Sampler, SamplerOptions
from tests.chat_model import write_chat_model
from tests.toy_families import KINDS, toy_family

from .tiny_models import EAGER, FAMILIES

CONTEXT = 512
MAKERS = {
    "naive": lambda family: Naive(family, None, EXACT),
    "twin": lambda family: Naive(family, None, NATIVE_BITS),
    "native": lambda family: Native(family, threads=2, context=CONTEXT, **EAGER),
}
all_families = pytest.mark.parametrize("family", [*FAMILIES, *KINDS])


@cache
def loaded(family):
    return FAMILIES[family]() if family in FAMILIES else toy_family(family, "quantised")


@cache
def engine(family, kind):
    return Engine(loaded(family), MAKERS[kind](loaded(family)), CONTEXT, "f16", b"0" * 16)


@cache
def text(family, n=150):
    return np.random.default_rng(3).integers(0, loaded(family).config.vocab_size, n).tolist()


@all_families
def test_the_head_makes_logits_of_hidden_states(family):
    """The oracle: what the forward of the exact interpreter does last is one product, row by row."""
    for kind in ("naive", "twin"):
        one, n = engine(family, kind), 20
        ids = text(family)[:n]
        hidden, logits = one.hidden(ids), one.logits(ids)
        assert hidden.shape == (n, loaded(family).config.dim) and hidden.dtype == np.float32
        interpreter = one._interpreter
        by_head = interpreter._functions.product(hidden, interpreter.matrix(loaded(family).head))
        assert by_head.tobytes() == logits.tobytes()


@all_families
def test_native_rows_are_those_of_the_twin(family):
    ids = text(family)[:70]
    assert engine(family, "native").hidden(ids).tobytes() == engine(family, "twin").hidden(ids).tobytes()


@all_families
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_same_bits_in_any_company(family, data):
    one = engine(family, "native")
    ids = text(family)
    hidden, logits = reference(family)
    requests, wants = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        start, n = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 90))
        state = one.new_cache()
        if start:
            one.forward_rows([(state, ids[:start], "none")])
        rows = data.draw(st.integers(0, n))
        want = data.draw(st.sampled_from([Hidden(rows), rows, "all", "last", "none"]))
        requests.append((state, ids[start : start + n], want))
        wants.append((start, n, want))
    out = one.forward_rows(requests)
    for (state, _, _), (start, n, want), got in zip(requests, wants, out, strict=True):
        end = start + n
        if isinstance(want, str):
            assert state.len == end
            first = {"all": start, "last": end - 1, "none": end}[want]
        else:
            assert state.len == start
            state.commit(n)
            first = end - (want.rows if isinstance(want, Hidden) else want)
        expected = (hidden if isinstance(want, Hidden) else logits)[first:end]
        assert got.tobytes() == expected.tobytes() and got.shape == expected.shape


@cache
def reference(family):
    one = engine(family, "native")
    state, hidden, ids = one.new_cache(), [], text(family)
    for token in ids:
        hidden.append(one.forward_rows([(state, [token], Hidden(1))])[0])
        state.commit(1)
    return np.concatenate(hidden), one.logits(ids)


def test_a_replaced_product_leaves_hidden_states_as_they_are():
    one, ids = engine("llama", "native"), text("llama")[:9]
    with one.override("linear", lambda w, x: w @ x):
        state, other = one.new_cache(), one.new_cache()
        hidden, logits = one.forward_rows([(state, ids, Hidden(9)), (other, ids, 2)])
        state.rollback()
        other.rollback()
        assert logits.tobytes() == one.logits(ids)[-2:].tobytes()
    assert np.isfinite(hidden).all() and logits.shape == (2, one.config.vocab_size)


@pytest.mark.parametrize("want", [Hidden(-1), Hidden(4), Hidden(1.0), Hidden("all"), Hidden(True)])
def test_wrong_wants(want):
    one = engine("llama", "naive")
    with pytest.raises(InvalidOption, match="want"):
        one.forward_rows([(one.new_cache(), [1, 2, 3], want)])


@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_forward_without_a_head_has_no_hidden_states(kind):
    from dataclasses import replace

    family = loaded("llama")

    def forward(ops, config, weights):
        x = ops.output_rows(ops.embed(weights.embedding))
        return ops.add(x, x)

    one = MAKERS[kind](replace(family, forward=forward))
    state, rows = State(Layout(family.parts), 8, "f16", b"0" * 16), np.arange(2)
    state.begin(2)
    with pytest.raises(ModelError, match="does not end with the output matrix"):
        batch = RowBatch(rows, rows, 0 * rows, [state], rows[:1], rows[1:])
        one.run(batch, np.empty((1, family.config.dim), np.float32))


# --- vectors of texts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield model
    model.close()


def by_hand(model, ids, pooling):
    rows = model.hidden(ids).astype(np.float64)
    total = rows[-1] if pooling == "last" else np.add.accumulate(rows)[-1]
    return (total / np.sqrt(np.sum(total * total))).astype(np.float32)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_pooled_rows(model, pooling):
    texts = ["hello there", "a", [5, 6, 7], "hello there", *(f"text {i}" * (i % 3 + 1) for i in range(40))]
    found = model.embed(texts, pooling)
    assert found.shape == (44, model.config.dim) and found.dtype == np.float32
    for i, given_ in enumerate(texts):
        ids = model.tokenizer.encode_prompt(given_) if isinstance(given_, str) else given_
        assert found[i].tobytes() == by_hand(model, ids, pooling).tobytes()
        assert found[i].tobytes() == model.embed([given_], pooling)[0].tobytes()
    assert np.allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-6)
    assert model.embed("a", pooling).shape == (1, model.config.dim) and model.embed([]).shape == (0, model.config.dim)


def test_wrong_texts(model):
    for wrong, error in (
        ([[]], EmptyInput), ([""], EmptyInput), ([[999999]], TokenOutOfRange), (3, InvalidOption), ([3], InvalidOption),
        ([[1] * 100_000], KvCacheOverflow),
    ):  # fmt: skip
        with pytest.raises(error):
            model.embed(wrong)
    with pytest.raises(InvalidOption, match="pooling"):
        model.embed("a", "max")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_vectors_beside_replies(model, data):
    """Streams that decode and streams of hidden states share passes; each gets what it gets alone."""
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))

    def reply():
        ids = generator.integers(0, 256, generator.integers(1, 90)).tolist()
        return Stream(model.new_cache(), ids, Sampler(SamplerOptions(temperature=0.8, seed=1)), max_tokens=6)

    def vectors():
        texts = [
            generator.integers(0, 256, generator.integers(1, 80)).tolist() for _ in range(generator.integers(1, 4))
        ]
        return HiddenStream(texts, model.new_cache, str(generator.choice(["last", "mean"]))), texts

    scheduler = Scheduler(model, row_budget=data.draw(st.integers(4, 128)))
    replies, hidden = [reply() for _ in range(3)], [vectors() for _ in range(2)]
    prompts = [list(s.tokens) for s in replies]
    for stream in (replies[0], hidden[0][0], replies[1]):
        scheduler.add(stream)
    for _ in range(data.draw(st.integers(0, 5))):
        scheduler.step()
    for stream in (hidden[1][0], replies[2]):
        scheduler.add(stream)
    while scheduler.step() is not None:
        pass
    for stream, texts in hidden:
        assert stream.finish == "ended" and stream.error is None
        for vector, ids in zip(stream.vectors, texts, strict=True):
            assert vector.tobytes() == by_hand(model, ids, stream.pooling).tobytes()
    for stream, prompt in zip(replies, prompts, strict=True):
        alone = Stream(model.new_cache(), prompt, Sampler(SamplerOptions(temperature=0.8, seed=1)), max_tokens=6)
        other = Scheduler(model)
        other.add(alone)
        while other.step() is not None:
            pass
        assert alone.tokens == stream.tokens


def test_a_cancelled_stream_of_vectors_ends(model):
    scheduler, stream = Scheduler(model, row_budget=8), HiddenStream([[1] * 50, [2]], model.new_cache, "mean")
    scheduler.add(stream)
    scheduler.step()
    stream.cancel()
    assert scheduler.step() is None and stream.finish == "cancelled" and stream.vectors == []


def test_rows_that_are_all_zero_stay_so():
    from fucina.engine.hidden import unit

    assert unit(np.zeros(3)).tolist() == [0, 0, 0]
    assert unit(np.array([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
