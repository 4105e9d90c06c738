"""Toy models whose states go into files: what the tests of `fucina.cache.persist` share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fucina.cache import State
from tests.state_models import KINDS, PARTS, extend, toy_state

__all__ = ["KINDS", "PARTS", "TOKENS", "ToyModel", "filled"]

TOKENS = [int(t) for t in np.random.default_rng(12).integers(0, 1000, 300)]


class ToyTokenizer:
    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint


class ToyModel:
    """What the files need of a model; its rows are those of `tests.state_models`."""

    def __init__(
        self, parts: Sequence = PARTS, dtype: str = "f32", fingerprint: bytes = b"toy", tokenizer: bytes = b""
    ):
        self.parts, self.dtype, self.fingerprint = parts, dtype, fingerprint
        self.tokenizer = ToyTokenizer(tokenizer) if tokenizer else None

    def new_cache(self, capacity: int | None = None) -> State:
        return toy_state(self.parts, capacity or 300, self.dtype, self.fingerprint)


def filled(model: ToyModel, rows: int, tokens: Sequence[int] = TOKENS) -> State:
    """A state of the first tokens, computed in a few calls."""
    state = model.new_cache()
    for end in sorted({rows // 2, rows - 1, rows} - {0}):
        extend(state, tokens[:end])
    return state
