"""Every kernel there is: found by name, its record filled by the names of its parameters."""

from __future__ import annotations

from typing import Any

from . import attention, cache_rows, delta, embed, experts, linear, pack, quantise, rowops  # noqa: F401  (they register kernels)
from .registry import KERNELS, Kernel, resolve


def find(name: str) -> tuple[Kernel, tuple]:
    """The kernel family and arguments of a full name, e.g. "linear.q4_1"; UnknownKernel if there is none."""
    return resolve(name)


def kernel_words(name: str, **values: Any) -> list[Any]:
    """Parameters of a kernel, given by name, in the order of its record's words from P0 on.

    Raises
    ------
    UnknownKernel
    TypeError
        A parameter is missing, or the kernel has none of that name.
    """
    return find(name)[0].words(values)


def word(name: str, param: str) -> int:
    """Index of the word of a record of kernel family `name` that holds a parameter."""
    return KERNELS[name].word(param)


def describe() -> str:
    """A table of all kernels: name, rule, parameters, and what it does."""
    lines = ["| kernel | rule | parameters | |", "|---|---|---|---|"]
    for k in sorted(KERNELS.values(), key=lambda k: k.name):
        names = k.emit.__code__.co_varnames[1 : 1 + len(k.choices)]
        parts = [_choices(n, c) for n, c in zip(names, k.choices, strict=True)]
        params = " ".join(f"{p.name}:f32" if p.is_float else p.name for p in k.params)
        does = " ".join((k.emit.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {'.'.join([k.name, *parts])} | {k.rule} | {params} | {does} |")
    return "\n".join(lines)


def _choices(name: str, choices: tuple[str, ...] | type) -> str:
    """What may stand at this place of a kernel's full name: one of two words, or else what it is."""
    return "|".join(choices) if isinstance(choices, tuple) and len(choices) <= 2 else name
