"""A watermark: a mark in the choice of words that only who has the key can see (Kirchenbauer et al. 2023).

For each place, a pseudorandom part of the vocabulary is *green*, chosen by the key and the tokens just before.  Green
logits are raised a little.  A text written so holds more green tokens than chance explains, which `watermark_score`
counts; no model is needed for that.  (https://arxiv.org/abs/2301.10226)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import InvalidSamplerOption
from .rng import MASK, at, bits


class Watermark:
    """A logit processor that raises the logits of green tokens.

    Parameters
    ----------
    key : int
        In [0, 2**64); who knows it can see the mark, and remove it.
    bias : float
        Added to green logits; finite and not negative.
    green : float
        Part of the vocabulary that is green, in (0, 1).
    context : int
        How many tokens before a place decide which tokens are green there, at least 1.

    Raises
    ------
    InvalidSamplerOption
        A value is out of its range; the message names it.

    Notes
    -----
    It remembers nothing: which tokens are green follows from the history, so it may stand in a batch and under
    speculation like any other processor.
    """

    __slots__ = ("bias", "context", "green", "key")

    def __init__(self, key: int, bias: float = 2.0, green: float = 0.25, context: int = 1):
        for name, value, low in (("key", key, 0), ("context", context, 1)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= MASK:
                raise InvalidSamplerOption(f"{name} must be an integer in [{low}, {MASK}], got {value!r}")
        if not (isinstance(bias, (int, float)) and math.isfinite(bias) and bias >= 0):
            raise InvalidSamplerOption(f"bias must be finite and not negative, got {bias!r}")
        if not (isinstance(green, (int, float)) and 0.0 < green < 1.0):
            raise InvalidSamplerOption(f"green must be between 0 and 1, got {green!r}")
        self.key, self.bias, self.green, self.context = int(key), float(bias), float(green), int(context)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Raise the green logits; where fewer than `context` tokens stand before, nothing is green."""
        if len(history) >= self.context:
            logits[self.greens(history, len(logits))] += np.float32(self.bias)

    def commit(self, token: int) -> None:
        """Nothing to remember."""

    def reset(self) -> None:
        """Nothing to forget."""

    def greens(self, history: Sequence[int], vocab: int) -> np.ndarray:
        """Return bool [vocab]: which tokens are green behind `history`."""
        return bits(self._seed(history), 0, vocab) < np.uint64(self._bound)

    def is_green(self, history: Sequence[int], token: int) -> bool:
        """Whether one token is green behind `history`."""
        return at(self._seed(history), int(token)) < self._bound

    @property
    def _bound(self) -> int:
        return min(int(self.green * 2.0**64), MASK)

    def _seed(self, history: Sequence[int]) -> int:
        seed = self.key
        for token in history[len(history) - self.context :]:
            seed = at(seed, int(token))
        return seed


def watermark_score(tokens: Sequence[int], mark: Watermark) -> float:
    """Return how many standard deviations more green tokens a text holds than chance explains.

    Parameters
    ----------
    tokens : ids of the text; the first `mark.context` cannot be judged.
    mark : the watermark to look for.

    Returns
    -------
    float
        About 0 for other texts; above 4 is no chance (p < 0.00004).  Equal (context, token) groups count once, since a
        repeated phrase would otherwise count as new evidence.  0.0 where nothing can be judged.
    """
    width = mark.context
    groups = {tuple(map(int, tokens[i - width : i + 1])) for i in range(width, len(tokens))}
    if not groups:
        return 0.0
    hits = sum(mark.is_green(group[:-1], group[-1]) for group in groups)
    return (hits - mark.green * len(groups)) / math.sqrt(len(groups) * mark.green * (1.0 - mark.green))
