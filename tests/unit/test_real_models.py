"""Real models against llama.cpp's recorded greedy runs.

Both sides round, each in its own way, so tokens need not be equal.  Where llama.cpp was sure (its two best logits lie
more than 1.0 apart), the same token must win here.
"""

import json

import numpy as np
import pytest

import fucina
from tests.models import DATA, need_gemma3, need_smollm2

RECORDED = json.loads((DATA / "greedy.json").read_text(encoding="utf-8"))
SURE = 1.0
SURE_ROUNDED = 2.0  # native rounds activations to int8 on its own: logits move by up to about 1


def disagreements(model, recorded, margin_of_sure, most=None):
    """(sure positions, those where another token wins), teacher-forced along the recorded run."""
    sure, wrong = 0, []
    for case in recorded["cases"][:most]:
        prompt, ids = case["prompt_ids"], case["ids"]
        cache = model.new_cache(len(prompt) + len(ids))
        model.forward_rows([(cache, prompt[:-1], "none")]) if len(prompt) > 1 else None
        rows = model.forward([prompt[-1], *ids[:-1]], cache)
        for row, token, margin in zip(rows, ids, case["margins"], strict=True):
            if margin > margin_of_sure:
                sure += 1
                if int(np.argmax(row)) != token:
                    wrong.append((case["prompt"], token, int(np.argmax(row)), margin))
    return sure, wrong


@pytest.mark.parametrize(("backend", "margin"), [("naive", SURE), ("native", SURE_ROUNDED)])
def test_smollm2_agrees_where_llama_cpp_is_sure(backend, margin):
    model = fucina.load(need_smollm2(), backend=backend)
    sure, wrong = disagreements(model, RECORDED["smollm2-135m"], margin)
    model.close()
    assert sure > 60 and wrong == []


def test_gemma3_agrees_where_llama_cpp_is_sure():
    model = fucina.load(need_gemma3())
    sure, wrong = disagreements(model, RECORDED["gemma3-270m"], SURE_ROUNDED)
    model.close()
    assert sure > 60 and wrong == []


def test_the_tokenizer_gives_the_recorded_prompts():
    model = fucina.load(need_smollm2(), backend="naive")
    for case in RECORDED["smollm2-135m"]["cases"]:
        assert model.tokenizer.encode_prompt(case["prompt"]) == case["prompt_ids"]
        assert model.tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("need", [need_smollm2, need_gemma3], ids=["smollm2", "gemma3"])
def test_native_has_the_bits_of_its_numpy_twin(need):
    """A whole real model, twice: compiled kernels and their NumPy twins.  Not close: equal."""
    prompt = RECORDED["smollm2-135m"]["cases"][0]["prompt_ids"]
    native = fucina.load(need())
    logits = native.logits(prompt)
    native.close()
    twin = fucina.load(need(), backend="naive", activations="q8")
    assert twin.logits(prompt).tobytes() == logits.tobytes()
    twin.close()
