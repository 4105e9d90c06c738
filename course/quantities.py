"""Numbers with units in plain words, and how far two of them are apart."""

from __future__ import annotations


def with_unit(value: float, unit: str) -> str:
    """A number with its unit: 5450 tokens, 12.5%."""
    value = float(value)
    whole = abs(value) < 1e15 and (value.is_integer() or abs(value) >= 1000)
    text = f"{value:.0f}" if whole else f"{value:.4g}"
    if text == "1":
        unit = one(unit)
    return text + (unit if unit == "%" else f" {unit}" if unit else "")


def one(unit: str) -> str:
    """A unit after the number 1: token, verify, pass per token."""
    word, space, rest = unit.partition(" ")
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("s", "")):
        if word.endswith(ending) and len(word) > 3 and not word.endswith("ss") and word.isalpha():
            return word.removesuffix(ending) + instead + space + rest
    return unit


def distance(guess: float, value: float, unit: str) -> str:
    """How far the truth is from a guess: as a factor where it is a large one, else as a difference."""
    low, high = sorted((abs(guess), abs(value)))
    factors = unit.partition(" ")[0] == "times"  # "1.2 times more" could mean two things
    if guess * value > 0 and high >= (1.1 if factors else 1.5) * low:
        times = f"{short(high / low)} times as much"
        return times if abs(value) > abs(guess) else f"you said {times}"
    apart = with_unit(abs(value - guess), "points" if unit == "%" else "" if factors else unit)
    if unit == "%":
        apart = apart.replace("point", "percentage point")
    difference = f"{apart} {'more' if value > guess else 'less'}"
    if guess * value > 0 and high <= 1.1 * low:
        return f"close, {difference}"
    return difference


def short(value: float) -> str:
    """A number of three digits or so: 7.8, 42, 1234."""
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
