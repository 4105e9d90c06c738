"""Tiny models with known logits from two independent implementations, on every interpreter.

Their weights are F32, so the numbers must agree to rounding: a real mistake shows as more than 1e-2.
"""

import numpy as np
import pytest

import fucina
from tests.models import TINY

BACKENDS = [("naive", "f32"), ("native", "f32")]
NAMES = ["llama", "llama3rope", "gemma3", "gemma4", "gemma4_kvshare", "gemma4_moe", "qwen3", "qwen3moe"]
NAMES += ["qwen35", "qwen35moe", "deepseek2", "deepseek2lite", "deepseek3_yarn"]
# float64 moves the logits of these by up to 2e-4; llama.cpp's CPU GELU is a table of float16
TOLERANCE = {name: 1e-3 for name in NAMES if name.startswith(("qwen35", "gemma4"))}
LLAMA_CPP = TOLERANCE | {"gemma3": 2e-3} | {name: 5e-2 for name in NAMES if name.startswith("gemma4")}


@pytest.fixture(scope="module", params=[(n, b) for n in NAMES for b, _ in BACKENDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request):
    name, backend = request.param
    model = fucina.load(TINY / f"{name}.gguf", backend=backend)
    yield name, model, dict(np.load(TINY / f"{name}.npz"))
    model.close()


def test_logits_equal_those_of_transformers(case):
    name, model, oracle = case
    for text in texts(oracle):
        got, expected = model.logits(oracle[f"tokens{text}"]), oracle[f"logits_hf{text}"]
        np.testing.assert_allclose(got, expected, atol=TOLERANCE.get(name, 1e-4), rtol=0)


def test_logits_equal_those_of_llama_cpp(case):
    name, model, oracle = case
    for text in texts(oracle):
        got, expected = model.logits(oracle[f"tokens{text}"]), oracle[f"logits_llamacpp{text}"]
        np.testing.assert_allclose(got, expected, atol=LLAMA_CPP.get(name, 1e-4), rtol=0)


def test_greedy_continuation_is_equal(case):
    _, model, oracle = case
    prompt = oracle["greedy_prompt"].tolist()
    result = model.generate(prompt, max_tokens=len(oracle["greedy"]), ignore_eos=True)
    assert result.tokens == oracle["greedy"].tolist()
    assert result.finish_reason == "length" and result.prompt_tokens == len(prompt)


def test_token_by_token_equals_the_whole_prompt_bit_for_bit(case):
    _, model, oracle = case
    for text in texts(oracle):
        tokens = oracle[f"tokens{text}"]
        whole = model.logits(tokens)
        for step in (1, 7):
            cache = model.new_cache(len(tokens))
            parts = [model.forward(tokens[i : i + step], cache) for i in range(0, len(tokens), step)]
            assert whole.tobytes() == np.concatenate(parts).tobytes()
            assert cache.len == len(tokens)


def test_the_readable_twin_has_the_same_bits(case):
    """The NumPy twins of the kernels, as an interpreter, against the compiled ones."""
    name, model, oracle = case
    if model.backend != "native":
        return
    twin = fucina.load(TINY / f"{name}.gguf", backend="naive", activations="q8", cache_dtype=model.cache_dtype)
    tokens = oracle["tokens"]
    assert twin.logits(tokens).tobytes() == model.logits(tokens).tobytes()


def texts(oracle):
    """Suffixes of the names of the texts: a short one, and perhaps a long one, longer than a pass."""
    return [text for text in ("", "_long") if f"tokens{text}" in oracle]
