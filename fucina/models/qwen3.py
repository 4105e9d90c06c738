"""The qwen 3 family (dense): llama's layers with a norm on each head of queries and keys, before RoPE.

A head's width is not the model's width divided by the heads.  Files are not permuted: RoPE turns the halves of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from ..cache.parts import Kv
from ..gguf.weights import Weight, WeightFinder
from ..ops.rope import RopeSpec
from ..ops.vocabulary import AttentionSpec, Ops, T
from . import family
from .family import Family, Weights, common_sizes, head_dim, read_rope
from .keys import Keys
from .table import table, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family."""

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        return cls(**common_sizes(keys, find), rope=whole_rope(keys))


def whole_rope(keys: Keys) -> RopeSpec:
    """RoPE of all numbers of a head."""
    width = head_dim(keys)
    keys.count("rope.dimension_count", width, width, default=width)
    return read_rope(keys, width, "half", yarn=True)


@table
class Attention:
    """Weights of the attention of one layer."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")
    q_norm: Weight = tensor("attn_q_norm", "head_dim")
    k_norm: Weight = tensor("attn_k_norm", "head_dim")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")


@table
class Layer(Attention):
    """Weights of one layer."""

    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


def attention(ops: Ops[T], c: Any, i: int, layer: Any, x: T) -> T:
    """What attention of layer i adds to x: [m, dim] -> [m, dim]."""
    h = ops.rms_norm(x, layer.attn_norm, c.eps)
    q = ops.rms_norm(ops.linear(h, layer.q), layer.q_norm, c.eps, heads=c.heads)  # [m, heads * head_dim]
    k = ops.rms_norm(ops.linear(h, layer.k), layer.k_norm, c.eps, heads=c.kv_heads)  # [m, kv_heads * head_dim]
    v = ops.linear(h, layer.v)  # [m, kv_heads * head_dim]
    look = AttentionSpec(c.heads, scale=1 / sqrt(c.head_dim))
    a = ops.attention(i, ops.rope(q, c.heads, c.rope), ops.rope(k, c.kv_heads, c.rope), v, look)
    return ops.linear(a, layer.attn_output)


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    x = ops.embed(w.embedding)  # [m, dim]
    for i, layer in enumerate(w.layers):
        x = ops.add(x, attention(ops, c, i, layer, x))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up))  # [m, ffn_dim]
        x = ops.add(x, ops.linear(f, layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


FAMILY = Family(
    "qwen3",
    Config,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim)] * c.n_layers,
)
