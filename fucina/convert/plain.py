"""Llama, Mistral, SmolLM, Qwen 3: what their configs and tensors become."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ConvertError
from . import rope
from .config import REQUIRED, Config
from .tensors import ATTENTION, EXPERTS, FFN, HEAD_NORMS, NORMS, Source, To, interleaved

WIDTH = 1 << 20
ACTIVATIONS = ("silu", "swish")


def head_width(c: Config) -> int:
    """Numbers of a head."""
    return c.count("head_dim", 2, WIDTH, default=c.count("hidden_size", 1, WIDTH) // c.count("num_attention_heads"))


def sizes(c: Config, eps: Any = 1e-6, **defaults: int) -> dict[str, Any]:
    """Keys that all families have; eps and defaults : where a config does not say."""
    heads = c.count("num_attention_heads", 1, WIDTH, default=defaults.get("num_attention_heads", REQUIRED))
    return {
        "block_count": c.count("num_hidden_layers", 1, 4096),
        "context_length": c.count("max_position_embeddings", default=defaults.get("max_position_embeddings", REQUIRED)),
        "embedding_length": c.count("hidden_size", 1, WIDTH),
        "feed_forward_length": c.count(
            "intermediate_size", 1, WIDTH, default=defaults.get("intermediate_size", REQUIRED)
        ),
        "attention.head_count": heads,
        "attention.head_count_kv": c.count(
            "num_key_value_heads", 1, heads, default=defaults.get("num_key_value_heads", heads)
        ),
        "attention.layer_norm_rms_epsilon": c.number("rms_norm_eps", 1e-30, 1.0, default=eps),
    }


def rope_keys(p: Config, *implemented: str) -> dict[str, Any]:
    """`rope.…` keys; the parameters must hold nothing else."""
    found = {f"rope.{key}": value for key, value in rope.scaling(p, *implemented).items()}
    p.check_all_known()
    return found


def no_window(c: Config, context: int, used: bool) -> None:
    """ConvertError if layers see only a window that is shorter than the context; used : where a config does not say."""
    layer_types = c.names("layer_types", c.count("num_hidden_layers"), "full_attention", "sliding_attention")
    c.ignore("max_window_layers")
    uses = c.flag("use_sliding_window", default=used)
    window = c.get("sliding_window")
    if layer_types is None:
        local = uses and window is not None
    else:
        local = "sliding_attention" in layer_types
    if local and c.count("sliding_window") < context:
        raise ConvertError(
            f"{c.what} has sliding_window {window} in a context of {context}, which is not implemented for this family"
        )


def _llama(c: Config) -> dict[str, Any]:
    keys = sizes(c)
    c.choice("hidden_act", *ACTIVATIONS, default="silu")
    no_window(c, keys["context_length"], used=True)
    p = rope.parameters(c)
    if p.get("rope_type", p.get("type")) == "llama3":
        rope.llama3_factors(p, head_width(c))
    width = head_width(c)
    keys |= rope_keys(p, "linear", "yarn", "llama3") | {"rope.dimension_count": width}
    if "head_dim" in c.values:
        keys |= {"attention.key_length": width, "attention.value_length": width}
    return keys


def _llama_extra(c: Config) -> dict[str, np.ndarray]:
    p = rope.parameters(c)
    if p.get("rope_type", p.get("type")) != "llama3":
        return {}
    return {"rope_freqs.weight": rope.llama3_factors(p, head_width(c))}


LLAMA = Source(
    architecture="llama",
    classes=("LlamaForCausalLM", "MistralForCausalLM"),
    metadata=_llama,
    layer={
        **ATTENTION,
        **NORMS,
        **FFN,
        "self_attn.q_proj.weight": To("attn_q.weight", interleaved("num_attention_heads")),
        "self_attn.k_proj.weight": To("attn_k.weight", interleaved("num_key_value_heads")),
    },
    extra=_llama_extra,
)


def _qwen3(c: Config) -> dict[str, Any]:
    keys = sizes(c)
    width = c.count("head_dim", 2, WIDTH, default=128)
    c.choice("hidden_act", *ACTIVATIONS, default="silu")
    no_window(c, keys["context_length"], used=False)
    return (
        keys | rope_keys(rope.parameters(c), "yarn") | {"attention.key_length": width, "attention.value_length": width}
    )


QWEN3 = Source(
    architecture="qwen3",
    classes=("Qwen3ForCausalLM",),
    metadata=_qwen3,
    layer={**ATTENTION, **HEAD_NORMS, **NORMS, **FFN},
)


def _qwen3moe(c: Config) -> dict[str, Any]:
    c.choice("norm_topk_prob", True, default=False)
    c.choice("decoder_sparse_step", 1, default=1)
    c.choice("mlp_only_layers", [], default=[])
    experts = c.count("num_experts", default=c.get("num_local_experts", 128))
    return _qwen3(c) | {
        "expert_count": experts,
        "expert_used_count": c.count("num_experts_per_tok", 1, experts, default=8),
        "expert_feed_forward_length": c.count("moe_intermediate_size", 1, WIDTH, default=768),
    }


QWEN3MOE = Source(
    architecture="qwen3moe",
    classes=("Qwen3MoeForCausalLM",),
    metadata=_qwen3moe,
    layer={**ATTENTION, **HEAD_NORMS, **NORMS, **EXPERTS},
)
