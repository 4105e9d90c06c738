"""The sampling settings of one stream, checked where they are made."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from .. import defaults
from ..errors import InvalidOption, InvalidSamplerOption
from .rng import MASK

_INF = math.inf
# name → (lowest, highest, whether the lowest itself is allowed)
_REAL_RANGES = {
    "temperature": (0.0, _INF, True),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, True),
    "repeat_penalty": (0.0, _INF, False),
    "frequency_penalty": (-_INF, _INF, True),
    "presence_penalty": (-_INF, _INF, True),
}
_COUNT, _WORD = (0, (1 << 63) - 1), (0, MASK)
_INTEGER_RANGES = {"top_k": _COUNT, "repeat_last_n": _COUNT, "seed": _WORD, "position": _WORD}


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
        Of the random draws.

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

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            check = _check_real if field.name in _REAL_RANGES else check_integer
            object.__setattr__(self, field.name, check(field.name, value))

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


def _shown(value: Any) -> str:
    """Return the value as a message quotes it: an integer of thousands of digits is one that Python does not print."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a number of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _check_real(name: str, value: Any) -> float:
    low, high, closed = _REAL_RANGES[name]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidSamplerOption(f"{name} must be a number, got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = _INF
    if not math.isfinite(number):
        raise InvalidSamplerOption(f"{name} must be finite, got {_shown(value)}")
    if not (low <= number <= high) or (number == low and not closed):
        bound = (
            f"greater than {low:g}"
            if not closed
            else f"at least {low:g}"
            if high == _INF
            else f"in [{low:g}, {high:g}]"
        )
        raise InvalidSamplerOption(f"{name} must be {bound}, got {_shown(value)}")
    return number


def check_integer(name: str, value: Any) -> int:
    """Return `value` as an integer in the range of the setting `name`, or raise InvalidSamplerOption."""
    low, high = _INTEGER_RANGES[name]
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidSamplerOption(f"{name} must be an integer, got {_shown(value)}") from None
    if not low <= number <= high:
        raise InvalidSamplerOption(f"{name} must be in [{low}, {high}], got {_shown(value)}")
    return number
