"""A toy with windows: two layers see 20 positions, one sees 33, one sees all; and two layers share keys and values.

A ring of the window and one pass has 192 rows, so that it wraps in a text of some hundred tokens.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from fucina.cache import Kv
from fucina.gguf.weights import Weight
from fucina.models import Family
from fucina.models.family import Config
from fucina.models.table import table, tensor
from fucina.ops.vocabulary import AttentionSpec
from tests.toys import plain

KEYS = {
    "block_count": 4,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}
WINDOWS = (20, 0, 33, 20)
SLOTS = (0, 1, 2, 0)  # the last layer looks at what the first one stored


@table
class Reader:
    """Weights of a layer that stores nothing."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


@table
class Layer(Reader):
    """Weights of a layer with keys and values."""

    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")


def forward(ops, c, w):
    x = ops.embed(w.embedding)
    for layer, slot, window in zip(w.layers, SLOTS, WINDOWS, strict=True):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rope(ops.linear(h, layer.q), c.heads, c.rope)
        k = v = None
        if isinstance(layer, Layer):
            k, v = ops.rope(ops.linear(h, layer.k), c.kv_heads, c.rope), ops.linear(h, layer.v)
        a = ops.attention(slot, q, k, v, AttentionSpec(c.heads, 1 / sqrt(c.head_dim), window))
        x = ops.add(x, ops.linear(a, layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        x = ops.add(x, ops.linear(ops.geglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)
    return ops.linear(x, w.output)


FAMILY = Family(
    "toy-ring",
    Config,
    forward,
    layers=lambda c: [Layer, Layer, Layer, Reader],
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim, window) for window in WINDOWS[:3]],
)


def oracle(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits of every position, windows as masks."""
    x, stored = w["token_embd"][tokens], {}
    for i, (slot, window) in enumerate(zip(SLOTS, WINDOWS, strict=True)):
        p = {n.split(".", 2)[2]: t for n, t in w.items() if n.startswith(f"blk.{i}.")}
        h = plain.norm(x, p["attn_norm"], 1e-5)
        if "attn_k" in p:
            k, v = ((h @ p[n].T).reshape(len(x), 2, 16) for n in ("attn_k", "attn_v"))
            stored[slot] = np.repeat(plain.rope(k), 2, axis=1), np.repeat(v, 2, axis=1)
        q = plain.rope((h @ p["attn_q"].T).reshape(len(x), 4, 16))
        a = plain.look(q, *stored[slot], 16**-0.5, window).reshape(len(x), -1)
        x = x + a @ p["attn_output"].T
        h = plain.norm(x, p["ffn_norm"], 1e-5)
        g = h @ p["ffn_gate"].T
        gelu = 0.5 * g * (1 + np.tanh((2 / np.pi) ** 0.5 * (g + 0.044715 * g**3)))
        x = x + (gelu * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
    return plain.norm(x, w["output_norm"], 1e-5) @ w["output"].T
