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


def disagreements(model, recorded, most=None):
    """(sure positions, those where another token wins), teacher-forced along the recorded run."""
    sure, wrong = 0, []
    for case in recorded["cases"][:most]:
        prompt, ids = case["prompt_ids"], case["ids"]
        cache = model.new_cache(len(prompt) + len(ids))
        model.forward_rows([(cache, prompt[:-1], "none")]) if len(prompt) > 1 else None
        rows = model.forward([prompt[-1], *ids[:-1]], cache)
        for row, token, margin in zip(rows, ids, case["margins"], strict=True):
            if margin > SURE:
                sure += 1
                if int(np.argmax(row)) != token:
                    wrong.append((case["prompt"], token, int(np.argmax(row)), margin))
    return sure, wrong


@pytest.mark.parametrize("options", [{"backend": "naive"}, {}], ids=["naive", "native"])
def test_smollm2_agrees_where_llama_cpp_is_sure(options):
    model = fucina.load(need_smollm2(), **options)
    sure, wrong = disagreements(model, RECORDED["smollm2-135m"])
    model.close()
    assert sure > 100 and wrong == []


def test_gemma3_agrees_where_llama_cpp_is_sure():
    model = fucina.load(need_gemma3())
    sure, wrong = disagreements(model, RECORDED["gemma3-270m"])
    model.close()
    assert sure > 100 and wrong == []


def test_the_tokenizer_gives_the_recorded_prompts():
    model = fucina.load(need_smollm2(), backend="naive")
    for case in RECORDED["smollm2-135m"]["cases"]:
        assert model.tokenizer.encode_prompt(case["prompt"]) == case["prompt_ids"]
        assert model.tokenizer.decode(case["ids"]) == case["text"]
