"""Qwen 3.5, dense and with experts (text): what their configs and tensors become."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import rope
from .config import Config
from .lazy import Numbers, applied, column, flat, take_columns, take_rows
from .plain import ACTIVATIONS, WIDTH, rope_keys, sizes
from .tensors import ATTENTION, EXPERTS, FFN, HEAD_NORMS, Change, Source, Table, To, plus_one, squeezed

_SECTIONS = [11, 11, 10]  # of pairs that time, height and width turn, where a config does not say


def _heads(c: Config) -> tuple[int, int, int, int]:
    """Key heads and value heads of a delta net, and the numbers of one of each."""
    keys, values = c.count("linear_num_key_heads", 1, WIDTH), c.count("linear_num_value_heads", 1, WIDTH)
    return keys, values, c.count("linear_key_head_dim", 1, WIDTH), c.count("linear_value_head_dim", 1, WIDTH)


def _order(c: Config, width: int, before: int = 0) -> np.ndarray:
    """Where the numbers of value heads come from.

    Published models put the value heads of one key head beside each other; in GGUF head h belongs to key head
    h mod key heads.  before : numbers in front of them that stay where they are.
    """
    keys, values, _, _ = _heads(c)
    index = np.arange(values * width).reshape(keys, values // keys, width).swapaxes(0, 1).reshape(-1)
    return np.concatenate([np.arange(before), before + index])


def _rows(head: bool = True, after_keys: bool = False) -> Change:
    """Rows in the order of GGUF: those of whole heads, or one per head; perhaps after those of queries and keys."""

    def change(c: Config, x: Numbers) -> Numbers:
        keys, _, key_width, width = _heads(c)
        order = _order(c, width if head else 1, 2 * keys * key_width if after_keys else 0)
        return take_rows(x, order, len(order))

    return change


def _columns(c: Config, x: Numbers) -> Numbers:
    return take_columns(x, _order(c, _heads(c)[3]))


def _vector(c: Config, x: Numbers) -> Numbers:
    order = _order(c, 1)
    return flat(take_rows(column(x), order, len(order)))


def _rate(c: Config, x: Numbers) -> Numbers:
    """-exp(A_log)"""
    return applied(_vector(c, x), lambda values: -np.exp(values))


def _qwen35(c: Config, **defaults: int) -> dict[str, Any]:
    keys = sizes(c, **defaults)
    layers = keys["block_count"]
    width = c.count("head_dim", 2, WIDTH, default=256)
    c.choice("hidden_act", *ACTIVATIONS, default="silu")
    c.choice("mlp_only_layers", [], default=[])
    c.choice("attn_output_gate", True, default=True)
    key_heads, heads, state, value_width = _heads(c)
    c.choice("linear_value_head_dim", state)
    c.choice("linear_num_value_heads", *range(key_heads, heads + 1, key_heads))
    keys |= {"attention.key_length": width, "attention.value_length": width}
    keys |= {"ssm.conv_kernel": c.count("linear_conv_kernel_dim", 2, 64), "ssm.state_size": state}
    keys |= {"ssm.group_count": key_heads, "ssm.time_step_rank": heads, "ssm.inner_size": heads * value_width}
    period = c.count("full_attention_interval", 1, default=4)
    kinds = c.names("layer_types", layers, "linear_attention", "full_attention")
    recurrent = [(i + 1) % period != 0 for i in range(layers)] if kinds is None else [k[0] == "l" for k in kinds]
    keys |= {"full_attention_interval": period, "attention.recurrent_layers": recurrent}
    p = rope.parameters(c)
    part = p.number("partial_rotary_factor", 0, 1, default=c.number("partial_rotary_factor", 0, 1, default=0.25))
    p.choice("mrope_interleaved", True, default=True)
    sections = p.counts("mrope_section", _SECTIONS)
    keys |= rope_keys(p, "yarn")
    keys |= {"rope.dimension_count": int(width * part), "rope.dimension_sections": [*sections, 0, 0][:4]}
    return keys


def _qwen35moe(c: Config) -> dict[str, Any]:
    width = c.count("moe_intermediate_size", 1, WIDTH)
    c.choice("norm_topk_prob", True, default=True)
    c.choice("decoder_sparse_step", 1, default=1)
    experts = c.count("num_experts")
    # intermediate_size is that of layers without experts, and there is none
    return _qwen35(c, intermediate_size=width) | {
        "expert_count": experts,
        "expert_used_count": c.count("num_experts_per_tok", 1, experts),
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": c.count("shared_expert_intermediate_size", 1, WIDTH),
    }


_LAYER: Table = {
    **ATTENTION,
    **{theirs: To(ours, plus_one) for theirs, ours in HEAD_NORMS.items() if isinstance(ours, str)},
    "input_layernorm.weight": To("attn_norm.weight", plus_one),
    "post_attention_layernorm.weight": To("post_attention_norm.weight", plus_one),
    "linear_attn.in_proj_qkv.weight": To("attn_qkv.weight", _rows(after_keys=True)),
    "linear_attn.in_proj_z.weight": To("attn_gate.weight", _rows()),
    "linear_attn.in_proj_a.weight": To("ssm_alpha.weight", _rows(head=False)),
    "linear_attn.in_proj_b.weight": To("ssm_beta.weight", _rows(head=False)),
    "linear_attn.conv1d.weight": To("ssm_conv1d.weight", lambda c, x: _rows(after_keys=True)(c, squeezed(c, x))),
    "linear_attn.A_log": To("ssm_a", _rate),
    "linear_attn.dt_bias": To("ssm_dt.bias", _vector),
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": To("ssm_out.weight", _columns),
}
_OUTSIDE: Table = {"model.norm.weight": To("output_norm.weight", plus_one)}

QWEN35 = Source(
    architecture="qwen35",
    classes=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    metadata=_qwen35,
    layer={**_LAYER, **FFN},
    outside=_OUTSIDE,
)
QWEN35MOE = Source(
    architecture="qwen35moe",
    classes=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    metadata=_qwen35moe,
    layer={
        **_LAYER,
        **EXPERTS,
        "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
        "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    },
    outside=_OUTSIDE,
)
