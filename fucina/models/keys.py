"""Metadata of a model, read so that no key is overlooked.

A file describes its tensors in keys such as `llama.attention.head_count`.  A key that is not read may still change the
mathematics, and then the model would run and be wrong.  So every key of the architecture must have been read here with
its range, or be known to change nothing; any other is refused with its value.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from ..errors import ModelError
from ..gguf import Metadata
from ..gguf.mapping import shown

WIDTH = 1 << 20  # longest vector, or side of a matrix
REQUIRED: Any = object()

# Keys that change nothing in any family here.
IRRELEVANT = {
    "rope.scaling.finetuned": "tells how the model was made",
    "rope.scaling.original_context_length": "belongs to YaRN, whose family reads it",
    "rope.scaling.yarn_beta_fast": "belongs to YaRN, whose family reads it",
    "rope.scaling.yarn_beta_slow": "belongs to YaRN, whose family reads it",
    "tensor_data_layout": "tells where the file came from; the order of rows is that of every file of the family",
    "attention.layer_norm_epsilon": "belongs to LayerNorm, which the families here do not have",
}
# Keys of mathematics that is not implemented, with the value that switches it off.
SWITCHED_OFF: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_shared_count": 0,
    "pooling_type": 0,
    "rope.scaling.alpha": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "use_parallel_residual": False,
}


class Keys:
    """The keys of one architecture in a file's metadata, each read once with its range.

    Every getter takes the key without the architecture's prefix.  A missing key without default and a value of the
    wrong type are GgufErrors of `Metadata`; a value out of range is a ModelError that names key, value and range.
    """

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self._metadata, self.architecture = metadata, architecture
        self._known: set[str] = set()

    def _name(self, key: str) -> str:
        self._known.add(key)
        return f"{self.architecture}.{key}"

    def count(self, key: str, low: int, high: int, default: Any = REQUIRED) -> int:
        """An integer in [low, high].  One value per layer is accepted where all are equal."""
        name = self._name(key)
        if isinstance(self._metadata.get(name), np.ndarray):
            values = self._metadata.ints(name)
            if len(set(values.tolist())) != 1:
                raise ModelError(f"{name} is [{_shown(values)}]; implemented: one value, the same for all layers")
            value = int(values[0])
        else:
            value = self._metadata.int(name, **_default(default))
        if not low <= value <= high:
            raise ModelError(f"{name} is {value}, expected {low}" + (f" to {high}" if high > low else ""))
        return value

    def number(self, key: str, low: float, high: float, default: Any = REQUIRED) -> float:
        """A finite float in [low, high]."""
        name = self._name(key)
        value = self._metadata.float(name, **_default(default))
        if not (isfinite(value) and low <= value <= high):
            raise ModelError(f"{name} is {value}, expected {low:g} to {high:g}")
        return value

    def flags(self, key: str, n: int) -> list[bool] | None:
        """One boolean per layer, or None where the file holds something else or nothing."""
        name = self._name(key)
        value = self._metadata.get(name)
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_:
            return None
        if len(value) != n:
            raise ModelError(f"{name} holds {len(value)} values, expected {n}, one per layer")
        return value.tolist()

    def counts(self, key: str, n: int, low: int, high: int, default: Any = REQUIRED) -> list[int]:
        """An integer in [low, high] per layer; a single one is that of all n layers."""
        if not isinstance(self._metadata.get(self._name(key)), np.ndarray):
            return [self.count(key, low, high, default)] * n
        values = self.integers(key, low, high)
        if len(values) != n:
            raise ModelError(f"{self._name(key)} holds {len(values)} values, expected {n}, one per layer")
        return values

    def integers(self, key: str, low: int, high: int, default: Any = ()) -> list[int]:
        """A list of integers in [low, high] each."""
        name = self._name(key)
        if self._metadata.get(name) is None:
            return list(default)
        values = self._metadata.ints(name).tolist()
        if wrong := [v for v in values if not low <= v <= high]:
            raise ModelError(f"{name} is {wrong[0]} in one place, expected {low} to {high}")
        return values

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        return self._metadata.bool(self._name(key), default=default)

    def choice(self, key: str, *implemented: str, default: Any = REQUIRED) -> str:
        """One of the texts that are implemented."""
        name = self._name(key)
        value = self._metadata.str(name, **_default(default))
        if value not in implemented:
            raise ModelError(f"{name} is {shown(value)}; implemented: {', '.join(implemented)}")
        return value

    def check_all_known(self) -> None:
        """ModelError if the file holds a key of this architecture that may change the mathematics and was not read."""
        prefix = f"{self.architecture}."
        for name in map(str, self._metadata):
            key = name.removeprefix(prefix)
            if key == name or key in self._known or key in IRRELEVANT:
                continue
            if key not in SWITCHED_OFF:
                raise ModelError(
                    f"{name} ({self._metadata.describe(name)}) is not known: it may change what is computed"
                )
            value, off = self._metadata[name], SWITCHED_OFF[key]
            if not isinstance(value, (int, float)) or isinstance(value, bool) != isinstance(off, bool) or value != off:
                raise ModelError(f"{name} is {self._metadata.describe(name)}; implemented: {off}")


def _shown(values: np.ndarray) -> str:
    return ", ".join(map(str, values[:8])) + (" …" if len(values) > 8 else "")


def _default(value: Any) -> dict[str, Any]:
    return {} if value is REQUIRED else {"default": value}
