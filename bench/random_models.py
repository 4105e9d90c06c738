"""python -m bench.random_models FAMILY FILE: a file of realistic shape with random weights, for measuring speed.

The shapes follow published models, with fewer layers, fewer experts and a vocabulary of 32,000; the formats are those
that a Q4_K_M file has: Q4_K, Q6_K for values and every second down matrix, Q8_0 where a row is no multiple of 256.  Blocks are
random bytes with scales of a sensible size, so that a file of 300 MB takes seconds.  What such a model says means
nothing.  Then:

    fucina bench FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fucina.gguf import GgmlType, Metadata, write_gguf
from fucina.models import FAMILIES
from fucina.models.keys import Keys

VOCAB = 32_000
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {  # as Llama 3.2 1B
        "block_count": 8,
        "embedding_length": 2048,
        "feed_forward_length": 8192,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "rope.dimension_count": 64,
        "rope.freq_base": 500_000.0,
    },
    "qwen3": {  # as Qwen3 0.6B
        "block_count": 20,
        "embedding_length": 1024,
        "feed_forward_length": 3072,
        "attention.head_count": 16,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "rope.freq_base": 1_000_000.0,
    },
    "qwen3moe": {  # as Qwen3 30B-A3B
        "block_count": 4,
        "embedding_length": 2048,
        "feed_forward_length": 6144,
        "attention.head_count": 32,
        "attention.head_count_kv": 4,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "rope.freq_base": 1_000_000.0,
        "expert_count": 32,
        "expert_used_count": 4,
        "expert_feed_forward_length": 768,
    },
    "qwen35": {  # as Qwen3.5 0.8B
        "block_count": 12,
        "embedding_length": 1024,
        "feed_forward_length": 3584,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "rope.dimension_count": 64,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "rope.freq_base": 10_000_000.0,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 16,
        "ssm.inner_size": 2048,
    },
    "qwen35moe": {  # as Qwen3.5 35B-A3B
        "block_count": 4,
        "embedding_length": 2048,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "rope.dimension_count": 64,
        "rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
        "rope.freq_base": 10_000_000.0,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096,
        "expert_count": 32,
        "expert_used_count": 4,
        "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512,
    },
    "gemma4": {  # as Gemma 4 E2B
        "block_count": 10,
        "embedding_length": 1536,
        "feed_forward_length": 6144,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": np.array([True, True, True, True, False] * 2),
        "attention.shared_kv_layers": 5,
        "embedding_length_per_layer_input": 256,
        "rope.dimension_count": 512,
        "rope.dimension_count_swa": 256,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
        "final_logit_softcapping": 30.0,
    },
    "deepseek2": {  # as DeepSeek-V2-Lite, with a bottleneck of queries as its larger sisters have
        "block_count": 6,
        "embedding_length": 2048,
        "feed_forward_length": 5632,
        "attention.head_count": 16,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 768,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
        "rope.freq_base": 10_000.0,
        "leading_dense_block_count": 1,
        "expert_count": 16,
        "expert_used_count": 4,
        "expert_feed_forward_length": 1024,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
    },
}
COMMON = {"context_length": 2048, "attention.layer_norm_rms_epsilon": 1e-6}
SMALL = ("gate_inp", "ssm_conv1d", "ssm_alpha", "ssm_beta")  # matrices that stay in float32
BLOCK = {"Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}  # columns, bytes


def blocks(rng: np.random.Generator, fmt: str, rows: int, cols: int) -> np.ndarray:
    """Random weights in blocks, uint8 [rows, bytes], their spread about 1 / sqrt(cols)."""
    width, size = BLOCK[fmt]
    raw = rng.integers(0, 256, (rows, cols // width, size), np.uint8)
    half = lambda x: np.array([x], np.float16).view(np.uint8)
    spread = 1 / sqrt(cols)
    if fmt == "Q8_0":
        raw[..., :2] = half(spread / 74)
    elif fmt == "Q4_K":
        raw[..., :2], raw[..., 2:4] = half(spread / 160), half(7.5 * spread / 160)
    else:
        raw[..., 208:] = half(spread / 1350)
    return raw.reshape(rows, -1)


def tensor(rng: np.random.Generator, name: str, shape: Sequence[int]) -> tuple[np.ndarray, GgmlType]:
    """A tensor in the format that it has in a Q4_K_M file."""
    if name.endswith("ssm_a"):
        return -np.geomspace(0.05, 4, shape[0]).astype(np.float32), GgmlType.F32
    if len(shape) == 1 or any(part in name for part in SMALL):
        values = 1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else rng.standard_normal(shape) / 32
        return values.astype(np.float32), GgmlType.F32
    *stack, rows, cols = shape
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    fine = name == "output.weight" or "attn_v." in name or ("ffn_down" in name and layer % 2)
    fmt = "Q8_0" if cols % 256 else "Q6_K" if fine else "Q4_K"
    raw = blocks(rng, fmt, int(np.prod(stack, dtype=np.int64)) * rows, cols)
    return raw.reshape(*stack, rows, -1), GgmlType[fmt]


class _NoFile:
    """Stands in for a file's tensors while the sizes are read."""

    def rows(self, name: str) -> int:
        return VOCAB

    def has(self, name: str) -> bool:
        return name.endswith(("attn_v.weight", "layer_output_scale.weight"))

    def skip(self, prefix: str) -> None:
        pass


def write(family: str, path: Path) -> None:
    """Write the file of a family."""
    keys = {f"{family}.{key}": value for key, value in (COMMON | SHAPES[family]).items()}
    metadata: dict[str, Any] = {"general.architecture": family, **keys}
    config = FAMILIES[family].config.read(Keys(Metadata.from_dict(metadata), family), _NoFile())  # type: ignore[arg-type]
    rng, tensors = np.random.default_rng(0), {}
    tables = {f"blk.{i}.": (cls, config.layer(i)) for i, cls in enumerate(FAMILIES[family].layers(config))}
    for prefix, (cls, sizes) in (tables | {"": (FAMILIES[family].weights, config)}).items():
        for f in fields(cls):
            if "tensor" in f.metadata and (not f.metadata["when"] or getattr(sizes, f.metadata["when"])):
                shape = [n if isinstance(n, int) else getattr(sizes, n) for n in f.metadata["shape"]]
                name = prefix + f.metadata["tensor"]
                tensors[name] = tensor(rng, name, shape)
    if family == "gemma4":  # a quarter of the pairs of global heads are turned
        pairs = config.rope.dims // 2
        tensors["rope_freqs.weight"] = (
            np.where(np.arange(pairs) < pairs // 4, 1, 1e30).astype(np.float32),
            GgmlType.F32,
        )
    write_gguf(path, metadata | vocabulary(family), tensors)


def vocabulary(family: str) -> dict[str, Any]:
    """A tokenizer of single bytes and of words that no merge makes."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*letters, *(f"w{i}" for i in range(VOCAB - 256))],
        "tokenizer.ggml.token_type": np.ones(VOCAB, np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": np.uint32(VOCAB - 1),
        "general.name": f"random {family}",
    }


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.random_models", description=__doc__.split("\n")[0])
    p.add_argument("family", choices=list(SHAPES))
    p.add_argument("file", type=Path)
    a = p.parse_args(argv)
    write(a.family, a.file)
    print(f"{a.file}: {a.file.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
