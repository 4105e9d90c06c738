"""Model families: one file each, always in the order Config, Weights, forward.

Adding a family is one file, one line in `FAMILIES`, and its oracle test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..errors import UnsupportedArchitecture
from ..gguf import GgufFile
from . import gemma3, llama
from .weights import Weight, WeightFinder

FAMILIES: dict[str, ModuleType] = {"llama": llama, "gemma3": gemma3}


@dataclass(frozen=True, slots=True)
class LoadedFamily:
    """A file understood: its family's config, weights and forward."""

    architecture: str
    config: Any
    weights: Any
    forward: Callable[..., Any]


def read_family(file: GgufFile) -> LoadedFamily:
    """Config and weights of the family that the file names.

    Raises
    ------
    UnsupportedArchitecture : no such family here.
    ModelError, GgufError : metadata or tensors are missing or do not fit together.
    """
    arch = file.metadata.str("general.architecture")
    family = FAMILIES.get(arch)
    if family is None:
        raise UnsupportedArchitecture(
            f"architecture {arch!r} is not implemented; available: {', '.join(sorted(FAMILIES))}"
        )
    find = WeightFinder(file)
    config = family.Config.from_file(file, find)
    weights = family.Weights.from_file(find, config)
    find.check_all_used()
    return LoadedFamily(arch, config, weights, family.forward)


__all__ = ["FAMILIES", "LoadedFamily", "Weight", "WeightFinder", "read_family"]
