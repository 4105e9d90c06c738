"""The gemma 3 family (text): llama's layers with three changes.

Norms after attention and feed-forward too, and on each head of queries and keys; GeGLU; and most layers see only a
window of positions and turn by their own RoPE base, while every sixth sees everything.  The converter has already
added 1 to every norm weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from ..cache.parts import Kv
from ..gguf.weights import Weight, WeightFinder
from ..ops.rope import RopeSpec
from ..ops.vocabulary import AttentionSpec, Ops, T
from . import family, llama
from .family import MAX_CONTEXT, MAX_LAYERS, Family, Weights, common_sizes, head_dim, read_rope, rope_base
from .keys import Keys
from .table import table, tensor

_LAYERS_27B = 62  # the one size whose queries are scaled by the model width


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family.

    windows : positions that each layer sees, 0 for all of them.
    """

    windows: tuple[int, ...]
    rope_local: RopeSpec
    scale: float

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        sizes = common_sizes(keys, find)
        rope = read_rope(keys, head_dim(keys), "half")
        window = keys.count("attention.sliding_window", 1, MAX_CONTEXT)
        by_width = sizes["n_layers"] == _LAYERS_27B
        return cls(
            **sizes,
            windows=tuple(window if local else 0 for local in _local(keys, sizes["n_layers"])),
            rope=rope,
            rope_local=RopeSpec(rope.dims, rope_base(keys, "rope.freq_base_swa"), rope.pairing),
            scale=1 / sqrt(sizes["dim"] / sizes["heads"] if by_width else sizes["head_dim"]),
        )


def _local(keys: Keys, n_layers: int) -> Sequence[bool]:
    """Which layers see only a window: a flag per layer, or a period whose last layer sees everything (0: none does)."""
    key = "attention.sliding_window_pattern"
    if (flags := keys.flags(key, n_layers)) is not None:
        return flags
    period = keys.count(key, 0, MAX_LAYERS, default=6)
    return [period == 0 or (i + 1) % period != 0 for i in range(n_layers)]


@table
class Layer(llama.Layer):
    """Weights of one layer: those of llama, and four norms."""

    q_norm: Weight = tensor("attn_q_norm", "head_dim")
    k_norm: Weight = tensor("attn_k_norm", "head_dim")
    attn_post_norm: Weight = tensor("post_attention_norm", "dim")
    ffn_post_norm: Weight = tensor("post_ffw_norm", "dim")


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    x = ops.embed(w.embedding, scale=sqrt(c.dim))  # [m, dim]
    for i, layer in enumerate(w.layers):
        spec = AttentionSpec(c.heads, c.scale, c.windows[i])
        rope = c.rope_local if spec.window else c.rope
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rms_norm(ops.linear(h, layer.q), layer.q_norm, c.eps, heads=c.heads)  # [m, heads * head_dim]
        k = ops.rms_norm(ops.linear(h, layer.k), layer.k_norm, c.eps, heads=c.kv_heads)
        v = ops.linear(h, layer.v)  # [m, kv_heads * head_dim]
        a = ops.attention(i, ops.rope(q, c.heads, rope), ops.rope(k, c.kv_heads, rope), v, spec)
        x = ops.add(x, ops.rms_norm(ops.linear(a, layer.attn_output), layer.attn_post_norm, c.eps))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.geglu(ops.linear(h, layer.gate), ops.linear(h, layer.up))  # [m, ffn_dim]
        x = ops.add(x, ops.rms_norm(ops.linear(f, layer.down), layer.ffn_post_norm, c.eps))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


FAMILY = Family(
    "gemma3",
    Config,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim, window) for window in c.windows],
)
