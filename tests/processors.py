"""Logit processors that tests share."""

from __future__ import annotations

import numpy as np


class Partition:
    """A processor with a memory: adds a number to the logits of half the tokens; which half depends on the latest two."""

    def __init__(self, seed: int, strength: float = 2.0):
        self.seed, self.strength, self.latest = seed, strength, (0, 0)

    def process(self, logits, history):
        """Prefer a half."""
        half = np.random.default_rng([self.seed, *self.latest]).random(len(logits)) < 0.5
        logits[half] += np.float32(self.strength)

    def commit(self, token):
        """Remember a token."""
        self.latest = (self.latest[1], int(token))

    def reset(self):
        """Forget both."""
        self.latest = (0, 0)
