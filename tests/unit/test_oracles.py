"""Tiny models with known logits from two independent implementations, on every interpreter.

Their weights are F32, so the numbers must agree to rounding: a real mistake shows as more than 1e-2.
"""

import numpy as np
import pytest

import fucina
from tests.models import TINY

BACKENDS = [("naive", "f32"), ("native", "f32")]
NAMES = ["llama", "llama3rope", "gemma3", "qwen3", "qwen3moe", "deepseek2", "deepseek2lite", "deepseek3_yarn"]


@pytest.fixture(scope="module", params=[(n, b) for n in NAMES for b, _ in BACKENDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request):
    name, backend = request.param
    model = fucina.load(TINY / f"{name}.gguf", backend=backend)
    yield name, model, dict(np.load(TINY / f"{name}.npz"))
    model.close()


def test_logits_equal_those_of_transformers(case):
    _, model, oracle = case
    np.testing.assert_allclose(model.logits(oracle["tokens"]), oracle["logits_hf"], atol=1e-4, rtol=0)


def test_logits_equal_those_of_llama_cpp(case):
    name, model, oracle = case
    # llama.cpp's CPU GELU is a table of float16
    atol = 2e-3 if name == "gemma3" else 1e-4
    np.testing.assert_allclose(model.logits(oracle["tokens"]), oracle["logits_llamacpp"], atol=atol, rtol=0)


def test_greedy_continuation_is_equal(case):
    _, model, oracle = case
    prompt = oracle["greedy_prompt"].tolist()
    result = model.generate(prompt, max_tokens=len(oracle["greedy"]), ignore_eos=True)
    assert result.tokens == oracle["greedy"].tolist()
    assert result.finish_reason == "length" and result.prompt_tokens == len(prompt)


def test_token_by_token_equals_the_whole_prompt_bit_for_bit(case):
    _, model, oracle = case
    tokens = oracle["tokens"][:24]
    whole = model.logits(tokens)
    cache = model.new_cache(len(tokens))
    single = np.concatenate([model.forward([t], cache) for t in tokens])
    assert whole.tobytes() == single.tobytes()
    assert cache.len == len(tokens)
