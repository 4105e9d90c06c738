"""The gemma 4 family (text): gemma 3's layers, no two kinds of them alike.

Most layers see only a window of positions.  Local and global layers have heads of different width and number.  Values
are normed too, and a global layer may use its keys, not yet normed, as values.  The last layers may store nothing: they
look at what the last storing layer of their kind has.  A layer may have experts beside its feed-forward, and a small
embedding of the token of its own ("per-layer embedding").  Scores are not scaled, and the logits are capped.  Norm
weights are used as they are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from ..cache.parts import Kv
from ..errors import ModelError
from ..gguf.weights import Weight, WeightFinder
from ..ops.rope import RopeSpec
from ..ops.vocabulary import AttentionSpec, Ops, RouterSpec, T
from . import family
from .family import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    Family,
    head_dim,
    model_sizes,
    read_rope,
    rope_base,
    with_factors,
)
from .keys import WIDTH, Keys
from .table import table, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one layer.

    window : positions that it sees, 0 for all of them.  slot : of the state, whose keys and values it looks at.
    stores : whether it has keys, and stores them.  values : whether it has a matrix for values; else the keys are taken.
    scaled : whether its result is scaled.  experts : of it, 0 for none.  per_layer : width of its own embedding, or 0.
    """

    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    rope: RopeSpec
    slot: int
    stores: bool
    values: bool
    scaled: bool
    experts: int
    expert_dim: int
    fused: bool
    per_layer: int

    @property
    def apart(self) -> bool:
        """Whether the gates of experts and what they gate are two tensors."""
        return bool(self.experts) and not self.fused

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    @property
    def both_dim(self) -> int:
        """Width of an expert's gate and what it gates."""
        return 2 * self.expert_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family; ffn_dim, kv_heads, head_dim and rope are those of the last global layer.

    layers : sizes of each layer.  per_layer : width of each layer's own embedding, or 0.
    experts_used : by each row.  cap : no logit is above it; 0: they are not capped.
    """

    layers: tuple[Sizes, ...]
    per_layer: int
    experts_used: int
    cap: float

    @property
    def per_layer_dim(self) -> int:
        """Width of the own embeddings of all layers."""
        return self.per_layer * self.n_layers

    def layer(self, i: int) -> Sizes:
        """Sizes of layer i."""
        return self.layers[i]

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        sizes = model_sizes(keys, find)
        per_layer = keys.count("embedding_length_per_layer_input", 0, WIDTH, default=0)
        experts = keys.count("expert_count", 0, MAX_EXPERTS, default=0)
        layers = _layers(keys, find, sizes, per_layer, experts)
        largest = next((s for s in reversed(layers) if not s.window), layers[-1])
        own = {name: getattr(largest, name) for name in ("ffn_dim", "heads", "kv_heads", "head_dim", "rope")}
        return cls(
            **sizes,
            **own,
            layers=tuple(layers),
            per_layer=per_layer,
            experts_used=keys.count("expert_used_count", 1, experts) if experts else 0,
            cap=keys.number("final_logit_softcapping", 0.0, 1e6, default=0.0),
        )


def _layers(keys: Keys, find: WeightFinder, sizes: dict[str, Any], per_layer: int, experts: int) -> list[Sizes]:
    """The sizes of every layer."""
    n = sizes["n_layers"]
    local = keys.flags("attention.sliding_window_pattern", n)  # which layers see only a window
    if local is None:
        raise ModelError(f"{keys.architecture}.attention.sliding_window_pattern must hold a boolean per layer")
    wide, narrow = head_dim(keys), keys.count("attention.key_length_swa", 2, WIDTH)
    for key, width in (("attention.value_length", wide), ("attention.value_length_swa", narrow)):
        keys.count(key, width, width, default=width)
    rope, rope_local = _ropes(keys, find, wide, narrow)
    heads = keys.count("attention.head_count", 1, WIDTH)
    kv_heads = keys.counts("attention.head_count_kv", n, 1, heads, default=heads)
    ffn_dims = keys.counts("feed_forward_length", n, 1, WIDTH)
    expert_dim = keys.count("expert_feed_forward_length", 1, WIDTH) if experts else 0
    window = keys.count("attention.sliding_window", 1, MAX_CONTEXT)
    storing = n - keys.count("attention.shared_kv_layers", 0, n - 1, default=0)
    slots = {local[i]: i for i in range(storing)}  # the last layer of each kind that stores
    layers = []
    for i in range(n):
        has = lambda name, i=i: find.has(f"blk.{i}.{name}")
        slot = i if i < storing else slots.get(local[i], -1)
        if slot < 0 or heads % kv_heads[i] or kv_heads[slot] != kv_heads[i]:
            raise ModelError(
                f"{keys.architecture}: {heads} query heads of layer {i} cannot share {kv_heads[i]} key heads, "
                f"or no earlier layer of its kind stores as many"
            )
        if i >= storing:
            for name in ("attn_k.", "attn_v.", "attn_k_norm."):
                find.skip(f"blk.{i}.{name}")
        routed = bool(experts) and has("ffn_gate_inp.weight")
        layers.append(
            Sizes(
                dim=sizes["dim"],
                ffn_dim=ffn_dims[i],
                heads=heads,
                kv_heads=kv_heads[i],
                head_dim=narrow if local[i] else wide,
                window=window if local[i] else 0,
                rope=rope_local if local[i] else rope,
                slot=slot,
                stores=i < storing,
                values=i < storing and has("attn_v.weight"),
                scaled=has("layer_output_scale.weight"),
                experts=experts if routed else 0,
                expert_dim=expert_dim,
                fused=routed and has("ffn_gate_up_exps.weight"),
                per_layer=per_layer,
            )
        )
    return layers


def _ropes(keys: Keys, find: WeightFinder, wide: int, narrow: int) -> tuple[RopeSpec, RopeSpec]:
    """RoPE of global layers, whose frequencies the file divides by factors; and of local ones."""
    rope = read_rope(keys, wide, "half")
    if rope.freq_scale != 1.0:
        raise ModelError(f"{keys.architecture}.rope.scaling.factor is {1 / rope.freq_scale}; implemented: 1")
    dims = keys.count("rope.dimension_count_swa", 2, narrow, default=narrow)
    if dims % 2:
        raise ModelError(f"{keys.architecture}.rope.dimension_count_swa is {dims}, expected an even count")
    return with_factors(rope, find), RopeSpec(dims, rope_base(keys, "rope.freq_base_swa"), rope.pairing)


@table
class Layer:
    """Weights of one layer; those that it does not have are None (see `Sizes`)."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    q: Weight = tensor("attn_q", "q_dim", "dim")
    q_norm: Weight = tensor("attn_q_norm", "head_dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim", when="stores")
    k_norm: Weight = tensor("attn_k_norm", "head_dim", when="stores")
    v: Weight = tensor("attn_v", "kv_dim", "dim", when="values")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")
    attn_post_norm: Weight = tensor("post_attention_norm", "dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")
    ffn_post_norm: Weight = tensor("post_ffw_norm", "dim")

    router: Weight = tensor("ffn_gate_inp", "experts", "dim", when="experts")
    router_scale: Weight = tensor("ffn_gate_inp", "dim", suffix=".scale", when="experts")
    experts_norm: Weight = tensor("pre_ffw_norm_2", "dim", when="experts")
    gate_up_exps: Weight = tensor("ffn_gate_up_exps", "experts", "both_dim", "dim", when="fused")
    gate_exps: Weight = tensor("ffn_gate_exps", "experts", "expert_dim", "dim", when="apart")
    up_exps: Weight = tensor("ffn_up_exps", "experts", "expert_dim", "dim", when="apart")
    down_exps: Weight = tensor("ffn_down_exps", "experts", "dim", "expert_dim", when="experts")
    down_scale: Weight = tensor("ffn_down_exps", "experts", suffix=".scale", when="experts")
    dense_post_norm: Weight = tensor("post_ffw_norm_1", "dim", when="experts")
    experts_post_norm: Weight = tensor("post_ffw_norm_2", "dim", when="experts")

    own_gate: Weight = tensor("inp_gate", "per_layer", "dim", when="per_layer")
    own_proj: Weight = tensor("proj", "dim", "per_layer", when="per_layer")
    own_norm: Weight = tensor("post_norm", "dim", when="per_layer")
    output_scale: Weight = tensor("layer_output_scale", 1, when="scaled")


@table
class Weights(family.Weights):
    """Tensors outside of the layers."""

    own_embedding: Weight = tensor("per_layer_token_embd", "vocab_size", "per_layer_dim", when="per_layer")
    own_proj: Weight = tensor("per_layer_model_proj", "per_layer_dim", "dim", when="per_layer")
    own_norm: Weight = tensor("per_layer_proj_norm", "per_layer", when="per_layer")


def own_embeddings(ops: Ops[T], c: Config, w: Weights, x: T) -> tuple[T, ...]:
    """Per layer, the token's own embedding and a projection of its embedding x: [m, per_layer] each."""
    p = ops.rms_norm(ops.scale(ops.linear(x, w.own_proj), 1 / sqrt(c.dim)), w.own_norm, c.eps, heads=c.n_layers)
    both = ops.add(p, ops.embed(w.own_embedding, scale=sqrt(c.per_layer)))  # [m, n_layers * per_layer]
    return ops.split(ops.scale(both, 1 / sqrt(2)), *[c.per_layer] * c.n_layers)


def attention(ops: Ops[T], c: Config, s: Sizes, layer: Layer, h: T) -> T:
    """[m, dim] -> [m, dim]"""
    q = ops.rms_norm(ops.linear(h, layer.q), layer.q_norm, c.eps, heads=s.heads)  # [m, heads * head_dim]
    k = v = None
    if s.stores:
        keys = ops.linear(h, layer.k)  # [m, kv_heads * head_dim]
        k = ops.rope(ops.rms_norm(keys, layer.k_norm, c.eps, heads=s.kv_heads), s.kv_heads, s.rope)
        v = ops.rms_norm(ops.linear(h, layer.v) if s.values else keys, None, c.eps, heads=s.kv_heads)
    a = ops.attention(s.slot, ops.rope(q, s.heads, s.rope), k, v, AttentionSpec(s.heads, 1.0, s.window))
    return ops.linear(a, layer.attn_output)


def feed_forward(ops: Ops[T], c: Config, s: Sizes, layer: Layer, x: T) -> T:
    """[m, dim] -> [m, dim]"""
    h = ops.rms_norm(x, layer.ffn_norm, c.eps)
    f = ops.linear(ops.geglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down)
    if not s.experts:
        return f
    h = ops.scale(ops.scale(ops.rms_norm(x, None, c.eps), 1 / sqrt(c.dim)), layer.router_scale)
    chosen, weights = ops.route(h, layer.router, RouterSpec(c.experts_used), scales=layer.down_scale)
    h = ops.rms_norm(x, layer.experts_norm, c.eps)
    gate = layer.gate_up_exps if s.fused else layer.gate_exps
    e = ops.moe_ffn(h, chosen, weights, gate, layer.up_exps, layer.down_exps, "geglu")
    f, e = ops.rms_norm(f, layer.dense_post_norm, c.eps), ops.rms_norm(e, layer.experts_post_norm, c.eps)
    return ops.add(f, e)


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    x = ops.embed(w.embedding, scale=sqrt(c.dim))  # [m, dim]
    own = own_embeddings(ops, c, w, x) if c.per_layer else ()
    for i, (layer, s) in enumerate(zip(w.layers, c.layers, strict=True)):
        a = attention(ops, c, s, layer, ops.rms_norm(x, layer.attn_norm, c.eps))
        x = ops.add(x, ops.rms_norm(a, layer.attn_post_norm, c.eps))
        x = ops.add(x, ops.rms_norm(feed_forward(ops, c, s, layer, x), layer.ffn_post_norm, c.eps))
        if c.per_layer:
            g = ops.geglu(ops.linear(x, layer.own_gate), own[i])  # [m, per_layer]
            x = ops.add(x, ops.rms_norm(ops.linear(g, layer.own_proj), layer.own_norm, c.eps))
        if s.scaled:
            x = ops.scale(x, layer.output_scale)
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    logits = ops.linear(x, w.output)  # [rows asked for, vocab]
    return ops.softcap(logits, c.cap) if c.cap else logits


FAMILY = Family(
    "gemma4",
    Config,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(s.kv_heads, s.head_dim, s.head_dim, s.window) for s in c.layers if s.stores],
    weights=Weights,
)
