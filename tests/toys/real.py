"""The families of `fucina.models` as small files with random weights: one entry of metadata for each.

Whoever adds a family adds its entry here; `tests/every_family.py` then asks everything of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fucina.models import FAMILIES

COMMON: dict[str, Any] = {
    "block_count": 2,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
DELTA: dict[str, Any] = {
    "block_count": 4,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.dimension_count": 8,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "full_attention_interval": 3,  # layers 0, 1 and 3 are delta nets
}
KEYS: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "gemma3": COMMON | {"block_count": 4, "attention.sliding_window": 33, "attention.sliding_window_pattern": 2},
    "gemma4": COMMON
    | EXPERTS
    | {
        "block_count": 6,
        "feed_forward_length": np.array([96, 96, 96, 160, 160, 160]),
        "attention.head_count_kv": np.array([2, 2, 1, 2, 2, 1]),
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.sliding_window": 20,
        "attention.sliding_window_pattern": np.array([True, True, False] * 2),
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": 32,
        "final_logit_softcapping": 30.0,
    },
    "qwen3": COMMON | {"attention.key_length": 32, "attention.value_length": 32},
    "qwen3moe": COMMON | EXPERTS | {"attention.key_length": 32, "attention.value_length": 32},
    "qwen35": COMMON | DELTA,
    "qwen35moe": COMMON | DELTA | EXPERTS | {"expert_shared_feed_forward_length": 32},
    "deepseek2": COMMON
    | EXPERTS
    | {
        "block_count": 3,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 32,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 32,
        "rope.dimension_count": 16,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 256,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "leading_dense_block_count": 1,
        "expert_shared_count": 2,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    },
}
# Tensors that a file may lack, and these have.
OPTIONAL = {
    "deepseek2": ("blk.1.exp_probs_b.bias",),
    "gemma4": (  # layer 0 has no experts, layer 2 uses its keys as values, layers 4 and 5 store nothing
        *(f"blk.{i}.layer_output_scale.weight" for i in range(5)),
        *(f"blk.{i}.attn_v.weight" for i in (0, 1, 3)),
        *(f"blk.{i}.ffn_gate_inp.weight" for i in range(1, 6)),
        *(f"blk.{i}.ffn_gate_up_exps.weight" for i in (1, 2, 3)),
    ),
}
# Weights that must not be just random: name ends with -> values of random numbers.
INITIAL: dict[str, Any] = {
    "exp_probs_b.bias": lambda values: 0.1 * (values - 1),
    "ssm_a": lambda values: -np.geomspace(0.05, 2.0, len(values)),  # decays from slow to fast
    "layer_output_scale.weight": lambda values: 0.9 + 0 * values,
}


def initial(name: str, values: np.ndarray) -> np.ndarray:
    """The weights of a tensor."""
    return next((f(values) for end, f in INITIAL.items() if name.endswith(end)), values)


REAL = {
    name: SimpleNamespace(FAMILY=FAMILIES[name], KEYS=keys, OPTIONAL=OPTIONAL.get(name, ()), initial=initial)
    for name, keys in KEYS.items()
}
