"""Sampling settings to chat with a model: those in its file, or those in the registry of known models.

A GGUF may carry them as `general.sampling.…` (llama.cpp's converter takes them from the model's
`generation_config.json`).  Chat programs start from them; the library's own default stays greedy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSamplerOption
from ..known_models import entry_of_file
from .options import SamplerOptions

if TYPE_CHECKING:
    from ..gguf import Metadata

PREFIX = "general.sampling."
KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
    "penalty_freq": "frequency_penalty",
    "penalty_present": "presence_penalty",
}
"""Key of the file, after the prefix, and the field of `SamplerOptions` that it means."""

ALL_TOKENS = 1 << 31
"""A window of penalties that is longer than any text."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """Fields of `SamplerOptions`, and where they come from, for people."""

    options: Mapping[str, Any]
    source: str


def recommended_sampling(path: Path, metadata: Metadata) -> Recommended | None:
    """Return what the file says, else what is known of this model, else None.

    Warns
    -----
    UserWarning
        A value in the file is out of its range; it is ignored.
    """
    options = {}
    for key, field in KEYS.items():
        if PREFIX + key in metadata:
            value = metadata[PREFIX + key]
            try:
                options[field] = _checked(field, value)
            except InvalidSamplerOption as error:
                warnings.warn(f"{path.name}: metadata key {PREFIX}{key} is ignored: {error}", stacklevel=2)
    if options:
        return Recommended(options, "by its file")
    entry = entry_of_file(path)
    return Recommended(dict(entry.sampling), f"for {entry.name}") if entry is not None and entry.sampling else None


def _checked(field: str, value: Any) -> Any:
    """The value as `SamplerOptions` takes it: f32 without its rounding noise, whole numbers whatever their type."""
    if field in ("top_k", "repeat_last_n"):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if field == "repeat_last_n" and value == -1:  # in llama.cpp: all of the text
            value = ALL_TOKENS
    elif isinstance(value, float):
        value = float(f"{value:.7g}")
    return getattr(SamplerOptions(**{field: value}), field)
