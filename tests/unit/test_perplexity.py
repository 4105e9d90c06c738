"""Perplexity: against the definition, against llama.cpp's own program, and on bad input."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina import hub
from fucina.cli import main
from fucina.errors import InvalidOption, TokenOutOfRange, TooShort
from fucina.perplexity import negative_log_probabilities, perplexity, perplexity_of_tokens
from tests.chat_model import CHATML, write_chat_model

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", CHATML))


@pytest.fixture(scope="module")
def model(path):
    model = fucina.load(path)
    yield model
    model.close()


def by_definition(model, ids, chunk, bos=None):
    """All chunks at once, position by position, in float64."""
    losses = []
    for start in range(0, len(ids) // chunk * chunk, chunk):
        part = list(ids[start : start + chunk])
        if bos is not None:
            part[0] = bos
        rows = model.logits(part).astype(np.float64)
        for i in range(chunk // 2, chunk - 1):
            losses.append(math.log(np.exp(rows[i] - rows[i].max()).sum()) + rows[i].max() - rows[i, part[i + 1]])
    return losses


@pytest.mark.parametrize("bos", [None, 3])
@pytest.mark.parametrize(("length", "chunk"), [(64, 32), (100, 33), (150, 5), (13, 4)])
def test_it_is_what_the_definition_says(model, length, chunk, bos):
    ids = np.random.default_rng(length).integers(0, 200, length).tolist()
    losses = by_definition(model, ids, chunk, bos)
    seen = []
    found = perplexity_of_tokens(model, ids, chunk, bos, lambda *told: seen.append(told))
    assert found.value == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)
    assert found.error == pytest.approx(found.value * np.std(losses) / math.sqrt(len(losses) - 1), rel=1e-5)
    assert (found.tokens, found.chunks, found.chunk) == (len(losses), length // chunk, chunk)
    assert [told[:2] for told in seen] == [(i + 1, found.chunks) for i in range(found.chunks)]
    assert seen[-1][2] == pytest.approx(found.value)


def test_of_a_text_it_is_that_of_its_tokens(model):
    text = "the same text, <|im_end|> and a marker that is text " * 4
    ids = model.tokenizer.encode_prompt(text, special=False)
    bos = model.tokenizer.bos if model.tokenizer.add_bos else None
    assert (
        perplexity(model, text, 40) == perplexity_of_tokens(model, ids, 40, bos) == perplexity(model, text.encode(), 40)
    )


def test_certain_and_impossible_tokens():
    rows = np.array([[0.0, 1000.0, -1000.0], [5.0, 5.0, 5.0]], np.float32)
    assert negative_log_probabilities(rows, np.array([1, 2])) == pytest.approx([0.0, math.log(3)])
    assert negative_log_probabilities(rows, np.array([2, 0])) == pytest.approx([2000.0, math.log(3)])


def test_what_cannot_be_measured(model):
    with pytest.raises(TooShort, match=r"63 tokens; two chunks of 32 need 64"):
        perplexity_of_tokens(model, [1] * 63, 32)
    for chunk in (3, 0, -1, model.context + 1, 2.5, "8"):
        with pytest.raises(InvalidOption, match="chunk"):
            perplexity_of_tokens(model, [1] * 100, chunk)
    with pytest.raises(TokenOutOfRange):
        perplexity_of_tokens(model, [10**6] * 100, 32)


def test_command(path, tmp_path, capsys, monkeypatch):
    file = tmp_path / "text"
    file.write_bytes("größer ".encode() * 40)
    assert main(["perplexity", str(file), path, "--chunk", "32"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("perplexity ") and out.endswith("chunks of 32)\n")
    assert main(["perplexity", str(file), path, "--chunk", "32", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"perplexity {told['value']:.4f} +/- {told['error']:.4f}" in out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert main(["perplexity", "-", path, "--chunk", "32"]) == 0
    assert capsys.readouterr().out == out
    file.write_bytes(b"a\xff")
    assert main(["perplexity", str(file), path]) == 2 and "not UTF-8, at byte 1" in capsys.readouterr().err
    assert main(["perplexity", str(tmp_path / "none"), path]) == 2
    file.write_bytes(b"short")
    assert main(["perplexity", str(file), path]) == 1 and "two chunks" in capsys.readouterr().err


# `llama-perplexity -m FILE -f LICENSE -c 512` of llama.cpp b11434, and its standard error.
LLAMA_CPP = 15.9289
LLAMA_CPP_ERROR = 1.42219


def test_a_real_model_agrees_with_llama_cpp():
    model = fucina.load(str(hub.find("smollm2")), context=512)
    found = perplexity(model, LICENSE.read_bytes())
    model.close()
    assert found.value == pytest.approx(LLAMA_CPP, rel=0.005)
    assert found.error == pytest.approx(LLAMA_CPP_ERROR, rel=0.05)
