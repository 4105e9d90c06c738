"""Reading and writing GGUF, the file format of the models that this engine runs.

A GGUF file is a header (metadata: what model this is, its vocabulary, its chat template), a table of tensors (name,
shape, number format, where), and the tensors' bytes. This package opens such a file without reading it (`GgufFile`),
turns the bytes of a tensor into numbers (`dequantize`), and back (`quantize`, `write_gguf`).

Where to read on: `parse` (the file, field by field), `quants` and `kquants` (number formats, byte by byte), `metadata`
(typed getters), `split` (models in several files), `mapping` (memory-mapped files), `limits` (bounds of every number),
`encode` (types of plain values), `writer`.
"""

from ..errors import BlockFormatError, GgufError, GgufIncomplete, GgufOpenError
from .encode import Typed
from .metadata import Metadata
from .quants import WRITABLE, dequantize, quantize
from .reader import GgufFile, TensorInfo
from .requantize import quantize_file
from .types import READABLE, SUPPORTED, GgmlType, ValueType, block_shape, row_bytes
from .writer import write_gguf

__all__ = [
    "READABLE",
    "SUPPORTED",
    "WRITABLE",
    "BlockFormatError",
    "GgmlType",
    "GgufError",
    "GgufFile",
    "GgufIncomplete",
    "GgufOpenError",
    "Metadata",
    "TensorInfo",
    "Typed",
    "ValueType",
    "block_shape",
    "dequantize",
    "quantize",
    "quantize_file",
    "row_bytes",
    "write_gguf",
]
