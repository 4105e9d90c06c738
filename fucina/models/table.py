"""Tables of tensors: a dataclass whose fields hold each tensor's name in the file and its shape.

    @table
    class Layer:
        attn_norm: Weight = tensor("attn_norm", "dim")
        q: Weight = tensor("attn_q", "q_dim", "dim")

A dimension is a number or the name of a config's attribute; a matrix is [outputs, inputs].
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

from ..gguf.weights import Weight, WeightFinder

C = TypeVar("C")


def tensor(name: str, *shape: str | int, suffix: str = ".weight", otherwise: str = "", when: str = "") -> Any:
    """A field of a table.

    name : of the tensor in the file, without its prefix (`blk.3.`) and its suffix.
    shape : numbers, or names of the config's attributes.
    suffix : what its name ends with.
    otherwise : the field of this table that is used where the file has no such tensor.
    when : the config's attribute that says whether there is such a tensor; where there is not, the field is None.
    """
    return field(metadata={"tensor": name + suffix, "shape": shape, "otherwise": otherwise, "when": when})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(tensor, field))
def table(cls: type[C]) -> type[C]:
    """Make a class a table."""
    return dataclass(frozen=True, kw_only=True)(cls)  # no slots: tables with slots cannot be combined


def read_table(cls: type, find: WeightFinder, config: Any, prefix: str = "", **given: Any) -> Any:
    """A table with its tensors found in a file, their shapes checked.

    Parameters
    ----------
    cls : the table.
    prefix : in front of every name: `blk.3.`.
    given : fields that are no tensors of the file.

    Raises
    ------
    ModelError : a tensor is missing or has another shape.
    """
    found: dict[str, Weight | None] = {}
    for f in fields(cls):
        if f.name in given:
            continue
        name, otherwise, when = prefix + f.metadata["tensor"], f.metadata["otherwise"], f.metadata["when"]
        if when and not getattr(config, when):
            found[f.name] = None
            continue
        if otherwise and not find.has(name):
            found[f.name] = found[otherwise]
            continue
        shape = (n if isinstance(n, int) else getattr(config, n) for n in f.metadata["shape"])
        found[f.name] = find(name, *shape)
    return cls(**found, **given)
