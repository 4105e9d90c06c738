"""The gemma 3 family (text).

Norms before and after attention and feed-forward, norms on queries and keys, GeGLU, a tied output matrix.  Five of six
layers see only a window of positions and turn by their own RoPE base; the sixth sees everything.  The converter has
already added 1 to every norm weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from ..cache import LayerGeometry
from ..gguf import GgufFile
from ..ops.rope import RopeSpec
from .base import attention_sizes, layer_names, rope_scale, vocab_size
from .weights import Weight, WeightFinder

_PATTERN = 6  # every sixth layer is global
_LAYERS_27B = 62  # the one size whose queries are scaled by the model width


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a model of this family."""

    n_layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    eps: float
    window: int
    rope: RopeSpec
    rope_local: RopeSpec
    scale: float

    @classmethod
    def from_file(cls, file: GgufFile, find: WeightFinder) -> Config:
        """Read the sizes from a file's metadata."""
        meta, arch = file.metadata, "gemma3"
        dim, heads, kv_heads, head_dim = attention_sizes(meta, arch)
        n_layers = meta.int(f"{arch}.block_count")
        base = meta.float(f"{arch}.rope.freq_base", default=1_000_000.0)
        local = meta.float(f"{arch}.rope.freq_base_swa", default=10_000.0)
        return cls(
            n_layers=n_layers,
            dim=dim,
            ffn_dim=meta.int(f"{arch}.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size(file),
            context_length=meta.int(f"{arch}.context_length"),
            eps=meta.float(f"{arch}.attention.layer_norm_rms_epsilon"),
            window=meta.int(f"{arch}.attention.sliding_window"),
            rope=RopeSpec(head_dim, base, "half", None, rope_scale(meta, arch)),
            rope_local=RopeSpec(head_dim, local, "half"),
            scale=1 / sqrt(dim / heads if n_layers == _LAYERS_27B else head_dim),
        )

    def is_local(self, layer: int) -> bool:
        """Whether a layer sees only the window."""
        return (layer + 1) % _PATTERN != 0

    def cache_geometry(self) -> tuple[LayerGeometry, ...]:
        """Shape of each layer's cache rows."""
        return (LayerGeometry(self.kv_heads, self.head_dim, self.head_dim),) * self.n_layers


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; a matrix is [outputs, inputs]."""

    attn_norm: Weight
    q: Weight
    k: Weight
    v: Weight
    q_norm: Weight
    k_norm: Weight
    attn_output: Weight
    attn_post_norm: Weight
    ffn_norm: Weight
    gate: Weight
    up: Weight
    down: Weight
    ffn_post_norm: Weight


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the whole model."""

    embedding: Weight
    layers: tuple[Layer, ...]
    output_norm: Weight
    output: Weight

    @classmethod
    def from_file(cls, find: WeightFinder, c: Config) -> Weights:
        """Find every tensor and check its shape."""
        q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
        embedding = find("token_embd.weight", c.vocab_size, c.dim)
        layers = tuple(
            Layer(
                attn_norm=find(f"{p}.attn_norm.weight", c.dim),
                q=find(f"{p}.attn_q.weight", q_dim, c.dim),
                k=find(f"{p}.attn_k.weight", kv_dim, c.dim),
                v=find(f"{p}.attn_v.weight", kv_dim, c.dim),
                q_norm=find(f"{p}.attn_q_norm.weight", c.head_dim),
                k_norm=find(f"{p}.attn_k_norm.weight", c.head_dim),
                attn_output=find(f"{p}.attn_output.weight", c.dim, q_dim),
                attn_post_norm=find(f"{p}.post_attention_norm.weight", c.dim),
                ffn_norm=find(f"{p}.ffn_norm.weight", c.dim),
                gate=find(f"{p}.ffn_gate.weight", c.ffn_dim, c.dim),
                up=find(f"{p}.ffn_up.weight", c.ffn_dim, c.dim),
                down=find(f"{p}.ffn_down.weight", c.dim, c.ffn_dim),
                ffn_post_norm=find(f"{p}.post_ffw_norm.weight", c.dim),
            )
            for p in layer_names(c.n_layers)
        )
        tied = not find.has("output.weight")
        return cls(
            embedding=embedding,
            layers=layers,
            output_norm=find("output_norm.weight", c.dim),
            output=embedding if tied else find("output.weight", c.vocab_size, c.dim),
        )


def forward(ops: Any, c: Config, w: Weights) -> Any:
    """One pass over m rows.  `ops` is any interpreter of the op vocabulary; returns logits [rows asked for, vocab]."""
    x = ops.embed(w.embedding, scale=sqrt(c.dim))  # [m, dim]
    for i, layer in enumerate(w.layers):
        rope, window = (c.rope_local, c.window) if c.is_local(i) else (c.rope, 0)
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rms_norm(ops.linear(h, layer.q), layer.q_norm, c.eps, heads=c.heads)  # [m, heads * head_dim]
        k = ops.rms_norm(ops.linear(h, layer.k), layer.k_norm, c.eps, heads=c.kv_heads)
        v = ops.linear(h, layer.v)  # [m, kv_heads * head_dim]
        q, k = ops.rope(q, c.heads, rope), ops.rope(k, c.kv_heads, rope)
        ops.kv_append(i, k, v)
        a = ops.attention(i, q, c.heads, c.scale, window)  # [m, heads * head_dim]
        x = ops.add(x, ops.rms_norm(ops.linear(a, layer.attn_output), layer.attn_post_norm, c.eps))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.geglu(ops.linear(h, layer.gate), ops.linear(h, layer.up))  # [m, ffn_dim]
        x = ops.add(x, ops.rms_norm(ops.linear(f, layer.down), layer.ffn_post_norm, c.eps))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]
