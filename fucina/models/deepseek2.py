"""The deepseek 2 family: DeepSeek-V2, V2-Lite, V2.5, V3 and R1.

Latent attention: a position keeps one small row, from which the keys and values of all heads could be expanded, and
beside it the part of a key that RoPE turns, which all heads share.  The matrices of the expansion are applied to the
queries and to the results instead, so that the row itself is what queries are compared with.  (DeepSeek-AI 2024, arXiv
2405.04434.)  The first layers have a dense feed-forward, the others a choice of experts beside one that every row uses.

A group of experts is as good as its best two, as in DeepSeek-V3 and as files rely on.  Files from before attn_kv_b was
split, and files with a layer that predicts further tokens, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt
from typing import Any

from ..cache.parts import Latent
from ..errors import ModelError
from ..gguf.weights import Weight, WeightFinder
from ..ops.vocabulary import AttentionSpec, Ops, RouterSpec, T
from . import family
from .family import MAX_EXPERTS, Family, Weights, common_sizes, read_rope
from .keys import WIDTH, Keys
from .table import table, tensor

_GATING = ("softmax", "softmax", "sigmoid")  # by expert_gating_func; older files have none, or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family.

    A head of the queries has `head_dim` numbers: `plain` ones, then the rope.dims that are turned.
    latent, v_dim : numbers of a position's latent row, and of a head's value.  q_rank : of the queries' bottleneck, 0
    without one.  scale : factor on every score of attention.
    dense : layers at the beginning without experts.  experts, expert_dim, shared_dim : of the other layers, the width of
    an expert and of the network that every row uses.  biased : whether the router chooses with a bias.
    """

    latent: int
    v_dim: int
    q_rank: int
    scale: float
    dense: int
    experts: int
    expert_dim: int
    shared_dim: int
    router: RouterSpec
    biased: bool

    @property
    def plain(self) -> int:
        """Numbers of a query head that are not turned."""
        return self.head_dim - self.rope.dims

    @property
    def row(self) -> int:
        """Numbers that a position keeps."""
        return self.latent + self.rope.dims

    @property
    def out_dim(self) -> int:
        """Width of the results of all heads."""
        return self.heads * self.v_dim

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        if find.has("blk.0.attn_kv_b.weight"):
            raise ModelError("blk.0.attn_kv_b.weight is not split into attn_k_b and attn_v_b; convert the model anew")
        width = keys.count("attention.key_length_mla", 2, WIDTH)
        rope = read_rope(keys, width, "interleaved", yarn=True)
        latent = keys.count("attention.kv_lora_rank", 1, WIDTH)
        if rope.dims >= width:
            raise ModelError(f"{keys.architecture}: RoPE turns all {width} numbers of a head; some must be left")
        for key, n in (("key_length", latent + rope.dims), ("value_length", latent), ("head_count_kv", 1)):
            keys.count(f"attention.{key}", n, n)
        sizes = common_sizes(keys, find, width)
        n_layers = sizes["n_layers"]
        dense = keys.count("leading_dense_block_count", 0, n_layers, default=0)
        expert_dim = keys.count("expert_feed_forward_length", 1, WIDTH)
        return cls(
            **sizes,
            rope=replace(rope, magnitude=1.0),  # here YaRN's magnitude is a factor on scores
            latent=latent,
            v_dim=keys.count("attention.value_length_mla", 1, WIDTH),
            q_rank=keys.count("attention.q_lora_rank", 0, WIDTH, default=0),
            scale=_yarn_scale(keys) ** 2 / sqrt(width),
            dense=dense,
            experts=(experts := keys.count("expert_count", 1, MAX_EXPERTS)),
            expert_dim=expert_dim,
            shared_dim=keys.count("expert_shared_count", 1, MAX_EXPERTS) * expert_dim,
            router=_read_router(keys, experts, n_layers, sizes["vocab_size"]),
            biased=find.has(f"blk.{dense}.exp_probs_b.bias"),
        )


def _yarn_scale(keys: Keys) -> float:
    """Factor on queries and on keys: 1 + multiplier · log(factor) with YaRN."""
    factor = keys.number("rope.scaling.factor", 1e-6, 1e6, default=1.0)
    if keys.choice("rope.scaling.type", "none", "linear", "yarn", default="linear") == "yarn":
        return 1.0 + keys.number("rope.scaling.yarn_log_multiplier", 1e-6, 10.0) * log(factor)
    if factor != 1:
        raise ModelError(f"{keys.architecture}.rope.scaling.factor is {factor} without YaRN; implemented: 1")
    return 1.0


def _read_router(keys: Keys, experts: int, n_layers: int, vocab_size: int) -> RouterSpec:
    early_glm = n_layers in (47, 48) and vocab_size == 154880  # files of GLM-4.7-Flash from before the key was written
    spec = RouterSpec(
        top_k=keys.count("expert_used_count", 1, experts),
        gating=_GATING[keys.count("expert_gating_func", 0, 2, default=0) or 2 * early_glm],
        normalise=keys.flag("expert_weights_norm", default=False),
        scale=keys.number("expert_weights_scale", 0.0, 1e6, default=1.0) or 1.0,  # 0: not scaled
        groups=keys.count("expert_group_count", 0, experts, default=1) or 1,
        groups_used=keys.count("expert_group_used_count", 0, experts, default=1) or 1,
    )
    spec.check(experts)
    return spec


@table
class Common:
    """Weights that every layer has."""

    attn_norm: Weight = tensor("attn_norm", "dim")
    kv_a: Weight = tensor("attn_kv_a_mqa", "row", "dim")
    kv_a_norm: Weight = tensor("attn_kv_a_norm", "latent")
    k_b: Weight = tensor("attn_k_b", "heads", "latent", "plain")
    v_b: Weight = tensor("attn_v_b", "heads", "v_dim", "latent")
    attn_output: Weight = tensor("attn_output", "dim", "out_dim")
    ffn_norm: Weight = tensor("ffn_norm", "dim")


@table
class Direct:
    """Queries without a bottleneck."""

    q: Weight = tensor("attn_q", "q_dim", "dim")


@table
class Narrowed:
    """Queries through a bottleneck."""

    q_a: Weight = tensor("attn_q_a", "q_rank", "dim")
    q_a_norm: Weight = tensor("attn_q_a_norm", "q_rank")
    q_b: Weight = tensor("attn_q_b", "q_dim", "q_rank")


@table
class Dense:
    """A feed-forward of all rows."""

    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


@table
class Experts:
    """Experts, and a feed-forward of all rows beside them; a stack of matrices is [experts, outputs, inputs]."""

    router: Weight = tensor("ffn_gate_inp", "experts", "dim")
    expert_gate: Weight = tensor("ffn_gate_exps", "experts", "expert_dim", "dim")
    expert_up: Weight = tensor("ffn_up_exps", "experts", "expert_dim", "dim")
    expert_down: Weight = tensor("ffn_down_exps", "experts", "dim", "expert_dim")
    gate: Weight = tensor("ffn_gate_shexp", "shared_dim", "dim")
    up: Weight = tensor("ffn_up_shexp", "shared_dim", "dim")
    down: Weight = tensor("ffn_down_shexp", "dim", "shared_dim")


@table
class Biased(Experts):
    """Experts that are chosen with a bias."""

    bias: Weight = tensor("exp_probs_b", "experts", suffix=".bias")


@cache
def _layer(*parts: type) -> type:
    """The table of a layer that consists of these."""
    return table(type("Layer", (*parts, Common), {"__doc__": "Weights of one layer."}))


def layers(c: Config) -> Sequence[type]:
    """The table of each layer."""
    queries = Narrowed if c.q_rank else Direct
    experts = Biased if c.biased else Experts
    return [_layer(queries, Dense if i < c.dense else experts) for i in range(c.n_layers)]


def queries(ops: Ops[T], c: Config, layer: Any, h: T) -> T:
    """Queries that are compared with the rows that positions keep: [m, dim] -> [m, heads * row]."""
    if c.q_rank:
        h, w = ops.rms_norm(ops.linear(h, layer.q_a), layer.q_a_norm, c.eps), layer.q_b  # [m, q_rank]
    else:
        w = layer.q
    plain, turned = ops.split(ops.linear(h, w), c.plain, c.rope.dims, heads=c.heads)
    plain = ops.linear_heads(plain, layer.k_b, c.heads)  # [m, heads * latent]
    return ops.concat(plain, ops.rope(turned, c.heads, c.rope), heads=c.heads)


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    look = AttentionSpec(c.heads, c.scale)
    x = ops.embed(w.embedding)  # [m, dim]
    for i, layer in enumerate(w.layers):
        h = ops.rms_norm(x, layer.attn_norm, c.eps)
        latent, turned = ops.split(ops.linear(h, layer.kv_a), c.latent, c.rope.dims)
        row = ops.concat(ops.rms_norm(latent, layer.kv_a_norm, c.eps), ops.rope(turned, 1, c.rope))  # [m, row]
        a = ops.attention(i, queries(ops, c, layer, h), row, None, look)  # [m, heads * latent]
        a = ops.linear_heads(a, layer.v_b, c.heads)  # [m, heads * v_dim]
        x = ops.add(x, ops.linear(a, layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        f = ops.linear(ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down)
        if isinstance(layer, Experts):
            bias = layer.bias if isinstance(layer, Biased) else None
            experts, weights = ops.route(h, layer.router, c.router, bias)  # [m, experts of a row] each
            moe = ops.moe_ffn(h, experts, weights, layer.expert_gate, layer.expert_up, layer.expert_down)
            f = ops.add(moe, f)
        x = ops.add(x, f)
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


FAMILY = Family(
    "deepseek2",
    Config,
    forward,
    layers=layers,
    parts=lambda c: [Latent(c.row, c.latent)] * c.n_layers,
)
