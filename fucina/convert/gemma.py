"""Gemma 3 and Gemma 4 (text): what their configs and tensors become."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ConvertError
from . import rope
from .config import Config
from .files import shown
from .plain import WIDTH, rope_keys, sizes
from .tensors import ATTENTION, FFN, HEAD_NORMS, Source, To, plus_one

_NORMS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
_KINDS = ("sliding_attention", "full_attention")


def _local(c: Config, period: int) -> list[bool]:
    """Which layers see only a window."""
    n = c.count("num_hidden_layers")
    every = "sliding_window_pattern" if c.get("sliding_window_pattern") is not None else "_sliding_window_pattern"
    period = c.count(every, 1, default=period)
    c.ignore("sliding_window_pattern", "_sliding_window_pattern")
    kinds = c.names("layer_types", n, *_KINDS)
    return [(i + 1) % period != 0 for i in range(n)] if kinds is None else [k == _KINDS[0] for k in kinds]


def _ropes(c: Config, local_base: float, base: float) -> tuple[Config, Config]:
    """Parameters of RoPE of global and of local layers."""
    full, local = rope.parameters(c, "full_attention"), rope.parameters(c, "sliding_attention")
    own = c.get("rope_parameters")
    if own is not None and (not isinstance(own, dict) or set(own) != set(_KINDS)):
        raise ConvertError(f"{c.what} has rope_parameters {shown(own)}; expected those of {' and of '.join(_KINDS)}")
    if own is None:
        local = Config({"rope_theta": c.number("rope_local_base_freq", *rope.BASE, default=local_base)}, c.what)
    c.ignore("rope_local_base_freq")
    if full.get("rope_theta") is None:
        full = Config({**full.values, "rope_theta": base}, full.what)
    return full, local


def _gemma3(c: Config) -> dict[str, Any]:
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072}
    keys = sizes(c, **defaults)
    width = c.count("head_dim", 2, WIDTH, default=256)
    c.choice("hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    c.choice("hidden_act", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    c.choice("final_logit_softcapping", 0.0, default=0.0)
    layers, dim, heads = keys["block_count"], keys["embedding_length"], keys["attention.head_count"]
    scalar, wanted = c.number("query_pre_attn_scalar", 1e-6, 1e6, default=256), dim / heads if layers == 62 else width
    if scalar != wanted:
        raise ConvertError(
            f"{c.what} has query_pre_attn_scalar {scalar:g}; implemented: {wanted:g}, "
            + ("the width per head" if layers == 62 else "head_dim")
        )
    full, local = _ropes(c, 10_000.0, 1_000_000.0)
    keys |= rope_keys(full, "linear")
    keys["rope.freq_base_swa"] = rope_keys(local)["rope.freq_base"]
    keys |= {"attention.key_length": width, "attention.value_length": width}
    keys["attention.sliding_window"] = c.count("sliding_window", default=4096)
    flags = _local(c, 6)
    if flags != _usual(layers):
        keys["attention.sliding_window_pattern"] = flags
    return keys


def _usual(n: int) -> list[bool]:
    """Every sixth layer sees everything."""
    return [(i + 1) % 6 != 0 for i in range(n)]


GEMMA3 = Source(
    architecture="gemma3",
    classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    metadata=_gemma3,
    layer={
        **ATTENTION,
        **FFN,
        **{theirs: To(ours, plus_one) for theirs, ours in {**_NORMS, **HEAD_NORMS}.items() if isinstance(ours, str)},
    },
    outside={"model.norm.weight": To("output_norm.weight", plus_one)},
    tied=True,
)


def _of_global(c: Config, key: str, older: str, default: int) -> int:
    """A size of global layers: newer configs list what differs by layer, older ones have a key of its own."""
    by_layer = c.part("per_layer_config")
    if by_layer is None:
        return c.count(older, 1, WIDTH, default=default)
    full = {str(i) for i, is_local in enumerate(_local(c, 6)) if not is_local}
    own = {i: by_layer.part(i) for i in by_layer.values}
    if set(own) != full or any(
        part is None or set(part.values) - {"head_dim", "num_key_value_heads"} for part in own.values()
    ):
        raise ConvertError(
            f"{c.what} has a per_layer_config for the layers {', '.join(sorted(own))}; implemented: head_dim and "
            f"num_key_value_heads of the global layers {', '.join(sorted(full))}"
        )
    usual = c.count("num_key_value_heads") if key == "num_key_value_heads" else c.count("head_dim", default=256)
    found = {part.count(key, 1, WIDTH, default=usual) for part in own.values() if part is not None}
    if len(found) != 1:
        raise ConvertError(f"{c.what} has different {key} in per_layer_config; implemented: one for all global layers")
    return found.pop()


def _gemma4(c: Config) -> dict[str, Any]:
    keys = sizes(c)
    layers, local = keys["block_count"], _local(c, 6)
    narrow, wide = c.count("head_dim", 2, WIDTH, default=256), _of_global(c, "head_dim", "global_head_dim", 512)
    c.choice("hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    c.choice("use_bidirectional_attention", False, "vision", default=False)  # of pictures alone
    shared = c.count("num_kv_shared_layers", 0, layers - 1, default=0)
    keys["attention.shared_kv_layers"] = shared
    keys["embedding_length_per_layer_input"] = c.count("hidden_size_per_layer_input", 0, WIDTH, default=0)
    keys["attention.sliding_window_pattern"] = local
    keys["attention.sliding_window"] = c.count("sliding_window")
    keys |= {"attention.key_length": wide, "attention.value_length": wide}
    keys |= {"attention.key_length_swa": narrow, "attention.value_length_swa": narrow}
    width = keys["feed_forward_length"]
    if c.flag("use_double_wide_mlp", default=False):
        keys["feed_forward_length"] = [width * (1 + (i >= layers - shared)) for i in range(layers)]
    many = keys["attention.head_count_kv"]
    few = _of_global(c, "num_key_value_heads", "num_global_key_value_heads", many)
    if c.flag("attention_k_eq_v", default=False) and few != many:
        keys["attention.head_count_kv"] = [many if is_local else few for is_local in local]
    if c.flag("enable_moe_block", default=False):
        keys["expert_count"] = c.count("num_experts")
        keys["expert_used_count"] = c.count("top_k_experts", 1, keys["expert_count"])
        keys["expert_feed_forward_length"] = c.count("moe_intermediate_size", 1, WIDTH)
    c.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    if c.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = c.number("final_logit_softcapping", 0, 1e6)
    full, small = _ropes(c, 10_000.0, 1_000_000.0)
    full.choice("rope_type", "proportional")
    full.ignore("partial_rotary_factor")
    keys |= {"rope.freq_base": full.number("rope_theta", *rope.BASE), "rope.dimension_count": wide}
    full.check_all_known()
    keys |= {"rope.freq_base_swa": rope_keys(small)["rope.freq_base"], "rope.dimension_count_swa": narrow}
    return keys


def _gemma4_extra(c: Config) -> dict[str, np.ndarray]:
    """Divisors of frequencies: the last ones are so large that RoPE does not turn."""
    wide = _of_global(c, "head_dim", "global_head_dim", 512)
    part = rope.parameters(c, "full_attention").number("partial_rotary_factor", 0, 1, default=1.0)
    turned = int(wide * part / 2)
    return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (wide // 2 - turned), np.float32)}


GEMMA4 = Source(
    architecture="gemma4",
    classes=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    metadata=_gemma4,
    layer={
        **ATTENTION,
        **HEAD_NORMS,
        **FFN,
        **_NORMS,
        "router.proj.weight": "ffn_gate_inp.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
        "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
        "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
        "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
        "per_layer_input_gate.weight": "inp_gate.weight",
        "per_layer_projection.weight": "proj.weight",
        "post_per_layer_input_norm.weight": "post_norm.weight",
        "layer_scalar": "layer_output_scale.weight",
    },
    outside={
        "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
        "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
        "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    },
    extra=_gemma4_extra,
    tied=True,
)
