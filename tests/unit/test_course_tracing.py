"""A watched pass is the pass itself, op by op."""

from __future__ import annotations

import numpy as np
import pytest

import fucina
from course.tracing import trace
from tests.models import TINY

MODELS = ["llama.gguf", "llama3rope.gguf", "gemma3.gguf", "qwen3.gguf"]  # of the kind that the course draws


@pytest.mark.parametrize("name", MODELS)
def test_a_watched_pass_gives_the_logits_of_the_pass(name: str) -> None:
    tokens = [5, 3, 8, 1]
    with_notes = trace(fucina.load(TINY / name, threads=1), tokens)
    plain = fucina.load(TINY / name, backend="naive", context=64)
    np.testing.assert_array_equal(with_notes[-1].out, plain.forward(tokens, plain.new_cache(64)))
    assert with_notes[0].op == "embed" and len(with_notes[0].out) == len(tokens)
    assert with_notes[0].weight == "token_embd.weight"
    layers = plain.config.n_layers
    assert sum(step.op == "attention" for step in with_notes) == layers
    assert all(len(step.out) == len(tokens) for step in with_notes)
    assert {step.weight for step in with_notes} > {f"blk.{i}.attn_q.weight" for i in range(layers)}
