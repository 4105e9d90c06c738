"""Real families in the sizes of a toy: metadata of a model, and weights that must not be just random.

Their mathematics is compared with other implementations in `tests/unit/test_oracles.py`; here they are what toys are for:
models in several block formats whose texts are run through everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fucina.models import Family, gemma4, qwen35, qwen35moe

SIZES = {
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}
DELTA = {
    "block_count": 4,
    "rope.dimension_count": 8,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "full_attention_interval": 3,  # layers 0, 1 and 3 are delta nets
}
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
LOCAL = np.array([True, True, False, True, True, False])
WINDOWS = {
    "block_count": 6,
    "attention.sliding_window": 20,
    "attention.sliding_window_pattern": LOCAL,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "final_logit_softcapping": 30.0,
}


def rates(name: str, values: np.ndarray) -> np.ndarray:
    """Decays from fast to slow."""
    return -np.geomspace(0.05, 2.0, len(values)) if name.endswith("ssm_a") else values


def scales(name: str, values: np.ndarray) -> np.ndarray:
    """The residual stream is scaled by little, and heads are not: their scores would be too large."""
    if name.endswith("layer_output_scale.weight"):
        return np.full(values.shape, 0.9)
    return values * 0.4 if name.endswith(("attn_q_norm.weight", "ffn_gate_inp.scale")) else values


@dataclass(frozen=True)
class Sized:
    """What a module of a toy has.

    missing : parts of names of tensors that the file does not have, though its family would look for them.
    """

    FAMILY: Family
    KEYS: dict[str, Any]
    initial: Callable[[str, np.ndarray], np.ndarray]
    missing: tuple[str, ...] = ()


FAMILIES = {
    "qwen35": Sized(qwen35.FAMILY, SIZES | DELTA, rates),
    "qwen35moe": Sized(qwen35moe.FAMILY, SIZES | DELTA | EXPERTS | {"expert_shared_feed_forward_length": 32}, rates),
    "gemma4": Sized(
        gemma4.FAMILY,
        SIZES
        | WINDOWS
        | {
            "embedding_length_per_layer_input": 32,
            "attention.shared_kv_layers": 3,
            "feed_forward_length": np.array([96, 96, 96, 160, 160, 160]),
        },
        scales,
        ("rope_freqs",),
    ),
    "gemma4-moe": Sized(
        gemma4.FAMILY,
        SIZES | WINDOWS | EXPERTS | {"attention.head_count_kv": np.array([2, 2, 1, 2, 2, 1])},
        scales,
        ("rope_freqs", "blk.2.attn_v", "blk.5.attn_v"),
    ),
}
