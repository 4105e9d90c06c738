"""Model families: one file each, always in the order Config, Layer, forward, FAMILY.

Adding a family is one file, one line in `FAMILIES`, and its oracle test.
"""

from __future__ import annotations

from ..errors import UnsupportedArchitecture
from ..gguf import GgufFile
from ..gguf.mapping import shown
from ..ops.vocabulary import LoadedFamily
from . import deepseek2, gemma3, gemma4, llama, qwen3, qwen3moe, qwen35, qwen35moe
from .family import Family

_MODULES = (llama, gemma3, gemma4, qwen3, qwen3moe, qwen35, qwen35moe, deepseek2)
FAMILIES: dict[str, Family] = {module.FAMILY.architecture: module.FAMILY for module in _MODULES}


def read_family(file: GgufFile) -> LoadedFamily:
    """Config and weights of the family that the file names.

    Raises
    ------
    UnsupportedArchitecture : no such family here.
    ModelError, GgufError : metadata or tensors are missing, out of range, not known or do not fit together.
    """
    architecture = file.metadata.str("general.architecture")
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedArchitecture(
            f"architecture {shown(architecture)} is not implemented; available: {', '.join(sorted(FAMILIES))}"
        )
    return family.read(file)


__all__ = ["FAMILIES", "Family", "LoadedFamily", "read_family"]
