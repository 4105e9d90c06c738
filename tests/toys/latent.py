"""A toy with latent attention (as DeepSeek-V2): one small row per position serves all heads.

The matrices that would expand it into keys and values are applied to the queries and to the results instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from fucina.cache import Latent
from fucina.gguf.weights import Weight, WeightFinder
from fucina.models import Family
from fucina.models.family import Config, common_sizes, read_rope
from fucina.models.keys import Keys
from fucina.models.table import table, tensor
from fucina.ops.vocabulary import AttentionSpec
from tests.toys import plain

KEYS = {
    "block_count": 2,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.key_length": 48,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.kv_lora_rank": 32,
    "attention.value_length": 48,
    "rope.dimension_count": 16,
    "rope.freq_base": 10_000.0,
}
V_DIM = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Config):
    """latent : numbers of the latent.  Heads have `plain` numbers that are not turned and rope.dims that are."""

    latent: int

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Sizes:
        rank = keys.count("attention.kv_lora_rank", 1, 4096)
        rope = read_rope(keys, keys.count("attention.key_length", 2, 4096), "half")
        return cls(**common_sizes(keys, find), rope=rope, latent=rank)

    @property
    def plain(self) -> int:
        return self.head_dim - self.rope.dims

    @property
    def row(self) -> int:
        return self.latent + self.rope.dims

    @property
    def v_dim(self) -> int:
        return V_DIM

    @property
    def out_dim(self) -> int:
        return self.heads * V_DIM


@table
class Layer:
    """Weights of one layer."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    kv: Weight = tensor("attn_kv_a_mqa", "row", "dim")
    kv_norm: Weight = tensor("attn_kv_a_norm", "latent")
    k_b: Weight = tensor("attn_k_b", "heads", "latent", "plain")
    v_b: Weight = tensor("attn_v_b", "heads", "v_dim", "latent")
    attn_output: Weight = tensor("attn_output", "dim", "out_dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


def forward(ops, c, w):
    look = AttentionSpec(c.heads, 1 / sqrt(c.head_dim))
    x = ops.embed(w.embedding)
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        still, turning = ops.split(ops.linear(h, layer.q), c.plain, c.rope.dims, heads=c.heads)
        q = ops.concat(ops.linear_heads(still, layer.k_b, c.heads), ops.rope(turning, c.heads, c.rope), heads=c.heads)
        latent, turning = ops.split(ops.linear(h, layer.kv), c.latent, c.rope.dims)
        k = ops.concat(ops.rms_norm(latent, layer.kv_norm, c.eps), ops.rope(turning, 1, c.rope))
        a = ops.attention(i, q, k, None, look)  # [m, heads * latent]
        x = ops.add(x, ops.linear(ops.linear_heads(a, layer.v_b, c.heads), layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        x = ops.add(x, ops.linear(ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)
    return ops.linear(x, w.output)


FAMILY = Family(
    "toy-latent",
    Sizes,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Latent(c.row, c.latent)] * c.n_layers,
)


def oracle(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits of every position: keys and values of every head expanded from the latents."""
    x = w["token_embd"][tokens]
    for i in range(2):
        p = {n.split(".", 2)[2]: t for n, t in w.items() if n.startswith(f"blk.{i}.")}
        h = plain.norm(x, p["attn_norm"], 1e-5)
        q = (h @ p["attn_q"].T).reshape(len(x), 4, 48)
        kv = h @ p["attn_kv_a_mqa"].T
        latent = plain.norm(kv[:, :32], p["attn_kv_a_norm"], 1e-5)
        k = np.einsum("tl,hlp->thp", latent, p["attn_k_b"])  # [time, heads, 32]
        v = np.einsum("tl,hvl->thv", latent, p["attn_v_b"])  # [time, heads, 24]
        turned = np.repeat(plain.rope(kv[:, None, 32:]), 4, axis=1)
        q = np.concatenate([q[..., :32], plain.rope(q[..., 32:])], -1)
        a = plain.look(q, np.concatenate([k, turned], -1), v, 48**-0.5).reshape(len(x), -1)
        x = x + a @ p["attn_output"].T
        x = x + plain.swiglu(plain.norm(x, p["ffn_norm"], 1e-5), p["ffn_gate"], p["ffn_up"], p["ffn_down"])
    return plain.norm(x, w["output_norm"], 1e-5) @ w["output"].T
