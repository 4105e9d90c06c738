"""The kernels by name.  A kernel is declared once: its name, its rule and its parameters.

    @kernel("linear", NAMES, rule="columns", params="w cols x d s out n")
    def linear(k, fmt): ...

`NAMES` are the values that `fmt` may have: "linear.q4_1" is this kernel with fmt = "q4_1".  The rule says what a unit of
its work is (see `record`).  Parameters are int64 words of the stage record, `name:f32` is a float32; the kernel reads
them as `k.p.w`, and whoever fills a record gives them by name (`catalogue.kernel_words`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import UnknownKernel
from . import record as R

RULES = ("columns", "rows", "attention", "groups")


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel."""

    name: str
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A family of kernels: `emit(k, *args)`, where each argument is one of `choices` (or any int)."""

    name: str
    emit: Callable[..., None]
    choices: tuple[tuple[str, ...] | type, ...]
    rule: str
    params: tuple[Param, ...]

    def words(self, values: dict[str, Any]) -> list[Any]:
        """The values in the order of the record's words, those of float32 parameters as floats.

        Raises
        ------
        TypeError
            A parameter is missing, or there is none of that name.
        """
        names = [p.name for p in self.params]
        missing = [n for n in names if n not in values]
        unknown = [n for n in values if n not in names]
        if missing or unknown:
            wrong = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has no {', '.join(unknown)}"] * bool(unknown)
            raise TypeError(f"kernel {self.name} {' and '.join(wrong)}; its parameters: {' '.join(names)}")
        return [float(values[p.name]) if p.is_float else values[p.name] for p in self.params]

    def word(self, name: str) -> int:
        """Index of the record's word that holds a parameter."""
        return R.P0 + [p.name for p in self.params].index(name)


KERNELS: dict[str, Kernel] = {}


def kernel(name: str, *choices: tuple[str, ...] | type, rule: str, params: str) -> Callable:
    """Registers an emitting function under a name."""
    parsed = tuple(Param(word.removesuffix(":f32"), word.endswith(":f32")) for word in params.split())
    if rule not in RULES or len(parsed) > R.WORDS - R.P0 or len({p.name for p in parsed}) < len(parsed):
        raise ValueError(f"kernel {name}: rule {rule!r}, parameters {params!r}")

    def register(emit: Callable[..., None]) -> Callable[..., None]:
        KERNELS[name] = Kernel(name, emit, choices, rule, parsed)
        return emit

    return register


def resolve(name: str) -> tuple[Kernel, tuple]:
    """The kernel family and the arguments that a full name stands for.

    Raises
    ------
    UnknownKernel
        No such family, or arguments that it does not take.
    """
    base, *parts = name.split(".")
    k = KERNELS.get(base)
    if k is None:
        raise UnknownKernel(f"no kernel is called {name!r}; families: {', '.join(sorted(KERNELS))}")
    args = tuple(int(p) if c is int and p.isdigit() else p for p, c in zip(parts, k.choices))
    ok = all(a in c if isinstance(c, tuple) else isinstance(a, int) for a, c in zip(args, k.choices))
    if len(parts) != len(k.choices) or not ok:
        wanted = ".".join([base] + ["|".join(c) if isinstance(c, tuple) else "<int>" for c in k.choices])
        raise UnknownKernel(f"kernel {name!r} does not fit {wanted}")
    return k, args
