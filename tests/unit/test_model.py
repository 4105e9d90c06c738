"""The checks before a pass, on both interpreters: bad input gets a named error and changes nothing."""

import os
import threading

import numpy as np
import pytest

import fucina
from fucina.cache import State
from fucina.errors import (
    ContextFull,
    DuplicateCache,
    EmptyInput,
    FucinaError,
    InvalidOption,
    KvCacheOverflow,
    KvCacheShapeMismatch,
    ModelError,
    ModelNotFound,
    ReentrantForward,
    TokenOutOfRange,
)
from tests.models import TINY

LLAMA = TINY / "llama.gguf"


@pytest.fixture(scope="module", params=["naive", "native"])
def model(request):
    m = fucina.load(LLAMA, backend=request.param)
    yield m
    m.close()


def test_load_knows_what_it_loaded(model):
    assert model.config.vocab_size == 256 and model.config.n_layers == 2
    assert model.context == model.config.context_length == 512
    assert model.cache_dtype == "f32"  # all matrices are F32
    assert model.chat_template is None
    assert model.backend in repr(model)
    assert model.explain().strip()


@pytest.mark.parametrize("bad", [[256], [-1], [0, 2**31], [2**62], [1.5], [[1, 2]], ["a"], [None]])
def test_token_ids_out_of_range(model, bad):
    cache = model.new_cache(8)
    with pytest.raises(TokenOutOfRange):
        model.forward(bad, cache)
    assert cache.len == 0


def test_no_tokens_and_no_streams(model):
    with pytest.raises(EmptyInput):
        model.logits([])
    with pytest.raises(EmptyInput):
        model.forward_rows([])
    with pytest.raises(EmptyInput):
        model.generate("")


def test_overflow_of_any_stream_advances_none(model):
    a, b = model.new_cache(10), model.new_cache(2)
    with pytest.raises(KvCacheOverflow, match="stream 1"):
        model.forward_rows([(a, [1, 2], "last"), (b, [1, 2, 3], "last")])
    assert a.len == 0 and b.len == 0


def test_caches_of_others_are_refused(model):
    with pytest.raises(KvCacheShapeMismatch, match="not made by this model"):
        model.forward([1], State(model.family.parts[:1], 4, "f32"))
    with pytest.raises(KvCacheShapeMismatch, match="not made by this model"):
        model.forward([1], State(model.family.parts, 4, "f16", model.fingerprint))
    with pytest.raises(KvCacheShapeMismatch, match="another model"):
        model.forward([1], State(model.family.parts, 4, "f32", b"elsewhere"))
    with pytest.raises(KvCacheShapeMismatch, match="expected a State"):
        model.forward([1], None)
    other = fucina.load(TINY / "llama3rope.gguf", backend="naive")  # the same geometry, other weights
    with pytest.raises(KvCacheShapeMismatch, match="another model"):
        model.forward([1], other.new_cache(4))


def test_one_cache_twice_and_an_unknown_wish(model):
    cache = model.new_cache(8)
    with pytest.raises(DuplicateCache):
        model.forward_rows([(cache, [1], "last"), (cache, [2], "last")])
    with pytest.raises(InvalidOption, match="want"):
        model.forward_rows([(cache, [1], "some")])
    assert cache.len == 0


def test_several_streams_in_one_pass_equal_each_alone(model):
    streams = [[5, 6, 7], [9], [11, 12, 13, 14, 15]]
    alone = [model.logits(s) for s in streams]
    caches = [model.new_cache(8) for _ in streams]
    together = model.forward_rows(list(zip(caches, streams, ["all", "last", "none"], strict=True)))
    assert together[0].tobytes() == alone[0].tobytes()
    assert together[1].tobytes() == alone[1][-1:].tobytes()
    assert together[2].shape == (0, 256)
    assert [c.len for c in caches] == [3, 1, 5]
    again = model.forward([16], caches[2])
    assert again.tobytes() == model.logits([*streams[2], 16])[-1:].tobytes()


def test_a_prompt_longer_than_a_pass(model):
    tokens = np.arange(300) % 256
    whole = model.logits(tokens)
    assert whole.shape == (300, 256)
    cache = model.new_cache(300)
    parts = [model.forward(tokens[i:j], cache) for i, j in ((0, 1), (1, 130), (130, 300))]
    assert whole.tobytes() == np.concatenate(parts).tobytes()


def test_capacity_is_bounded_by_the_context(model):
    with pytest.raises(KvCacheOverflow, match="context=513"):
        model.new_cache(513)
    with pytest.raises(ContextFull, match="600 tokens"):
        model.generate([1] * 600)
    assert model.generate([1] * 510, max_tokens=50, ignore_eos=True).finish_reason == "length"


def test_generation_ends_when_the_context_is_full(model):
    result = model.generate([1] * 510, max_tokens=50, ignore_eos=True)
    assert len(result.tokens) == 3  # two more rows fit, and the last row's logits give one more token


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": 0}, {"max_tokens": -2}, {"max_tokens": 1.5}, {"stop": [1]}, {"temprature": 1}],
)
def test_impossible_options_are_named(model, options):
    with pytest.raises(InvalidOption):
        model.generate([1], **options)


@pytest.mark.parametrize(
    ("prompt", "error"), [([1.5], TokenOutOfRange), ([-1], TokenOutOfRange), (None, InvalidOption), (7, InvalidOption)]
)
def test_prompts_that_are_neither_text_nor_ids(model, prompt, error):
    with pytest.raises(error):
        model.generate(prompt)


def test_bytes_are_text_and_no_stop_is_no_stop(model):
    assert model.generate(b"ab", max_tokens=3, stop=None).tokens == model.generate("ab", max_tokens=3).tokens


def test_stream_pieces_joined_equal_the_text(model):
    stream = model.generate([3, 4, 5], max_tokens=12, stream=True, temperature=1.0, seed=4)
    text = "".join(stream)
    whole = model.generate([3, 4, 5], max_tokens=12, temperature=1.0, seed=4)
    assert text == stream.result.text == whole.text and stream.result.tokens == whole.tokens


def test_a_stream_left_early_keeps_what_it_had(model):
    stream = model.generate([3, 4, 5], max_tokens=30, stream=True, ignore_eos=True)
    first = next(stream)
    stream.close()
    assert stream.result.text == first
    assert model.generate([3, 4, 5], max_tokens=2).text  # the model goes on


def test_two_threads_queue_up(model):
    prompts = [[i, i + 1, i + 2] for i in range(3, 9)]
    expected = [model.generate(p, max_tokens=8).tokens for p in prompts]
    got = [None] * len(prompts)

    def work(i):
        got[i] = model.generate(prompts[i], max_tokens=8).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_a_thread_held_the_model_goes_on(model):
    expected = model.logits([7, 8]).tobytes()
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with model._passes():
            inside.set()
            leave.wait()

    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if model.logits([7, 8]).tobytes() == expected else 1)
    leave.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_override_runs_the_learners_op(model):
    from fucina.ops.naive import rms_norm

    tokens = [7, 8, 9, 10]
    reference = model.logits(tokens)
    calls = []

    def mine(x, weight, eps):
        calls.append(x.shape)
        return rms_norm(x, weight, eps)

    with model.override("rms_norm", mine):
        np.testing.assert_allclose(model.logits(tokens), reference, atol=1e-4)
    assert len(calls) >= 5 * len(tokens) - 3
    calls.clear()
    assert model.logits(tokens).tobytes() == reference.tobytes() and not calls


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, w, eps: x[:-1], "in place of rms_norm returned"),
        (lambda x, w, eps: x * np.nan, "not finite"),
        (lambda x, w, eps: None, "in place of rms_norm returned"),
    ],
)
def test_a_wrong_override_is_named_and_the_model_goes_on(model, wrong, message):
    reference = model.logits([7, 8])
    cache = model.new_cache(4)
    with model.override("rms_norm", wrong), pytest.raises(ModelError, match=message):
        model.forward([7, 8], cache)
    assert cache.len == 0
    assert model.logits([7, 8]).tobytes() == reference.tobytes()


def test_an_exception_in_an_override_passes_through(model):
    def broken(x, weight, eps):
        raise ZeroDivisionError("mine")

    with model.override("rms_norm", broken), pytest.raises(ZeroDivisionError, match="mine"):
        model.logits([7, 8])
    with pytest.raises(InvalidOption, match="op must be one of"), model.override("embed", broken):
        pass
    assert np.isfinite(model.logits([7, 8])).all()


def test_a_pass_inside_a_pass_is_refused(model):
    def recursive(x, weight, eps):
        return model.logits([1])

    with model.override("rms_norm", recursive), pytest.raises(ReentrantForward):
        model.logits([7, 8])
    assert np.isfinite(model.logits([7, 8])).all()


# --- loading ------------------------------------------------------------------------------------------------------


def test_names_and_arguments_of_load():
    with pytest.raises(ModelNotFound):
        fucina.load("no-such-model")
    with pytest.raises(FucinaError):
        fucina.load(TINY / "absent.gguf")
    for options in (
        {"backend": "gpu"},
        {"threads": 0},
        {"context": -1},
        {"cache_dtype": "q4_0"},
        {"dequantize": {"F32": abs}},
    ):
        with pytest.raises(InvalidOption):
            fucina.load(LLAMA, **options)


def test_a_longer_context_than_trained_warns():
    with pytest.warns(UserWarning, match="longer than the 512"):
        assert fucina.load(LLAMA, backend="naive", context=600).new_cache().capacity == 600


def test_learners_decoder_inside_the_model():
    reference = fucina.load(LLAMA, backend="naive").logits([1, 2, 3])

    def mine(raw):
        return np.ascontiguousarray(raw).view(np.float32)

    assert (
        fucina.load(LLAMA, backend="naive", dequantize={"F32": mine}).logits([1, 2, 3]).tobytes() == reference.tobytes()
    )
    broken = fucina.load(LLAMA, backend="naive", dequantize={"F32": lambda raw: np.zeros((1, 1))})
    with pytest.raises(ModelError, match="returned shape"):
        broken.logits([1])
