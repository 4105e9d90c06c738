"""The sampling settings of one stream, checked where they are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import checks, defaults
from ..errors import InvalidOption, InvalidSamplerOption
from .rng import MASK

# field: (lowest, highest)
_REALS = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.0, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
    "presence_penalty": (-math.inf, math.inf),
}
_ABOVE = {"repeat_penalty"}  # whose lowest number is not allowed itself
_INTEGERS = {"top_k": (1 << 63) - 1, "repeat_last_n": (1 << 63) - 1, "seed": MASK}  # highest; the lowest is 0


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How a token is chosen from a row of logits.

    Attributes
    ----------
    temperature : float, at least 0
        Logits are divided by it; 0 (the default) is greedy: the highest logit, no random draw.
    top_k : int, at least 0
        Keep the k highest logits; 0 (the default) keeps all.
    top_p : float in [0, 1]
        Keep the smallest most probable set whose probability reaches top_p; 1 (the default) keeps all, 0 keeps one.
    min_p : float in [0, 1]
        Keep tokens at least min_p times as probable as the best; 0 (the default) keeps all.
    repeat_penalty : float, greater than 0
        Logits of tokens seen in the window are divided by it if positive, multiplied otherwise; 1 (the default) is off.
    frequency_penalty, presence_penalty : float, any sign
        Subtracted from the logit of each token in the window: times its count, and once.  0 (the default) is off.
    repeat_last_n : int, at least 0
        The window: how many of the latest tokens the three penalties look at; 0 turns them off.
    seed : int in [0, 2**64)
        Seed of the random draws.

    Floats must be finite, and integers below 2**63 (the seed below 2**64).

    Raises
    ------
    InvalidSamplerOption
        A value is not a number of the right kind, not finite, or out of range; the message names the field.
    """

    temperature: float = defaults.TEMPERATURE
    top_k: int = defaults.TOP_K
    top_p: float = defaults.TOP_P
    min_p: float = defaults.MIN_P
    repeat_penalty: float = defaults.REPEAT_PENALTY
    frequency_penalty: float = defaults.FREQUENCY_PENALTY
    presence_penalty: float = defaults.PRESENCE_PENALTY
    repeat_last_n: int = defaults.REPEAT_LAST_N
    seed: int = defaults.SEED

    def __post_init__(self) -> None:
        for name, (low, high) in _REALS.items():
            above, error = name in _ABOVE, InvalidSamplerOption
            value = checks.real(name, getattr(self, name), low, high, above=above, error=error)
            object.__setattr__(self, name, value)
        for name, highest in _INTEGERS.items():
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 0, highest, InvalidSamplerOption))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "SamplerOptions":
        """Return the options that keyword arguments give; raises InvalidOption for a name that is none of them."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidOption(f"unknown option {name!r}; sampling options are {', '.join(known)}")
        return cls(**given)

    @property
    def greedy(self) -> bool:
        """True if the choice is the highest logit, without a random draw."""
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """True if any penalty changes logits."""
        off = self.repeat_penalty == 1.0 and self.frequency_penalty == 0.0 and self.presence_penalty == 0.0
        return self.repeat_last_n > 0 and not off
