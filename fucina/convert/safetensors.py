"""Reading safetensors, the file format that models are trained and published in.

A file is the length of a header (8 bytes), the header (JSON: the dtype, the shape and the place of each tensor) and the
tensors' bytes, one after the other without holes.  A large model is several such files and an index, which says what
lies in which.  Files are mapped, not read: nothing is allocated because a header says so.
(https://github.com/huggingface/safetensors, format of 2022.)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SafetensorsError
from .files import json_object, shown

MAX_HEADER = 100_000_000
"""Longest header in bytes; the format's own bound."""

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4}
ITEM_BYTES |= {"U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
"""Dtypes, and the bytes of one number."""

WEIGHTS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Dtypes of weights that can be converted, and how NumPy sees their bytes (it has no bfloat16)."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor: its name, dtype and shape, and its bytes in the mapped file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    def matrix(self) -> np.ndarray:
        """The stored numbers as rows [all axes but the last together, last]; bfloat16 as the integers of its bits.

        Raises
        ------
        SafetensorsError : numbers of another kind than `WEIGHTS`, a tensor without any, or one without an axis.
        """
        kind = WEIGHTS.get(self.dtype)
        if kind is None:
            raise SafetensorsError(
                f"tensor {shown(self.name)} has numbers of type {self.dtype}; expected {', '.join(WEIGHTS)} "
                "(a model that is quantised already cannot be converted)"
            )
        if not self.shape or not self.data.size:
            raise SafetensorsError(f"tensor {shown(self.name)} has the shape {list(self.shape)}; expected some numbers")
        return self.data.view(kind).reshape(-1, self.shape[-1])


class SafetensorsFile:
    """One file: `tensors` by name, in the order of their places.

    Raises
    ------
    SafetensorsError : it cannot be opened, it ends too early, or its header is not what the format asks for.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._bytes = _mapped(self.path)
        size = len(self._bytes)
        length = int(self._bytes[:8].view("<u8")[0]) if size >= 8 else 0
        if size < 8 or length > size - 8:
            raise self._wrong(f"it has {size} bytes, and its header would need {8 + length}; is the download complete?")
        if length > MAX_HEADER:
            raise self._wrong(f"its header would have {length} bytes; expected at most {MAX_HEADER}")
        header = json_object(bytes(self._bytes[8 : 8 + length]), f"the header of {self.path.name}", SafetensorsError)
        self.tensors = self._read(header, self._bytes[8 + length :])

    def _read(self, header: Mapping[str, Any], data: np.ndarray) -> dict[str, SafeTensor]:
        places = []
        for name, entry in header.items():
            if name != "__metadata__":
                places.append((*self._entry(name, entry), name))
        places.sort(key=lambda place: place[:2])
        tensors, done = {}, 0
        for start, stop, dtype, shape, name in places:
            if start != done:
                what = "overlaps another one" if start < done else f"lies {start - done} bytes after the one before it"
                raise self._wrong(f"tensor {shown(name)} {what}; expected tensors without holes")
            if stop > len(data):
                raise self._wrong(
                    f"it ends {stop - len(data)} bytes before the tensor {shown(name)} does; is the download complete?"
                )
            tensors[name] = SafeTensor(name, dtype, shape, data[start:stop])
            done = stop
        if done != len(data):
            raise self._wrong(f"{len(data) - done} bytes follow after the last tensor; expected none")
        return tensors

    def _entry(self, name: str, entry: Any) -> tuple[int, int, str, tuple[int, ...]]:
        """Start, stop, dtype and shape that a header gives a tensor."""
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._wrong(f"tensor {shown(name)}: expected dtype, shape and data_offsets, found {shown(entry)}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise self._wrong(f"tensor {shown(name)}: dtype {shown(dtype)}; expected one of {', '.join(ITEM_BYTES)}")
        for what, values in (("shape", shape), ("data_offsets", offsets)):
            if not isinstance(values, list) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in values):
                raise self._wrong(f"tensor {shown(name)}: {what} {shown(values)}; expected a list of counts")
        if len(shape) > 8 or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._wrong(
                f"tensor {shown(name)}: shape {shown(shape)} at {shown(offsets)}; expected at most 8 axes, and a "
                "beginning and an end"
            )
        needed = prod(shape) * ITEM_BYTES[dtype]
        if offsets[1] - offsets[0] != needed:
            raise self._wrong(
                f"tensor {shown(name)}: {dtype} {shown(shape)} needs {needed} bytes, its offsets give it "
                f"{offsets[1] - offsets[0]}"
            )
        return offsets[0], offsets[1], dtype, tuple(shape)

    def _wrong(self, what: str) -> SafetensorsError:
        return SafetensorsError(f"{self.path}: {what}")


def read_folder(folder: Path) -> dict[str, SafeTensor]:
    """The tensors of all files of a model.

    Parameters
    ----------
    folder : holds `model.safetensors`, or files and their index, or one other file that ends in `.safetensors`.

    Raises
    ------
    SafetensorsError : there is none, one is missing or damaged, or the index says something else than the files.
    """
    index = folder / INDEX
    if not index.is_file():
        return dict(SafetensorsFile(_single(folder)).tensors)
    try:
        places = json_object(index.read_bytes(), str(index), SafetensorsError).get("weight_map")
    except OSError as error:
        raise SafetensorsError(f"{index}: cannot be read ({error.strerror})") from error
    if not isinstance(places, dict) or not places:
        raise SafetensorsError(f"{index}: expected a weight_map from names of tensors to files")
    for name, file in places.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or any(c in file for c in "/\\:\0"):
            raise SafetensorsError(
                f"{index}: tensor {shown(name)} is said to lie in {shown(file)}; expected the name of a "
                "file in the same folder"
            )
    tensors: dict[str, SafeTensor] = {}
    for file in sorted(set(places.values())):
        for name, tensor in SafetensorsFile(folder / file).tensors.items():
            if places.get(name) != file:
                raise SafetensorsError(
                    f"{folder / file} holds the tensor {shown(name)}, which the index places in "
                    f"{shown(places.get(name))}"
                )
            tensors[name] = tensor
    if missing := sorted(places.keys() - tensors.keys()):
        raise SafetensorsError(f"{folder / places[missing[0]]} lacks the tensor {shown(missing[0])} of the index")
    return tensors


def _single(folder: Path) -> Path:
    named = folder / "model.safetensors"
    if named.is_file():
        return named
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} files .safetensors and no {INDEX}" if found else "no file .safetensors"
    raise SafetensorsError(f"{folder}: holds {what}; expected model.safetensors, or several files with their index")


def _mapped(path: Path) -> np.ndarray:
    """The bytes of a file, mapped read-only."""
    try:
        info = os.stat(path)
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would wait for ever
            raise SafetensorsError(f"{path}: not a regular file; expected a file .safetensors")
        if info.st_size < 8:  # an empty file cannot be mapped
            raise SafetensorsError(f"{path}: {info.st_size} bytes; expected a file .safetensors")
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise SafetensorsError(f"{path}: cannot be opened ({error.strerror})") from error
