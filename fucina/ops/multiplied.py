"""Which formats of weights the native interpreter multiplies, for those who must not import the kernels."""

from __future__ import annotations

from ..gguf import GgmlType
from ..kernels.formats import BY_TYPE


def multiplied(format: GgmlType) -> bool:
    """Whether the native interpreter has a product for this format."""
    return int(format) in BY_TYPE
