"""Turning published models (safetensors, config.json, tokenizer.json) into GGUF files.

Where to read on: `safetensors` (the files), `lazy` (tensors that are computed when they are written), `tensors` (names,
and what happens on the way), `config` and `rope` (keys), one module per group of families (`plain`, `gemma`, `deepseek`,
`qwen35`), `vocabulary` and `rules` (the tokenizer), `writing` (all together).
"""

from .safetensors import SafetensorsFile
from .writing import SOURCES, Converted, convert

__all__ = ["SOURCES", "Converted", "SafetensorsFile", "convert"]
