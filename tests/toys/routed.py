"""A toy whose feed-forward is a choice of two of eight experts."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from fucina.cache import Kv
from fucina.gguf.weights import Weight, WeightFinder
from fucina.models import Family, family
from fucina.models.family import common_sizes, head_dim, read_rope
from fucina.models.keys import Keys
from fucina.models.table import table, tensor
from fucina.ops.vocabulary import AttentionSpec, RouterSpec
from tests.toys import plain

KEYS = {
    "block_count": 2,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 32,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
    "expert_count": 8,
    "expert_used_count": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(family.Config):
    """experts : of each layer.  used : by each row."""

    experts: int
    used: int

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Sizes:
        experts = keys.count("expert_count", 1, 1024)
        return cls(
            **common_sizes(keys, find),
            rope=read_rope(keys, head_dim(keys), "half"),
            experts=experts,
            used=keys.count("expert_used_count", 1, experts),
        )


@table
class Layer:
    """Weights of one layer."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")
    router: Weight = tensor("ffn_gate_inp", "experts", "dim")
    gate: Weight = tensor("ffn_gate_exps", "experts", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up_exps", "experts", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down_exps", "experts", "dim", "ffn_dim")


def forward(ops, c, w):
    look = AttentionSpec(c.heads, 1 / sqrt(c.head_dim))
    x = ops.embed(w.embedding)
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rope(ops.linear(h, layer.q), c.heads, c.rope)
        k = ops.rope(ops.linear(h, layer.k), c.kv_heads, c.rope)
        x = ops.add(x, ops.linear(ops.attention(i, q, k, ops.linear(h, layer.v), look), layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        experts, weights = ops.route(h, layer.router, RouterSpec(c.used))
        x = ops.add(x, ops.moe_ffn(h, experts, weights, layer.gate, layer.up, layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)
    return ops.linear(x, w.output)


FAMILY = Family(
    "toy-routed",
    Sizes,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim)] * c.n_layers,
)


def oracle(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits of every position: all experts computed for all rows, the two that count weighted."""
    x = w["token_embd"][tokens]
    for i in range(2):
        p = {n.split(".", 2)[2]: t for n, t in w.items() if n.startswith(f"blk.{i}.")}
        h = plain.norm(x, p["attn_norm"], 1e-5)
        x = x + plain.attention(h, p["attn_q"], p["attn_k"], p["attn_v"], 4, 1) @ p["attn_output"].T
        h = plain.norm(x, p["ffn_norm"], 1e-5)
        scores = np.exp(h @ p["ffn_gate_inp"].T)
        scores[scores < np.sort(scores, axis=1)[:, -2:-1]] = 0
        scores /= scores.sum(1, keepdims=True)
        each = [plain.swiglu(h, *(p[f"ffn_{n}_exps"][e] for n in ("gate", "up", "down"))) for e in range(8)]
        x = x + np.einsum("te,etd->td", scores, np.stack(each))
    return plain.norm(x, w["output_norm"], 1e-5) @ w["output"].T
