"""The qwen 3.5 family: three layers of four keep a matrix per head instead of keys and values.

Those are gated delta nets (Yang and others 2024, arXiv 2412.06464): a short convolution over queries, keys and values,
the delta rule, and a gated norm.  Every fourth layer is attention with norms on the heads of queries and keys, with RoPE
on a part of each head, and with a gate on what it finds.  The converter has added 1 to every norm weight but the gated
one, stores -exp(A_log), and has ordered the value heads so that head h belongs to key head h mod key heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

from ..cache.parts import Kv, Part, Recurrent
from ..errors import ModelError
from ..gguf.weights import Weight, WeightFinder
from ..ops.vocabulary import AttentionSpec, Ops, T
from . import family
from .family import MAX_LAYERS, Family, Weights, common_sizes, head_dim, read_rope
from .keys import WIDTH, Keys
from .table import table, tensor

_TAPS = 64  # of a convolution, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(family.Config):
    """Sizes of a model of this family.

    recurrent : whether a layer is a delta net, one per layer.  taps : of its convolution.
    key_heads, value_heads : of a delta net.  state : numbers of each of these heads.
    """

    recurrent: tuple[bool, ...]
    taps: int
    key_heads: int
    value_heads: int
    state: int

    @classmethod
    def read(cls, keys: Keys, find: WeightFinder) -> Any:
        """Read them from a file."""
        return cls(**read_sizes(keys, find))

    @property
    def query_gate_dim(self) -> int:
        """Width of all query heads and their gates."""
        return 2 * self.q_dim

    @property
    def key_dim(self) -> int:
        """Width of all keys of a delta net."""
        return self.key_heads * self.state

    @property
    def value_dim(self) -> int:
        """Width of all its values."""
        return self.value_heads * self.state

    @property
    def conv_dim(self) -> int:
        """Width of its queries, keys and values together."""
        return 2 * self.key_dim + self.value_dim


def read_sizes(keys: Keys, find: WeightFinder, ffn: str = "feed_forward_length") -> dict[str, Any]:
    """The fields of `Config`; `ffn`: the key of ffn_dim."""
    sizes = common_sizes(keys, find, ffn=ffn)
    recurrent = _recurrent(keys, sizes["n_layers"])  # of the blocks that do not run, too
    sizes["n_layers"] -= skipped_blocks(keys, find, sizes["n_layers"])
    heads, state = keys.count("ssm.time_step_rank", 1, WIDTH), keys.count("ssm.state_size", 1, WIDTH)
    key_heads = keys.count("ssm.group_count", 1, heads)
    if heads % key_heads:
        raise ModelError(f"{keys.architecture}: {heads} value heads cannot share {key_heads} key heads evenly")
    keys.count("ssm.inner_size", heads * state, heads * state)
    rope = read_rope(keys, head_dim(keys), "half", yarn=True)
    # Sections divide the turned pairs among time, height and width; in a text all three are the position.
    keys.integers("rope.dimension_sections", 0, rope.dims // 2)
    sizes |= {"rope": rope, "taps": keys.count("ssm.conv_kernel", 2, _TAPS), "state": state}
    return sizes | {"key_heads": key_heads, "value_heads": heads, "recurrent": recurrent[: sizes["n_layers"]]}


def skipped_blocks(keys: Keys, find: WeightFinder, blocks: int) -> int:
    """Blocks at the end that predict further tokens: what the model says does not depend on them, and they do not run."""
    n = keys.count("nextn_predict_layers", 0, blocks - 1, default=0)
    for i in range(blocks - n, blocks):
        find.skip(f"blk.{i}.")
    return n


def _recurrent(keys: Keys, blocks: int) -> tuple[bool, ...]:
    """Which blocks are delta nets: a flag per block, or a period whose last layer is attention."""
    period = keys.count("full_attention_interval", 1, MAX_LAYERS, default=4)
    flags = keys.flags("attention.recurrent_layers", blocks)
    return tuple((i + 1) % period != 0 for i in range(blocks)) if flags is None else tuple(flags)


@table
class Ffn:
    """Weights that every layer has."""

    norm: Weight = tensor("attn_norm", "dim")
    ffn_norm: Weight = tensor("post_attention_norm", "dim")
    gate: Weight = tensor("ffn_gate", "ffn_dim", "dim")
    up: Weight = tensor("ffn_up", "ffn_dim", "dim")
    down: Weight = tensor("ffn_down", "dim", "ffn_dim")


@table
class Attention:
    """Weights of an attention."""

    q: Weight = tensor("attn_q", "query_gate_dim", "dim")
    k: Weight = tensor("attn_k", "kv_dim", "dim")
    v: Weight = tensor("attn_v", "kv_dim", "dim")
    q_norm: Weight = tensor("attn_q_norm", "head_dim")
    k_norm: Weight = tensor("attn_k_norm", "head_dim")
    attn_output: Weight = tensor("attn_output", "dim", "q_dim")


@table
class DeltaNet:
    """Weights of a gated delta net."""

    qkv: Weight = tensor("attn_qkv", "conv_dim", "dim")
    conv: Weight = tensor("ssm_conv1d", "conv_dim", "taps")
    alpha: Weight = tensor("ssm_alpha", "value_heads", "dim")
    alpha_bias: Weight = tensor("ssm_dt", "value_heads", suffix=".bias")
    rate: Weight = tensor("ssm_a", "value_heads", suffix="")
    beta: Weight = tensor("ssm_beta", "value_heads", "dim")
    z: Weight = tensor("attn_gate", "value_dim", "dim")
    out_norm: Weight = tensor("ssm_norm", "state")
    out: Weight = tensor("ssm_out", "dim", "value_dim")


@table
class AttentionLayer(Attention, Ffn):
    """Weights of a layer that looks back."""


@table
class DeltaLayer(DeltaNet, Ffn):
    """Weights of a layer that keeps a matrix per head."""


def attention(ops: Ops[T], c: Config, layer: Attention, slot: int, h: T) -> T:
    """[m, dim] -> [m, dim]"""
    q, gate = ops.split(ops.linear(h, layer.q), c.head_dim, c.head_dim, heads=c.heads)  # [m, heads * head_dim] each
    k, v = ops.linear(h, layer.k), ops.linear(h, layer.v)  # [m, kv_heads * head_dim] each
    q = ops.rope(ops.rms_norm(q, layer.q_norm, c.eps, heads=c.heads), c.heads, c.rope)
    k = ops.rope(ops.rms_norm(k, layer.k_norm, c.eps, heads=c.kv_heads), c.kv_heads, c.rope)
    a = ops.attention(slot, q, k, v, AttentionSpec(c.heads, 1 / sqrt(c.head_dim)))
    return ops.linear(ops.mul(a, ops.sigmoid(gate)), layer.attn_output)


def delta_net(ops: Ops[T], c: Config, layer: DeltaNet, slot: int, h: T) -> T:
    """[m, dim] -> [m, dim]; keeps inputs of the convolution in `slot` and matrices in the next one."""
    qkv = ops.conv(slot, ops.linear(h, layer.qkv), layer.conv)  # [m, conv_dim]
    qkv = ops.mul(qkv, ops.sigmoid(qkv))
    q, k, v = ops.split(qkv, c.key_dim, c.key_dim, c.value_dim)
    # of length 1, up to eps: a norm to a mean square of 1 / state; and queries are scaled by 1 / sqrt(state)
    q, k = (ops.rms_norm(t, None, c.eps / c.state, heads=c.key_heads) for t in (q, k))
    q, k = ops.scale(q, 1 / c.state), ops.scale(k, 1 / sqrt(c.state))
    decay = ops.scale(ops.softplus(ops.bias(ops.linear(h, layer.alpha), layer.alpha_bias)), layer.rate)
    beta = ops.sigmoid(ops.linear(h, layer.beta))  # [m, value_heads], as decay
    a = ops.delta_rule(slot + 1, q, k, v, decay, beta, c.value_heads)  # [m, value_dim]
    a = ops.rms_norm(a, layer.out_norm, c.eps, heads=c.value_heads)
    return ops.linear(ops.swiglu(ops.linear(h, layer.z), a), layer.out)


def feed_forward(ops: Ops[T], c: Config, layer: Ffn, h: T) -> T:
    """[m, dim] -> [m, dim]"""
    return ops.linear(ops.swiglu(ops.linear(h, layer.gate), ops.linear(h, layer.up)), layer.down)


def run(ops: Ops[T], c: Any, w: Weights, feed_forward: Callable[..., T]) -> T:
    """The layers, with a feed-forward of whatever kind; returns logits [rows asked for, vocab]."""
    x, slot = ops.embed(w.embedding), 0  # [m, dim]
    for layer, recurrent in zip(w.layers, c.recurrent, strict=True):
        h = ops.rms_norm(x, layer.norm, c.eps)
        x = ops.add(x, (delta_net if recurrent else attention)(ops, c, layer, slot, h))
        slot += 2 if recurrent else 1
        x = ops.add(x, feed_forward(ops, c, layer, ops.rms_norm(x, layer.ffn_norm, c.eps)))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, c.eps)  # [rows asked for, dim]
    return ops.linear(x, w.output)  # [rows asked for, vocab]


def forward(ops: Ops[T], c: Config, w: Weights) -> T:
    """One pass over m rows; returns logits [rows asked for, vocab]."""
    return run(ops, c, w, feed_forward)


def parts(c: Config) -> list[Part]:
    """What a stream keeps, layer by layer."""
    delta = [Recurrent((c.taps - 1, c.conv_dim)), Recurrent((c.value_heads, c.state, c.state))]
    attention = [Kv(c.kv_heads, c.head_dim, c.head_dim)]
    return [part for recurrent in c.recurrent for part in (delta if recurrent else attention)]


FAMILY = Family(
    "qwen35",
    Config,
    forward,
    layers=lambda c: [DeltaLayer if recurrent else AttentionLayer for recurrent in c.recurrent],
    parts=parts,
)
