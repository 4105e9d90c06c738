"""Writing GGUF files (version 3): metadata in, tensors in, one file out, or none at all.

The layout is described in `fucina.gguf.parse`.  The file is written under a temporary name in the same folder and
renamed when it is complete, so that no reader ever finds half a model.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .. import checks
from ..errors import BlockFormatError, GgufError
from ..replacing import replacing
from .encode import encode_metadata, length_and_bytes, utf8
from .limits import MAX_DIMS, MAX_HEADER, MAX_NAME, alignment_of
from .mapping import shown
from .metadata import Metadata
from .quants import WRITABLE, dequantize, quantize
from .reader import TensorInfo
from .split import is_part
from .types import SUPPORTED, GgmlType, block_shape, ggml_type, plain_dtype, row_bytes

PIECE = 1 << 17  # weights that are quantised at a time: the arrays of it should stay in a cache


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor that is computed while it is written: rows(start, stop) -> float32 [stop - start, last axis].

    Rows are counted over all axes but the last.  Threads call `rows` at the same time.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    format: GgmlType
    dims: tuple[int, ...]  # NumPy order
    nbytes: int
    array: np.ndarray
    source: TensorInfo | None = None  # whose bytes `array` is, where they are in another format
    rows: Callable[[int, int], np.ndarray] | None = None  # what gives the numbers, where `array` has only their shape


def _tensor(name: str, value: Any) -> _Tensor:
    """What is to be written for an entry of `write_gguf`'s tensors."""
    info, format = value if isinstance(value, tuple) else (value, None)
    if isinstance(info, Computed):
        return replace(_of_array(name, np.broadcast_to(np.float32(0), info.shape), format), rows=info.rows)
    if not isinstance(info, TensorInfo):
        return _of_array(name, info, format)
    raw = info.data.reshape(*info.shape[:-1], info.row_bytes)
    t = info.ggml_type if format is None else ggml_type(format)
    if t == info.ggml_type:
        return _of_array(name, raw, t)
    if info.ggml_type not in SUPPORTED or t not in WRITABLE:
        raise BlockFormatError(f"tensor {shown(name)}: {info.ggml_type.name} cannot be written as {t.name}")
    *lead, last = info.shape
    nbytes = int(np.prod(lead, dtype=np.int64)) * row_bytes(last, t)
    return replace(_of_array(name, raw, info.ggml_type), format=t, nbytes=nbytes, source=info)


def _of_array(name: str, array: np.ndarray, format: GgmlType | int | str) -> _Tensor:
    if not isinstance(name, str) or not name:
        raise GgufError(f"tensor name {checks.shown(name)}: expected a string that is not empty")
    if len(utf8(name)) > MAX_NAME:
        raise GgufError(f"tensor name {shown(name)} has {len(utf8(name))} bytes; expected at most {MAX_NAME}")
    label = f"tensor {shown(name)}"
    t = ggml_type(format)
    block_cols, block_bytes = block_shape(t)
    if not isinstance(array, np.ndarray) or not 1 <= array.ndim <= MAX_DIMS or 0 in array.shape:
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise GgufError(f"{label}: got {found}; expected an array of 1 to {MAX_DIMS} axes, none of them 0")
    *lead, last = array.shape
    if array.dtype == np.uint8:  # bytes of the format, as they are
        if last % block_bytes:
            raise BlockFormatError(f"{label}: rows of {last} bytes; expected a multiple of {block_bytes} for {t.name}")
        return _Tensor(name, t, (*lead, last // block_bytes * block_cols), array.nbytes, array)
    if not (_is_stored_as_is(array, t) or (t in WRITABLE and array.dtype.kind == "f")):
        raise BlockFormatError(f"{label}: {array.dtype} numbers cannot be written as {t.name}")
    return _Tensor(name, t, array.shape, int(np.prod(lead, dtype=np.int64)) * row_bytes(last, t), array)


def _is_stored_as_is(array: np.ndarray, format: GgmlType) -> bool:
    plain = plain_dtype(format)  # None must not reach a comparison: for NumPy, None is the same dtype as float64
    return array.dtype == np.uint8 or (plain is not None and array.dtype == plain)


def _pieces(tensor: _Tensor, threads: ThreadPoolExecutor, at_once: int) -> Iterator[np.ndarray]:
    """The bytes to write, some rows at a time: quantising needs several times their memory."""
    rows = tensor.array.reshape(-1, tensor.array.shape[-1])
    weights = tensor.dims[-1]
    step = max(1, PIECE // weights)

    def piece(start: int) -> np.ndarray:
        stop = min(start + step, len(rows))
        part = rows[start:stop] if tensor.rows is None else tensor.rows(start, stop)
        if tensor.source is not None:
            return quantize(dequantize(part, tensor.source.ggml_type), tensor.format)
        return np.ascontiguousarray(part if _is_stored_as_is(part, tensor.format) else quantize(part, tensor.format))

    starts = iter(range(0, len(rows), step))
    waiting = deque(threads.submit(piece, i) for i in islice(starts, at_once))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(threads.submit(piece, i) for i in islice(starts, 1))
            yield done
    finally:
        for future in waiting:
            future.cancel()


def _typed(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of an open file as its typed entries; anything else as it is."""
    return {key: metadata.entry(key) for key in metadata} if isinstance(metadata, Metadata) else metadata


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo | tuple[np.ndarray | TensorInfo | Computed, GgmlType | int | str]],
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> None:
    """Write a GGUF file.

    Parameters
    ----------
    path
        Where; an existing file is replaced, in one step, once the new one is complete.
    metadata
        Keys and values; see `encode_metadata` for the types.  `general.alignment` is obeyed.  The keys `split.…`, which
        mark a file as one part of several, are left out of a file that is none: one whose name does not end in
        `-00001-of-00003.gguf` or that takes tensors of several parts.
    tensors
        Name -> (array, format).  A uint8 array holds the bytes of the format, [..., row_bytes]; a float array is
        quantised to the format, [..., cols]; integers are written as the plain format of their dtype.  The array's axes
        are the tensor's: [n] is a vector, [1, n] a matrix of one row.  A `TensorInfo` of an open file is copied as it
        is, and with a format it is converted.  `Computed` is computed some rows at a time.
    progress
        Called as progress(bytes written, bytes in all) while tensors are written.
    threads
        Threads that quantise.

    Raises
    ------
    GgufError
        A name, value, array or alignment that cannot be written; no file is left.
    OSError
        The file cannot be written; no file is left.
    """
    path = Path(path)
    sources = [value[0] if isinstance(value, tuple) else value for value in tensors.values()]
    part = is_part(path, [source.part for source in sources if isinstance(source, TensorInfo)])
    encoded = encode_metadata({k: v for k, v in _typed(metadata).items() if part or not str(k).startswith("split.")})
    alignment = alignment_of(encoded.entries, str(path))
    todo = [_tensor(name, value) for name, value in tensors.items()]
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(todo), len(encoded.entries)) + encoded.data)
    offset = 0
    for t in todo:
        dims = t.dims[::-1]
        header += length_and_bytes(utf8(t.name)) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.format, offset)
        offset += -(-t.nbytes // alignment) * alignment
    if len(header) > MAX_HEADER:
        raise GgufError(f"{path}: the header would have {len(header)} bytes; expected at most {MAX_HEADER}")
    total, written = sum(t.nbytes for t in todo), 0
    with replacing(path) as temporary, open(temporary, "xb") as out, ThreadPoolExecutor(threads) as pool:
        out.write(header)
        for t in todo:
            out.write(bytes(-out.tell() % alignment))
            for piece in _pieces(t, pool, threads + 1):
                out.write(piece.data)
                written += piece.nbytes
                if progress is not None:
                    progress(written, total)
            if t.source is not None:
                t.source.release_pages()
        out.write(bytes(-out.tell() % alignment))
