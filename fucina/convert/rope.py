"""How a config describes RoPE, in the words of GGUF.

Older configs have `rope_theta` and `rope_scaling`; newer ones have one object `rope_parameters`, or one for each kind of
layer.
"""

from __future__ import annotations

from math import isclose, log, pi
from typing import Any

import numpy as np

from ..errors import ConvertError
from .config import Config

FACTOR = (1.0, 1e6)
BASE = (1.0, 1e15)


def parameters(c: Config, kind: str = "") -> Config:
    """The parameters of RoPE, `rope_theta` among them where the config has it; kind : of layers, such as full_attention."""
    own = c.part("rope_parameters") or c.part("rope_scaling")
    c.ignore("rope_parameters", "rope_scaling")
    if own is not None and kind and kind in own.values:
        others = {key: value for key, value in own.values.items() if isinstance(value, dict)}
        own = own.part(kind) if set(others) == set(own.values) else own
    values = dict(own.values) if own is not None else {}
    values.setdefault("rope_theta", c.get("rope_theta"))
    return Config(values, own.what if own is not None else c.what)


def scaling(p: Config, *implemented: str) -> dict[str, Any]:
    """Keys of GGUF, without `rope.`, for these parameters: freq_base, and what scales positions.

    implemented : the kinds of scaling that the family has, of "linear", "yarn", "llama3" (of which GGUF has no key).
    """
    keys: dict[str, Any] = {"freq_base": p.number("rope_theta", *BASE, default=10_000.0)}
    name = "rope_type" if p.get("rope_type") is not None else "type"
    p.ignore("rope_type", "type")
    kind = p.choice(name, "default", *implemented, default="default")
    if kind == "linear":
        keys |= {"scaling.type": "linear", "scaling.factor": p.number("factor", *FACTOR)}
    elif kind == "yarn":
        factor = p.number("factor", *FACTOR)
        keys |= {"scaling.type": "yarn", "scaling.factor": factor}
        keys["scaling.original_context_length"] = p.count("original_max_position_embeddings")
        for theirs, ours in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if p.get(theirs) is not None:
                keys[f"scaling.{ours}"] = p.number(theirs, 1e-6, 1e6)
        p.choice("truncate", True, default=True)
        usual = 1 + 0.1 * log(factor)
        for key in ("attention_factor", "attn_factor"):
            if p.get(key) is not None and not isclose(p.number(key, 0, 1e6), usual, rel_tol=1e-6):
                raise ConvertError(
                    f"{p.what} has {key} {p.get(key)}; implemented: {usual:g}, which follows from the factor"
                )
    return keys


def llama3_factors(p: Config, width: int) -> np.ndarray:
    """float32 [width / 2]: what the frequencies of llama 3's RoPE are divided by: slow ones by `factor`, fast ones by 1."""
    factor = p.number("factor", *FACTOR)
    low, high = p.number("low_freq_factor", 1e-6, 1e6), p.number("high_freq_factor", 1e-6, 1e6)
    context = p.count("original_max_position_embeddings")
    if low >= high:
        raise ConvertError(
            f"{p.what} has low_freq_factor {low:g} and high_freq_factor {high:g}; expected a larger second one"
        )
    base = p.number("rope_theta", *BASE, default=10_000.0)
    frequencies = 1 / base ** (np.arange(0, width, 2, dtype=np.float64) / width)
    turns = context * frequencies / (2 * pi)  # in the context of training
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
