"""A toy whose first and third layer keep a matrix per head (gated delta rule) and whose second attends."""

from __future__ import annotations

from math import sqrt

import numpy as np

from fucina.cache import Kv, Recurrent
from fucina.gguf.weights import Weight
from fucina.models import Family
from fucina.models.family import Config
from fucina.models.table import table, tensor
from fucina.ops.vocabulary import AttentionSpec
from tests.toys import plain

KEYS = {
    "block_count": 3,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}


@table
class Mlp:
    """The feed-forward of every layer."""

    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


@table
class Delta(Mlp):
    """A layer with a matrix per head."""

    norm: Weight = tensor("attn_norm", "dim")
    qkv: Weight = tensor("attn_qkv", "qkv_dim", "dim")
    unit: Weight = tensor("ssm_unit", "head_dim")
    alpha: Weight = tensor("ssm_alpha", "heads", "dim")
    rate: Weight = tensor("ssm_rate", "heads", "heads")
    beta: Weight = tensor("ssm_beta", "heads", "dim")
    gate_out: Weight = tensor("attn_gate", "q_dim", "dim")
    out: Weight = tensor("attn_output", "dim", "q_dim")


@table
class Attention(Mlp):
    """A layer that looks back."""

    norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")
    out: Weight = tensor("attn_output", "dim", "q_dim")


class Sizes(Config):
    """The sizes of every family, and one more."""

    @property
    def qkv_dim(self) -> int:
        return 3 * self.q_dim


def forward(ops, c, w):
    x = ops.embed(w.embedding)
    look = AttentionSpec(c.heads, 1 / sqrt(c.head_dim))
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.norm, c.eps)
        if isinstance(layer, Delta):
            q, k, v = ops.split(ops.linear(h, layer.qkv), c.q_dim, c.q_dim, c.q_dim)
            q, k = (ops.rms_norm(t, layer.unit, c.eps, heads=c.heads) for t in (q, k))  # of length 1
            decay = ops.linear(ops.sigmoid(ops.linear(h, layer.alpha)), layer.rate)
            beta = ops.sigmoid(ops.linear(h, layer.beta))
            a = ops.delta_rule(i, q, k, v, decay, beta, c.heads)
            a = ops.mul(a, ops.sigmoid(ops.linear(h, layer.gate_out)))
        else:
            q = ops.rope(ops.linear(h, layer.q), c.heads, c.rope)
            k = ops.rope(ops.linear(h, layer.k), c.kv_heads, c.rope)
            a = ops.attention(i, q, k, ops.linear(h, layer.v), look)
        x = ops.add(x, ops.linear(a, layer.out))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        x = ops.add(x, ops.linear(ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)
    return ops.linear(x, w.output)


FAMILY = Family(
    "toy-recurrent",
    Sizes,
    forward,
    layers=lambda c: [Delta, Attention, Delta],
    parts=lambda c: [
        Recurrent((c.heads, c.head_dim, c.head_dim)),
        Kv(c.kv_heads, c.head_dim, c.head_dim),
        Recurrent((c.heads, c.head_dim, c.head_dim)),
    ],
)


def initial(name: str, values: np.ndarray) -> np.ndarray:
    """Weights that must not be just random."""
    if name.endswith("ssm_unit.weight"):
        return np.full(values.shape, values.shape[0] ** -0.5)
    if name.endswith("ssm_rate.weight"):  # decays of 0 to -0.1, …, -1.5
        return -np.diag(np.geomspace(0.1, 1.5, len(values)))
    return values


def oracle(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits of every position: the recurrence as a loop over time, attention over the whole text."""
    x = w["token_embd"][tokens]
    for i in range(3):
        p = {n.split(".", 2)[2]: t for n, t in w.items() if n.startswith(f"blk.{i}.")}
        h = plain.norm(x, p["attn_norm"], 1e-5)
        if "ssm_rate" in p:
            q, k, v = np.split((h @ p["attn_qkv"].T).reshape(len(x), 12, 16), 3, axis=1)
            q, k = (t / np.sqrt((t * t).sum(-1, keepdims=True) + 16e-5) for t in (q, k))
            decay = np.exp(plain.sigmoid(h @ p["ssm_alpha"].T) * np.diag(p["ssm_rate"]))
            beta = plain.sigmoid(h @ p["ssm_beta"].T)
            a = np.zeros((len(x), 4, 16))
            for head in range(4):
                s = np.zeros((16, 16))
                for t in range(len(x)):
                    s *= decay[t, head]
                    s += np.outer(k[t, head], beta[t, head] * (v[t, head] - k[t, head] @ s))
                    a[t, head] = q[t, head] @ s
            a = a.reshape(len(x), 64) * plain.sigmoid(h @ p["attn_gate"].T)
        else:
            a = plain.attention(h, p["attn_q"], p["attn_k"], p["attn_v"], heads=4, kv_heads=2)
        x = x + a @ p["attn_output"].T
        x = x + plain.swiglu(plain.norm(x, p["ffn_norm"], 1e-5), p["ffn_gate"], p["ffn_up"], p["ffn_down"])
    return plain.norm(x, w["output_norm"], 1e-5) @ w["output"].T
