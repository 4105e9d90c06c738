"""Tiny models with random weights in many formats, made in memory: for tests of interpreters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fucina.cache import KvCache
from fucina.gguf import GgmlType, dequantize, quantize
from fucina.models import gemma3, llama
from fucina.ops.native import Native
from fucina.ops.rope import RopeSpec
from fucina.ops.rows import RowBatch

F32 = GgmlType.F32


class ArrayWeight:
    """A weight that lives in memory."""

    def __init__(self, name: str, values: np.ndarray, ggml_type: GgmlType) -> None:
        self.name, self.shape, self.ggml_type = name, values.shape, ggml_type
        rows = np.ascontiguousarray(np.atleast_2d(values).astype(np.float32))
        self.raw = quantize(rows, ggml_type)

    def float32(self) -> np.ndarray:
        return dequantize(self.raw, self.ggml_type).reshape(self.shape)

    def release_pages(self, start: int = 0, stop: int | None = None) -> None:
        pass


class Maker:
    """Random weights, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, cols: int, fmt: str) -> ArrayWeight:
        values = self.rng.standard_normal((rows, cols)) * cols**-0.5
        return ArrayWeight(name, values, GgmlType[fmt])

    def vector(self, name: str, n: int) -> ArrayWeight:
        return ArrayWeight(name, 1 + 0.2 * self.rng.standard_normal(n), F32)


def tiny_llama(seed: int = 0, vocab: int = 101) -> tuple[Callable[..., Any], llama.Config, llama.Weights]:
    """Two layers, eight query heads on two key heads, a different format for every matrix."""
    dim, ffn, heads, kv, d = 256, 512, 8, 2, 32
    m = Maker(seed)
    formats = [
        ("Q4_1", "Q8_0", "F16", "Q5_0", "Q4_K", "Q4_0", "Q6_K"),
        ("Q6_K", "Q4_K", "Q4_1", "F32", "Q4_1", "Q4_1", "Q8_0"),
    ]
    layers = tuple(
        llama.Layer(
            attn_norm=m.vector(f"blk.{i}.attn_norm", dim),
            q=m.matrix(f"blk.{i}.attn_q", heads * d, dim, f[0]),
            k=m.matrix(f"blk.{i}.attn_k", kv * d, dim, f[1]),
            v=m.matrix(f"blk.{i}.attn_v", kv * d, dim, f[2]),
            attn_output=m.matrix(f"blk.{i}.attn_output", dim, heads * d, f[3]),
            ffn_norm=m.vector(f"blk.{i}.ffn_norm", dim),
            gate=m.matrix(f"blk.{i}.ffn_gate", ffn, dim, f[4]),
            up=m.matrix(f"blk.{i}.ffn_up", ffn, dim, f[5]),
            down=m.matrix(f"blk.{i}.ffn_down", dim, ffn, f[6]),
        )
        for i, f in enumerate(formats)
    )
    embedding = m.matrix("token_embd", vocab, dim, "Q8_0")
    output_norm = m.vector("output_norm", dim)
    weights = llama.Weights(embedding, layers, output_norm, embedding)
    config = llama.Config(2, dim, ffn, heads, kv, d, vocab, 512, 1e-5, RopeSpec(d, 1e4, "interleaved"))
    return llama.forward, config, weights


def tiny_gemma3(seed: int = 1, vocab: int = 77) -> tuple[Callable[..., Any], gemma3.Config, gemma3.Weights]:
    """Seven layers, so that one of them sees everything and the others a window of 70 positions."""
    dim, ffn, heads, d, n, window = 64, 96, 4, 32, 7, 70
    m = Maker(seed)
    layers = tuple(
        gemma3.Layer(
            attn_norm=m.vector(f"blk.{i}.attn_norm", dim),
            q=m.matrix(f"blk.{i}.attn_q", heads * d, dim, "Q5_0"),
            k=m.matrix(f"blk.{i}.attn_k", d, dim, "Q5_0"),
            v=m.matrix(f"blk.{i}.attn_v", d, dim, "Q8_0"),
            q_norm=m.vector(f"blk.{i}.attn_q_norm", d),
            k_norm=m.vector(f"blk.{i}.attn_k_norm", d),
            attn_output=m.matrix(f"blk.{i}.attn_output", dim, heads * d, "Q8_0"),
            attn_post_norm=m.vector(f"blk.{i}.post_attention_norm", dim),
            ffn_norm=m.vector(f"blk.{i}.ffn_norm", dim),
            gate=m.matrix(f"blk.{i}.ffn_gate", ffn, dim, "BF16"),
            up=m.matrix(f"blk.{i}.ffn_up", ffn, dim, "Q5_0"),
            down=m.matrix(f"blk.{i}.ffn_down", dim, ffn, "Q5_0"),
            ffn_post_norm=m.vector(f"blk.{i}.post_ffw_norm", dim),
        )
        for i in range(n)
    )
    embedding = m.matrix("token_embd", vocab, dim, "Q8_0")
    output_norm = m.vector("output_norm", dim)
    output = m.matrix("output", vocab, dim, "F32")
    weights = gemma3.Weights(embedding, layers, output_norm, output)
    config = gemma3.Config(
        n_layers=n, dim=dim, ffn_dim=ffn, heads=heads, kv_heads=1, head_dim=d, vocab_size=vocab, context_length=512, eps=1e-6,
        window=window, rope=RopeSpec(d, 1e6, "half"), rope_local=RopeSpec(d, 1e4, "half"), scale=d**-0.5,
    )  # fmt: skip
    return gemma3.forward, config, weights


FAMILIES = {"llama": tiny_llama, "gemma3": tiny_gemma3}

# so small that even tiny steps are cut into many chunks
EAGER = {"tiny_ns": 0, "target_ns": 50}


def native(family: str, threads: int, context: int = 512, **options: Any) -> Native:
    """A native interpreter of a tiny model."""
    forward, config, weights = FAMILIES[family]()
    return Native(forward, config, weights, threads=threads, context=context, **{**EAGER, **options})


def new_cache(config: Any, capacity: int = 512, dtype: str = "f16") -> KvCache:
    """A cache of a tiny model, filled with noise: rows that nobody wrote must not matter."""
    cache = KvCache(config.cache_geometry(), capacity, dtype)
    noise = np.random.default_rng(0)
    for layer in range(len(config.cache_geometry())):
        for plane in cache.planes(layer):
            plane[...] = noise.standard_normal(plane.shape) * 100
            plane[:, ::7] = np.nan
    return cache


def run(
    interpreter: Any, entries: list[tuple[KvCache, list[int]]], order: np.ndarray | None = None, wanted=None
) -> np.ndarray:
    """One pass: the next tokens of several streams, their rows in any order that keeps each stream's own; advances them.

    order : for each row of the pass, the stream it belongs to.
    wanted : bool a row, which want logits; all without it.
    """
    counts = [len(ids) for _, ids in entries]
    stream = np.repeat(np.arange(len(entries)), counts) if order is None else np.asarray(order)
    tokens, positions = np.zeros(len(stream), np.int64), np.zeros(len(stream), np.int64)
    for s, (cache, ids) in enumerate(entries):
        tokens[stream == s] = ids
        positions[stream == s] = cache.len + np.arange(len(ids))
    out_rows = np.arange(len(stream)) if wanted is None else np.flatnonzero(wanted)
    result = interpreter.run(RowBatch(tokens, positions, stream, [c for c, _ in entries], out_rows))
    for cache, ids in entries:
        cache.advance(len(ids))
    return result
