"""The qwen 3 family with experts: qwen 3's attention, and a feed-forward that is a choice of experts.

Each row is sent to a few of many small SwiGLU networks; their results are added with the router's odds as weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cache.parts import Kv
from ..gguf.weights import Weight, WeightFinder
from ..ops.vocabulary import Ops, RouterSpec, T
from . import family
from .family import MAX_EXPERTS, Family, Weights, common_sizes
from .keys import WIDTH, Keys
from .qwen3 import Attention, attention, whole_rope
from .table import table, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family.

    experts : of each layer.  expert_dim : width of one.  router : how rows are sent to them.
    """

    experts: int
    expert_dim: int
    router: RouterSpec

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Config:
        """Read them from a file."""
        sizes = common_sizes(keys, find)
        experts = keys.count("expert_count", 1, MAX_EXPERTS)
        used = keys.count("expert_used_count", 1, experts)
        return cls(
            **sizes,
            rope=whole_rope(keys),
            experts=experts,
            expert_dim=keys.count("expert_feed_forward_length", 1, WIDTH, default=sizes["ffn_dim"] // used),
            router=RouterSpec(used),
        )


@table
class Layer(Attention):
    """Weights of one layer; a stack of matrices is [experts, outputs, inputs]."""

    ffn_norm: Weight = tensor("ffn_norm", "dim")
    router: Weight = tensor("ffn_gate_inp", "experts", "dim")
    gate: Weight = tensor("ffn_gate_exps", "experts", "expert_dim", "dim")
    up: Weight = tensor("ffn_up_exps", "experts", "expert_dim", "dim")
    down: Weight = tensor("ffn_down_exps", "experts", "dim", "expert_dim")


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    x = ops.embed(w.embedding)  # [m, dim]
    for i, layer in enumerate(w.layers):
        x = ops.add(x, attention(ops, c, i, layer, x))
        h = ops.rms_norm(x, layer.ffn_norm, c.eps)
        experts, weights = ops.route(h, layer.router, c.router)  # [m, experts of a row] each
        x = ops.add(x, ops.moe_ffn(h, experts, weights, layer.gate, layer.up, layer.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


FAMILY = Family(
    "qwen3moe",
    Config,
    forward,
    layers=lambda c: [Layer] * c.n_layers,
    parts=lambda c: [Kv(c.kv_heads, c.head_dim, c.head_dim)] * c.n_layers,
)
