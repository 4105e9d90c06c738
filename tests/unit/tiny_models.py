"""Tiny models with random weights in many formats, made in memory: for tests of interpreters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from fucina.cache import Recurrent, State
from fucina.gguf import GgmlType, dequantize, quantize
from fucina.models import Family, LoadedFamily, gemma3, llama
from fucina.ops.native import Native
from fucina.ops.rope import RopeSpec
from fucina.ops.rows import RowBatch

F32 = GgmlType.F32


class ArrayWeight:
    """A weight that lives in memory."""

    def __init__(self, name: str, values: np.ndarray, ggml_type: GgmlType) -> None:
        self.name, self.shape, self.ggml_type = name, values.shape, ggml_type
        rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]).astype(np.float32))
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


def tiny_llama(seed: int = 0, vocab: int = 101) -> LoadedFamily:
    """Two layers, eight query heads on two key heads, a different format for every matrix."""
    config = llama.Config(
        n_layers=2, dim=256, ffn_dim=512, heads=8, kv_heads=2, head_dim=32, vocab_size=vocab, context_length=512,
        eps=1e-5, rope=RopeSpec(32, 1e4, "interleaved"),
    )  # fmt: skip
    formats = [
        {"q": "Q4_1", "k": "Q8_0", "v": "F16", "attn_output": "Q5_0", "gate": "Q4_K", "up": "Q4_0", "down": "Q6_K"},
        {"q": "Q6_K", "k": "Q4_K", "v": "Q4_1", "attn_output": "F32", "gate": "Q4_1", "up": "Q4_1", "down": "Q8_0"},
    ]
    return filled(llama.FAMILY, config, lambda name, layer: formats[layer][name], seed)


def tiny_gemma3(seed: int = 1, vocab: int = 77) -> LoadedFamily:
    """Seven layers, so that one of them sees everything and the others a window of 70 positions."""
    config = gemma3.Config(
        n_layers=7, dim=64, ffn_dim=96, heads=4, kv_heads=1, head_dim=32, vocab_size=vocab, context_length=512,
        eps=1e-6, windows=(70,) * 5 + (0, 70), rope=RopeSpec(32, 1e6, "half"), rope_local=RopeSpec(32, 1e4, "half"),
        scale=32**-0.5,
    )  # fmt: skip
    formats = {
        "q": "Q5_0",
        "k": "Q5_0",
        "v": "Q8_0",
        "attn_output": "Q8_0",
        "gate": "BF16",
        "up": "Q5_0",
        "down": "Q5_0",
        "output": "F32",
    }
    return filled(gemma3.FAMILY, config, lambda name, layer: formats[name], seed)


def filled(family: Family, config: Any, format_of: Callable[[str, int], str], seed: int) -> LoadedFamily:
    """A family with random weights.

    format_of : (field, layer) -> format of a matrix of a layer, or of the output matrix (layer -1); a KeyError there
        ties it to the embedding.
    """
    m = Maker(seed)

    def fill(cls: type, prefix: str, layer: int, **given: Any) -> Any:
        for f in fields(cls):
            if f.name in given:
                continue
            name, shape = prefix + f.metadata["tensor"], [getattr(config, n) for n in f.metadata["shape"]]
            given[f.name] = (
                m.vector(name, *shape) if len(shape) == 1 else m.matrix(name, *shape, format_of(f.name, layer))
            )
        return cls(**given)

    layers = tuple(fill(cls, f"blk.{i}.", i) for i, cls in enumerate(family.layers(config)))
    embedding = m.matrix("token_embd", config.vocab_size, config.dim, "Q8_0")
    try:
        output = m.matrix("output", config.vocab_size, config.dim, format_of("output", -1))
    except KeyError:
        output = embedding
    weights = fill(family.weights, "", -1, layers=layers, embedding=embedding, output=output)
    return LoadedFamily(family.architecture, config, weights, family.forward, tuple(family.parts(config)))


FAMILIES = {"llama": tiny_llama, "gemma3": tiny_gemma3}

# so small that even tiny steps are cut into many chunks
EAGER = {"tiny_ns": 0, "target_ns": 50}


def native(family: str, threads: int, context: int = 512, **options: Any) -> Native:
    """A native interpreter of a tiny model."""
    return Native(FAMILIES[family](), threads=threads, context=context, **{**EAGER, **options})


def new_cache(family: LoadedFamily, capacity: int = 512, dtype: str = "f16") -> State:
    """A state of a tiny model, filled with noise: rows that nobody wrote must not matter."""
    state = State(family.parts, capacity, dtype)
    noise = np.random.default_rng(0)
    for slot, part in enumerate(family.parts):
        for plane in () if isinstance(part, Recurrent) else state.planes(slot):
            if dtype == "q8_0":  # any bytes, and scales that are no number
                plane[...] = noise.integers(0, 256, plane.shape)
                plane[:, ::7] = 255
            else:
                plane[...] = noise.standard_normal(plane.shape) * 100
                plane[:, ::7] = np.nan
    return state


def run(interpreter: Any, entries: list[tuple[State, list[int]]], wanted: np.ndarray | None = None) -> np.ndarray:
    """One pass: the next tokens of several streams; their states go forward.

    wanted : bool per row, which want logits; all without it.
    """
    counts = [len(ids) for _, ids in entries]
    stream = np.repeat(np.arange(len(entries)), counts)
    tokens = np.concatenate([np.asarray(ids, np.int64) for _, ids in entries])
    positions = np.concatenate([state.len + np.arange(len(ids)) for state, ids in entries])
    out_rows = np.arange(len(stream)) if wanted is None else np.flatnonzero(wanted)
    for state, ids in entries:
        state.begin(len(ids))
    result = interpreter.run(RowBatch(tokens, positions, stream, [s for s, _ in entries], out_rows))
    for state, ids in entries:
        state.next_pass()
        state.commit(len(ids))
    return result
