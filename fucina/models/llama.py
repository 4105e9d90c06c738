"""The llama family: SmolLM2, Llama 2 and 3, TinyLlama, Mistral and many others.

Pre-norm layers of grouped-query attention with RoPE and a SwiGLU feed-forward.  GGUF files of this family have the rows
of q and k permuted, so that RoPE turns neighbouring numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ..cache.parts import Kv
from ..gguf.weights import Weight, WeightFinder
from ..ops.vocabulary import AttentionSpec, Ops, T
from . import family
from .family import Family, Weights, common_sizes, head_dim, read_rope, with_factors
from .keys import Keys
from .table import table, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family."""

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        rope = with_factors(read_rope(keys, head_dim(keys), "interleaved", yarn=True), find)
        return cls(**common_sizes(keys, find), rope=rope)


@table
class Layer:
    """Weights of one layer; a matrix is [outputs, inputs]."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    spec = AttentionSpec(c.heads, scale=1 / sqrt(c.head_dim))
    x = ops.embed(w.embedding)  # [m, dim]
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rope(ops.linear(h, layer.q), c.heads, c.rope)  # [m, heads * head_dim]
        k = ops.rope(ops.linear(h, layer.k), c.kv_heads, c.rope)  # [m, kv_heads * head_dim]
        v = ops.linear(h, layer.v)  # [m, kv_heads * head_dim]
        a = ops.attention(i, q, k, v, spec)  # [m, heads * head_dim]
        x = ops.add(x, ops.linear(a, layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up))  # [m, ffn_dim]
        x = ops.add(x, ops.linear(f, layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


FAMILY = Family(
    "llama",
    Config,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim)] * c.n_layers,
)
