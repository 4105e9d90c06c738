"""Opening a GGUF file: metadata and tensors as views of the mapped file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from ..errors import GgufError
from .mapping import MappedFile, shown
from .metadata import Metadata
from .parse import Header, TensorHeader, parse_header
from .split import check_part, part_paths
from .types import GgmlType, plain_dtype


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """One tensor of a file: what it is, and a view of its bytes.

    Attributes
    ----------
    name
        As in the file: `blk.0.attn_q.weight`.
    shape
        In NumPy order: (rows, cols) for a matrix, (n,) for a vector, (experts, rows, cols) for a stack.
    ggml_type
        How the numbers are stored.
    nbytes
        Size of `data`.
    part, start
        Index of the file (0 unless the model is split) and the position of the first byte in it.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    nbytes: int
    part: int
    start: int
    _file: MappedFile = field(repr=False)
    _bytes: np.ndarray = field(repr=False)  # a view of the whole file: keeps the mapping alive

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (of the last axis)."""
        return self.nbytes // math.prod(self.shape[:-1])

    @property
    def data(self) -> np.ndarray:
        """The bytes as they are in the file: read-only uint8 [nbytes] view, valid as long as it is referenced."""
        return self._bytes[self.start : self.start + self.nbytes]

    def rows(self) -> np.ndarray:
        """Read-only uint8 [rows, row_bytes] view; leading axes are flattened, a vector is one row."""
        return self.data.reshape(-1, self.row_bytes)

    def numbers(self) -> np.ndarray:
        """Read-only typed view in the tensor's shape, for formats that are plain numbers (F32, F16, F64, I8 … I64).

        Raises
        ------
        GgufError
            The format is a block format, or BF16: use `fucina.gguf.dequantize`.
        """
        dtype = plain_dtype(self.ggml_type)
        if dtype is None:
            raise GgufError(f"tensor {shown(self.name)} is {self.ggml_type}; expected plain numbers. Use dequantize")
        return self.data.view(dtype).reshape(self.shape)

    def release_pages(self, start: int = 0, stop: int | None = None) -> None:
        """Give bytes start..stop of this tensor back to the system; the next access reads them from the file again.

        For loaders that have made their own copy of the weights.  A no-op where the system cannot do it.

        Raises
        ------
        GgufError
            Not 0 <= start <= stop <= nbytes.
        """
        stop = self.nbytes if stop is None else stop
        if not 0 <= start <= stop <= self.nbytes:
            raise GgufError(f"tensor {shown(self.name)}: bytes {start} to {stop} are not in its {self.nbytes}")
        self._file.release_pages(self.start + start, self.start + stop)


class GgufFile:
    """A GGUF model, opened read-only: its metadata and its tensors.

    Parameters
    ----------
    path
        A .gguf file.  For a model split over several files, any part opens all of them.

    Attributes
    ----------
    path : Path
        As given.
    parts : list of Path
        The files, in order; one unless the model is split.
    version, alignment : int
        Format version (2 or 3) and alignment of the (first) file.
    metadata : Metadata
        The metadata, of the first part if split.  Stays usable after `close`.
    tensors : dict of str to TensorInfo
        In file order.

    Raises
    ------
    GgufOpenError
        The file, or a part of a split model, is missing or cannot be opened.
    GgufIncomplete
        The file ends too early, as after an interrupted download.
    GgufError
        The file is not GGUF, is damaged, or holds a tensor format that is not supported.

    Notes
    -----
    Nothing is read beyond the header: tensors are views of the mapped file.  A view stays valid as long as it is
    referenced, even after `close`, which drops only this object's own references.  The mapping ends (and on Windows the
    file can be replaced or deleted) when the last view is gone.  Do not change a file while it is open: the views show
    the change, and touching a page beyond a new, shorter end kills the process.

    Examples
    --------
    >>> with GgufFile("model.gguf") as file:                              # doctest: +SKIP
    ...     q = file.tensor("blk.0.attn_q.weight")
    ...     w = dequantize(q.rows(), q.ggml_type)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files: list[MappedFile] = []
        self._closed = False
        try:
            self._open()
        except BaseException:
            self.close()  # after an error no file stays mapped
            raise

    def _open(self) -> None:
        header, metadata = self._map(self.path)
        self.parts = part_paths(self.path, metadata)
        headers = [header]
        if len(self.parts) > 1:
            if self.parts[0] != self.path:  # opened by another part: begin again at the first
                self._files.pop().close()
                header, metadata = self._map(self.parts[0])
                headers = [header]
            check_part(self.parts[0], metadata, 0, len(self.parts))
            for i, part in enumerate(self.parts[1:], start=1):
                part_header, part_metadata = self._map(part)
                check_part(part, part_metadata, i, len(self.parts))
                headers.append(part_header)
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = metadata
        self.tensors: dict[str, TensorInfo] = {}
        for i, part_header in enumerate(headers):
            for tensor in part_header.tensors:
                self._add(i, tensor)
        self._check_total()

    def _map(self, path: Path) -> tuple[Header, Metadata]:
        file = MappedFile(path)
        self._files.append(file)
        with memoryview(file.bytes.data) as view:
            header = parse_header(view, str(path))
        return header, Metadata(header.entries, str(path))

    def _add(self, part: int, t: TensorHeader) -> None:
        if t.name in self.tensors:
            first = self.parts[self.tensors[t.name].part].name
            raise GgufError(f"{self.parts[part]}: tensor {shown(t.name)} is in {first} as well; expected it once")
        file = self._files[part]
        self.tensors[t.name] = TensorInfo(t.name, t.shape, t.format, t.nbytes, part, t.start, file, file.bytes)

    def _check_total(self) -> None:
        total = self.metadata.int("split.tensors.count", default=None)
        if len(self.parts) > 1 and total is not None and total != len(self.tensors):
            raise GgufError(
                f"{self.parts[0]}: split.tensors.count is {total}, but the {len(self.parts)} parts hold "
                f"{len(self.tensors)} tensors; expected the same"
            )

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name.

        Raises
        ------
        GgufError
            There is none, or the file was closed.
        """
        if self._closed:
            raise GgufError(f"{self.path}: is closed; tensor {shown(name)} was asked for")
        try:
            return self.tensors[name]
        except KeyError:
            raise GgufError(f"{self.path}: has no tensor {shown(name)} ({len(self.tensors)} others)") from None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    def release_pages(self) -> None:
        """Give all pages of the files back to the system for now: the header was read, the weights are repacked."""
        for file in self._files:
            file.release_pages(0, file.size)

    def close(self) -> None:
        """Release the mapped files.  Views that were given out stay valid; `tensor` raises from now on."""
        self._closed = True
        self.tensors = {}
        for file in self._files:
            file.close()
        self._files = []

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<GgufFile {self.path.name!r}: closed>"
        parts = f" in {len(self.parts)} parts" if len(self.parts) > 1 else ""
        return (
            f"<GgufFile {self.path.name!r}{parts}: version {self.version}, {len(self.metadata)} metadata keys, "
            f"{len(self.tensors)} tensors, {self.nbytes:,} bytes>"
        )
