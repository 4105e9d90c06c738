"""Turning published models (safetensors, config.json, tokenizer.json) into GGUF files.

Where to read on: `safetensors` (the files), `lazy` (tensors that are computed when they are written), `tensors` (names,
and what happens on the way), `config` and `rope` (keys), `writing` (all together).  Each group of families has a module:
`plain`, `gemma`, `deepseek`, `qwen35`.  The tokenizer is made in `vocabulary` and `rules`.
"""

from .safetensors import SafetensorsFile
from .writing import SOURCES, Converted, convert

__all__ = ["SOURCES", "Converted", "SafetensorsFile", "convert"]
