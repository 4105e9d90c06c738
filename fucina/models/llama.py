"""The llama family: SmolLM2, Llama 2 and 3, TinyLlama, Mistral and many others.

Pre-norm layers of grouped-query attention with RoPE and a SwiGLU feed-forward; the output matrix may be tied to the
embedding.  GGUF files of this family have the rows of q and k permuted, so that RoPE turns neighbouring numbers.
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
    rope: RopeSpec

    @classmethod
    def from_file(cls, file: GgufFile, find: WeightFinder) -> Config:
        """Read the sizes from a file's metadata."""
        meta, arch = file.metadata, "llama"
        dim, heads, kv_heads, head_dim = attention_sizes(meta, arch)
        dims = meta.int(f"{arch}.rope.dimension_count", default=head_dim)
        factors = None
        if find.has("rope_freqs.weight"):  # llama 3 stretches its slow frequencies
            factors = tuple(float(f) for f in find("rope_freqs.weight", dims // 2).float32())
        return cls(
            n_layers=meta.int(f"{arch}.block_count"),
            dim=dim,
            ffn_dim=meta.int(f"{arch}.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size(file),
            context_length=meta.int(f"{arch}.context_length"),
            eps=meta.float(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope=RopeSpec(
                dims,
                meta.float(f"{arch}.rope.freq_base", default=10000.0),
                "interleaved",
                factors,
                rope_scale(meta, arch),
            ),
        )

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
    attn_output: Weight
    ffn_norm: Weight
    gate: Weight
    up: Weight
    down: Weight


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
                attn_output=find(f"{p}.attn_output.weight", c.dim, q_dim),
                ffn_norm=find(f"{p}.ffn_norm.weight", c.dim),
                gate=find(f"{p}.ffn_gate.weight", c.ffn_dim, c.dim),
                up=find(f"{p}.ffn_up.weight", c.ffn_dim, c.dim),
                down=find(f"{p}.ffn_down.weight", c.dim, c.ffn_dim),
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
    x = ops.embed(w.embedding)  # [m, dim]
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        q = ops.rope(ops.linear(h, layer.q), c.heads, c.rope)  # [m, heads * head_dim]
        k = ops.rope(ops.linear(h, layer.k), c.kv_heads, c.rope)  # [m, kv_heads * head_dim]
        v = ops.linear(h, layer.v)  # [m, kv_heads * head_dim]
        ops.kv_append(i, k, v)
        a = ops.attention(i, q, c.heads, 1 / sqrt(c.head_dim))  # [m, heads * head_dim]
        x = ops.add(x, ops.linear(a, layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up))  # [m, ffn_dim]
        x = ops.add(x, ops.linear(f, layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]
