"""The qwen 3.5 family with experts: layers of `qwen35`, whose feed-forward is a choice of experts, and one that all share.

The shared expert's result is multiplied with a gate: one number per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..gguf.weights import Weight, WeightFinder
from ..ops.vocabulary import Ops, RouterSpec, T
from . import qwen35
from .family import MAX_EXPERTS, Family, Weights
from .keys import WIDTH, Keys
from .table import table, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(qwen35.Config):
    """Sizes of a model of this family; ffn_dim is that of one expert.

    experts : of each layer.  router : how rows are sent to them.  shared_dim : of the shared expert.
    """

    experts: int
    router: RouterSpec
    shared_dim: int

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Any:
        """Read them from a file."""
        keys.count("feed_forward_length", 0, WIDTH, default=0)  # of a dense layer, and there is none
        experts = keys.count("expert_count", 1, MAX_EXPERTS)
        return cls(
            **qwen35.read_sizes(keys, find, ffn="expert_feed_forward_length"),
            experts=experts,
            router=RouterSpec(keys.count("expert_used_count", 1, experts)),
            shared_dim=keys.count("expert_shared_feed_forward_length", 1, WIDTH),
        )


@table
class Experts:
    """Weights that every layer has."""

    norm: Weight = tensor("attn_norm", "dim")
    ffn_norm: Weight = tensor("post_attention_norm", "dim")
    router: Weight = tensor("ffn_gate_inp", "experts", "dim")
    gate: Weight = tensor("ffn_gate_exps", "experts", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up_exps", "experts", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down_exps", "experts", "dim", "ffn_dim")
    shared_router: Weight = tensor("ffn_gate_inp_shexp", 1, "dim")
    shared_gate: Weight = tensor("ffn_gate_shexp", "shared_dim", "dim")
    shared_up: Weight = tensor("ffn_up_shexp", "shared_dim", "dim")
    shared_down: Weight = tensor("ffn_down_shexp", "dim", "shared_dim")


@table
class AttentionLayer(qwen35.Attention, Experts):
    """Weights of a layer that looks back."""


@table
class DeltaLayer(qwen35.DeltaNet, Experts):
    """Weights of a layer that keeps a matrix per head."""


def feed_forward(ops: Ops[T], c: Config, layer: Experts, h: T) -> T:
    """[m, dim] -> [m, dim]"""
    chosen, weights = ops.route(h, layer.router, c.router)
    f = ops.moe_ffn(h, chosen, weights, layer.gate, layer.up, layer.down)
    shared = ops.linear(ops.swiglu(ops.linear(h, layer.shared_gate), ops.linear(h, layer.shared_up)), layer.shared_down)
    return ops.add(f, ops.mul(shared, ops.sigmoid(ops.linear(h, layer.shared_router))))


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    return qwen35.run(ops, c, w, feed_forward)


FAMILY = Family(
    "qwen35moe",
    Config,
    forward,
    layers=lambda c: [DeltaLayer if recurrent else AttentionLayer for recurrent in c.recurrent],
    parts=qwen35.parts,
)
