"""Toy families as real files: one for each kind of state and op that the real families here do not use.

    recurrent   a matrix per head instead of a cache (gated delta rule), beside a layer of attention
    latent      one small row per position that serves all heads
    ring        windows of 20 and 33 positions in rings of 192 rows, beside a layer that sees all; shared keys, values
    routed      two of eight experts per row; its embedding has six rows more than there are tokens

The families of `fucina.models` are here too, by their names, as files of the same kind (`tests/toys/real.py`).

`toy_model(kind, backend)` loads one; `toy_family` reads one for an interpreter.  All have the vocabulary of
`tests/chat_model.py`: bytes, two control tokens, a chat template.  Files are written once per process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import fucina
from fucina.gguf import GgmlType, GgufFile, Metadata, dequantize, write_gguf
from fucina.models import FAMILIES, LoadedFamily
from fucina.models.keys import Keys

from .chat_model import chat_vocabulary
from .models import TINY
from .toys import latent, recurrent, ring, routed
from .toys.real import REAL

KINDS: dict[str, ModuleType] = {"recurrent": recurrent, "latent": latent, "ring": ring, "routed": routed}
MODULES: dict[str, Any] = {**KINDS, **REAL}
FORMATS = ("f32", "quantised")
VOCAB = 258
SEEDS = {"toy-recurrent": 23, "toy-latent": 26, "toy-ring": 24, "toy-routed": 22}  # whose texts wander and come back
ROWS = {"routed": VOCAB + 6}  # rows of the embedding, where they are more than the tokens


@contextmanager
def registered() -> Iterator[None]:
    """The toy families are known to `fucina.load`."""
    for module in KINDS.values():
        FAMILIES[module.FAMILY.architecture] = module.FAMILY
    try:
        yield
    finally:
        for module in KINDS.values():
            del FAMILIES[module.FAMILY.architecture]


def toy_model(kind: str, backend: str = "native", fmt: str = "f32", **options: Any) -> fucina.Model:
    """A toy, loaded as any model; `options` are those of `fucina.load`."""
    with registered():
        return fucina.load(toy_path(kind, fmt), backend=backend, **options)


def toy_family(kind: str, fmt: str = "f32") -> LoadedFamily:
    """A toy, read for an interpreter."""
    return MODULES[kind].FAMILY.read(GgufFile(toy_path(kind, fmt)))


def toy_oracle(kind: str, fmt: str, tokens: list[int]) -> np.ndarray:
    """Logits of every position by a plain loop that shares nothing with the engine: float64 [len(tokens), rows]."""
    return KINDS[kind].oracle(_float64(kind, fmt), tokens)


@cache
def toy_path(kind: str, fmt: str = "f32") -> Path:
    """The toy's file: all F32, or matrices in several block formats."""
    module = MODULES[kind]
    family, rows = module.FAMILY, ROWS.get(kind, VOCAB)
    metadata: dict[str, Any] = {"general.architecture": family.architecture}
    metadata |= {f"{family.architecture}.{key}": value for key, value in module.KEYS.items()}
    config = family.config.read(
        Keys(Metadata.from_dict(metadata), family.architecture), _NoFile(rows, getattr(module, "OPTIONAL", ()))
    )
    metadata |= chat_vocabulary(GgufFile(TINY / "llama.gguf").metadata)
    rare = [i for i, token in enumerate(metadata["tokenizer.ggml.tokens"]) if len(token) > 1]
    path = _folder() / f"{kind}-{fmt}.gguf"
    write_gguf(path, metadata, _tensors(module, config, fmt, rare))
    return path


def _tensors(module: Any, config: Any, fmt: str, rare: list[int]) -> dict[str, tuple[np.ndarray, GgmlType]]:
    """Random weights, the same each time, such that a greedy text wanders and is mostly printable (not `rare`)."""
    rng, found = np.random.default_rng(SEEDS.get(module.FAMILY.architecture, 1)), {}
    tables = {f"blk.{i}.": (cls, config.layer(i)) for i, cls in enumerate(module.FAMILY.layers(config))}
    for prefix, (cls, sizes) in (tables | {"": (module.FAMILY.weights, config)}).items():
        for f in fields(cls):
            if "tensor" not in f.metadata or (f.metadata["when"] and not getattr(sizes, f.metadata["when"])):
                continue
            name = prefix + f.metadata["tensor"]
            shape = [n if isinstance(n, int) else getattr(sizes, n) for n in f.metadata["shape"]]
            values = rng.standard_normal(shape)
            values = 1 + 0.2 * values if len(shape) == 1 else values * 1.5 / np.sqrt(shape[-1])
            found[name] = getattr(module, "initial", lambda name, values: values)(name, values)
    embedding = rng.standard_normal(found["token_embd.weight"].shape)
    found["token_embd.weight"] = embedding
    # After each token another one is likely, so that a text goes on; the layers decide against it often enough.
    order = rng.permutation(VOCAB)
    output = 0.6 * found["output.weight"]
    output[order] += 0.05 * embedding[np.roll(order, 1)]
    output[rare] *= 0.5
    output[VOCAB:] *= 4  # rows without a token would often win
    found["output.weight"] = output
    return {name: (values.astype(np.float32), _format(name, values, fmt)) for name, values in found.items()}


def _format(name: str, values: np.ndarray, fmt: str) -> GgmlType:
    if fmt == "f32" or values.ndim == 1 or values.shape[-1] % 32:
        return GgmlType.F32
    if name in ("token_embd.weight", "output.weight"):
        return GgmlType.Q8_0
    return (GgmlType.Q4_1, GgmlType.Q8_0, GgmlType.Q5_0, GgmlType.Q4_0, GgmlType.F16)[sum(name.encode()) % 5]


@cache
def _float64(kind: str, fmt: str) -> dict[str, np.ndarray]:
    tensors = GgufFile(toy_path(kind, fmt)).tensors.values()
    return {
        t.name.removesuffix(".weight"): dequantize(t.rows(), t.ggml_type).reshape(t.shape).astype(np.float64)
        for t in tensors
    }


class _NoFile:
    """Stands in for a file's tensors while the sizes of a toy are read."""

    def __init__(self, rows: int, names: tuple[str, ...] = ()) -> None:
        self._rows, self._names = rows, names

    def rows(self, name: str) -> int:
        return self._rows

    def has(self, name: str) -> bool:
        return name in self._names

    def skip(self, prefix: str) -> None:
        pass


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fucina-toys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
