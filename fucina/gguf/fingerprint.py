"""Sixteen bytes that name a model: two files with the same fingerprint compute the same rows.

A stream's state is of use only to the model that made it, and it may outlive the process, so its fingerprint covers
every byte of every tensor.  A cryptographic hash of all of them would cost as much time as loading.  Instead the bytes
are first condensed: a row of 1024 words becomes one word,

    sum of  multiplier[i] * (word[i] ^ word[i] >> 32)   modulo 2**64

with fixed odd multipliers that look random, and BLAKE2b hashes these sums, 1/1024 of the data.  The shift brings a
word's upper bits down: without it, two changed top bits (the signs of two numbers) would cancel out.  Multiplying by an
odd number loses nothing, so that a change in a single word always changes the sum; other changes stay unnoticed with a
chance of about 1 in 2**32 per changed row.  That protects from mistakes, not from somebody who constructs two models on
purpose.

Metadata counts unless it cannot change a row: left out are `general.*` (names, authors, licences; but
`general.architecture` counts), `split.*`, `quantize.*` (how the file was made), and `tokenizer.*`: the tokenizer
decides which ids a text becomes, not what is computed for an id.  The order of tensors and keys, and how a model is
split over files, make no difference.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from ..errors import GgufError
from .reader import GgufFile, TensorInfo
from .values import Entry, StringArray

_WORD = np.dtype("<u8")
_ROW = 1024  # words that become one
_BLOCK = 32  # rows that are worked on at once: 256 KiB, which stay in the second-level cache
_SPAN = 512 * _ROW * _WORD.itemsize  # bytes that one thread takes, and that are resident at once for each: 4 MiB
_THREADS = 4
_IGNORED = ("general.", "split.", "quantize.", "tokenizer.")


def fingerprint(file: GgufFile) -> bytes:
    """Name the model that a file holds, from all its weights and the metadata that its passes depend on.

    Reads every tensor once (100 MB take about 25 ms of CPU time, divided by up to four threads) and gives the file's
    pages back to the system.

    Parameters
    ----------
    file
        An open model; for a split one, all parts are covered.

    Returns
    -------
    bytes
        16 of them.

    Raises
    ------
    GgufError
        The file was closed.
    """
    if file._closed:
        raise GgufError(f"{file.path}: is closed; its fingerprint was asked for")
    h = hashlib.blake2b(digest_size=16, person=b"fucina.gguf")
    for key in sorted(file.metadata):
        if key == "general.architecture" or not key.startswith(_IGNORED):
            _add(h, key.encode("utf-8", "surrogateescape"))
            for part in _encoded(file.metadata.entry(key)):
                _add(h, part)
    tensors = sorted(file.tensors.values(), key=lambda t: t.name)
    spans = [(t, start) for t in tensors for start in range(0, max(t.nbytes, 1), _SPAN)]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:  # NumPy's loops let other threads run
        for (t, start), condensed in zip(spans, pool.map(lambda span: _condense(*span), spans), strict=True):
            if start == 0:
                _add(h, f"{t.name}|{t.shape}|{t.ggml_type.name}".encode("utf-8", "surrogateescape"))
            _add(h, condensed)
    file.release_pages()  # what the spans have left: the pages that two tensors share
    return h.digest()


def _add(h: hashlib.blake2b, data: bytes) -> None:
    h.update(len(data).to_bytes(8, "little"))
    h.update(data)


def _encoded(entry: Entry) -> Iterator[bytes]:
    """Type and value of a metadata entry."""
    count = len(entry.value) if isinstance(entry.value, StringArray | np.ndarray) else 1
    yield f"{entry.type.name}|{entry.item.name if entry.item is not None else ''}|{count}".encode()
    if isinstance(entry.value, StringArray):
        yield from entry.value
    elif isinstance(entry.value, np.ndarray):
        yield entry.value.tobytes()
    else:
        yield repr(entry.value).encode()


@cache
def _multipliers() -> np.ndarray:
    """`_ROW` odd numbers, uint64: the sequence of SplitMix64."""
    x = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


def _condense(tensor: TensorInfo, start: int) -> bytes:
    """The sums of all whole rows of a span, then the bytes that are left over, hashed."""
    stop = min(start + _SPAN, tensor.nbytes)
    data = tensor.data[start:stop]
    rows = len(data) // (_ROW * _WORD.itemsize)
    whole = rows * _ROW * _WORD.itemsize
    words = data[:whole].view(_WORD).reshape(rows, _ROW)
    sums = np.empty(rows, _WORD)
    mixed = np.empty((min(rows, _BLOCK), _ROW), _WORD)
    for i in range(0, rows, _BLOCK):
        block = words[i : i + _BLOCK]
        m = mixed[: len(block)]
        np.right_shift(block, 32, out=m)
        np.bitwise_xor(m, block, out=m)
        np.einsum("ij,j->i", m, _multipliers(), out=sums[i : i + _BLOCK])
    rest = hashlib.blake2b(data[whole:].tobytes(), digest_size=16).digest()
    tensor.release_pages(start, stop)
    return sums.tobytes() + rest
