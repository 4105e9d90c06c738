"""One kernel called from Python.  A pass does not come through here: its threads call kernels by address."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

import numpy as np

from . import record as R
from .catalogue import kernel_words
from .compile import address
from .memory import aligned
from .panels import SCRATCH_BYTES

PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


@cache
def function(name: str, isa: str | None = None):
    """The kernel as a ctypes function; it releases the GIL."""
    return PROTOTYPE(address(name, isa))


def record_words(
    name: str, params: Mapping[str, float], unit: int = 1, units: int = 1, rows: tuple[int, int] = (R.M, 1)
) -> np.ndarray:
    """int64 [WORDS]: a stage record.  `units` are those per row; `rows` the words ROWS_WORD and ROWS_TIMES."""
    record = np.zeros(R.WORDS, np.int64)
    record[R.UNIT], record[R.UNITS] = unit, units
    record[R.ROWS_WORD], record[R.ROWS_TIMES] = rows
    for i, value in enumerate(kernel_words(name, **params)):
        put(record, R.P0 + i, value)
    return record


def put(record: np.ndarray, word: int, value: float) -> None:
    """Set a word of a record: a float as float32 bits."""
    if isinstance(value, float):
        record[word : word + 1].view(np.float32)[0] = value
    else:
        record[word] = value


def invoke(
    name: str,
    params: Mapping[str, float],
    *,
    units: tuple[int, int],
    job: dict[int, int] | None = None,
    unit: int = 1,
    per_row: int = 1,
    isa: str | None = None,
) -> None:
    """One call of a kernel for units[0] … units[1]-1.  Checks the names of the parameters and nothing else.

    Parameters
    ----------
    params : values by the names of the kernel's parameters.
    job : values of job words, see `record`.
    unit, per_row : the words UNIT and UNITS of the record.
    """
    record, words = record_words(name, params, unit, per_row), np.zeros(R.JOB_WORDS, np.int64)
    scratch = aligned(SCRATCH_BYTES, zero=False)
    words[R.SCRATCH] = scratch.ctypes.data
    for word, value in (job or {}).items():
        words[word] = value
    function(name, isa)(record.ctypes.data, words.ctypes.data, *units, 0)
