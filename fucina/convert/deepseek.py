"""DeepSeek V2, V2-Lite and V3: what their configs and tensors become."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ConvertError
from . import rope
from .config import Config
from .lazy import Numbers, take_rows, transposed
from .plain import ACTIVATIONS, WIDTH, rope_keys, sizes
from .tensors import EXPERTS, FFN, NORMS, Source, To


def _heads(c: Config) -> tuple[int, int, int]:
    """Heads, and the numbers of keys and of values that a head expands a latent row to."""
    plain, values = c.count("qk_nope_head_dim", 1, WIDTH), c.count("v_head_dim", 1, WIDTH)
    return c.count("num_attention_heads", 1, WIDTH), plain, values


def _keys_of(c: Config, x: Numbers) -> Numbers:
    """[heads * (plain + values), latent] -> [heads, latent, plain]"""
    heads, plain, values = _heads(c)
    index = np.arange(heads * (plain + values)).reshape(heads, -1)[:, :plain].reshape(-1)
    return transposed(take_rows(x, index, heads * (plain + values), heads, plain))


def _values_of(c: Config, x: Numbers) -> Numbers:
    """[heads * (plain + values), latent] -> [heads, values, latent]"""
    heads, plain, values = _heads(c)
    index = np.arange(heads * (plain + values)).reshape(heads, -1)[:, plain:].reshape(-1)
    return take_rows(x, index, heads * (plain + values), heads, values)


def _deepseek(c: Config) -> dict[str, Any]:
    keys = sizes(c)
    c.choice("hidden_act", *ACTIVATIONS, default="silu")
    c.choice("moe_layer_freq", 1, default=1)
    c.choice("rope_interleave", True, default=True)
    c.ignore("head_dim", "qk_head_dim")
    _, plain, values = _heads(c)
    turned, latent = c.count("qk_rope_head_dim", 2, WIDTH), c.count("kv_lora_rank", 1, WIDTH)
    keys["attention.head_count_kv"] = 1
    keys |= {"attention.kv_lora_rank": latent, "rope.dimension_count": turned}
    keys |= {"attention.key_length": latent + turned, "attention.value_length": latent}
    keys |= {"attention.key_length_mla": plain + turned, "attention.value_length_mla": values}
    if c.get("q_lora_rank") is not None:
        keys["attention.q_lora_rank"] = c.count("q_lora_rank", 1, WIDTH)
    p = rope.parameters(c)
    multiplier = _magnitude(p)
    keys |= rope_keys(p, "yarn")
    if multiplier is not None:
        keys["rope.scaling.yarn_log_multiplier"] = multiplier
    return keys | _experts(c)


def _magnitude(p: Config) -> float | None:
    """What YaRN's logarithm is multiplied with, or None without YaRN."""
    if p.get("rope_type", p.get("type", "default")) == "default":
        p.ignore("mscale", "mscale_all_dim")
        return None
    all_dims = p.number("mscale_all_dim", 1e-6, 100)
    if p.number("mscale", 1e-6, 100) != all_dims:
        raise ConvertError(
            f"{p.what} has mscale {p.get('mscale')} and mscale_all_dim {all_dims}; implemented: equal ones"
        )
    return 0.1 * all_dims


def _experts(c: Config) -> dict[str, Any]:
    """The router and the experts."""
    experts, third = c.count("n_routed_experts"), "DeepseekV3ForCausalLM" in c.get("architectures", ())
    gating = c.choice("scoring_func", "softmax", "sigmoid", default="sigmoid" if third else "softmax")
    method = c.choice(
        "topk_method", "greedy", "group_limited_greedy", "noaux_tc", default="noaux_tc" if third else "greedy"
    )
    groups, used = c.count("n_group", 1, experts, default=1), c.count("topk_group", 1, experts, default=1)
    if method == "greedy":
        groups = used = 1
    if method == "group_limited_greedy" and used < groups:
        raise ConvertError(
            f"{c.what} has topk_method 'group_limited_greedy', {used} of {groups} groups, where a group is as good as its "
            "best expert; implemented: as good as its best two ('noaux_tc')"
        )
    normalised, scale = c.flag("norm_topk_prob", default=third), c.number("routed_scaling_factor", 0, 1e6, default=1.0)
    if not third and normalised:
        raise ConvertError(f"{c.what} has norm_topk_prob true, which is implemented for DeepSeek-V3 alone")
    keys = {
        "leading_dense_block_count": c.count("first_k_dense_replace", 0, c.count("num_hidden_layers"), default=0),
        "expert_feed_forward_length": c.count("moe_intermediate_size", 1, WIDTH),
        "expert_count": experts,
        "expert_shared_count": c.count("n_shared_experts"),
        "expert_used_count": c.count("num_experts_per_tok", 1, experts),
        "expert_weights_scale": scale,
        "expert_group_count": groups,
        "expert_group_used_count": used,
        "expert_gating_func": 2 if gating == "sigmoid" else 1,
    }
    return keys | ({"expert_weights_norm": True} if normalised else {})


DEEPSEEK = Source(
    architecture="deepseek2",
    classes=("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    metadata=_deepseek,
    layer={
        **NORMS,
        **FFN,
        **EXPERTS,
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.q_a_proj.weight": "attn_q_a.weight",
        "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
        "self_attn.q_b_proj.weight": "attn_q_b.weight",
        "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
        "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
        "self_attn.kv_b_proj.weight": (To("attn_k_b.weight", _keys_of), To("attn_v_b.weight", _values_of)),
        "self_attn.o_proj.weight": "attn_output.weight",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
        "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
        "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    },
)
