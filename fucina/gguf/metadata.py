"""Metadata of a GGUF file: a mapping from keys to typed values, with getters that check the type.

The metadata describes what the tensors mean: the model's family and sizes (`llama.block_count`), its vocabulary
(`tokenizer.ggml.tokens`), its chat template.  Every value carries its type.  A wrong type nearly always means a broken
or foreign file, and would show much later as an error about shapes.  So a getter never converts: an integer is not a
float, and a boolean is not an integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..errors import GgufError
from .encode import encode_metadata
from .mapping import shown
from .types import FLOATS, INTEGERS, VALUE_DTYPES, ValueType
from .values import Entry

# The getters below shadow these names inside the class.
_int: TypeAlias = int
_float: TypeAlias = float
_str: TypeAlias = str
_bool: TypeAlias = bool
_REQUIRED: Any = object()


class Metadata(Mapping[str, Any]):
    """Read-only mapping of metadata keys to values.

    ``metadata[key]`` gives the value as it is: int, float, bool, str, a NumPy array, or a sequence of bytes (string
    arrays).  Code that relies on a value uses the getters `int`, `float`, `str`, `bool`, `ints`, `floats`, `bools`,
    `strings`: they raise GgufError with the key, what was expected and what was found.  With `default` given, a missing
    key gives the default; a value of the wrong type is an error all the same.
    """

    __slots__ = ("_entries", "_where")

    def __init__(self, entries: Mapping[_str, Entry], where: _str = "metadata") -> None:
        self._entries = dict(entries)
        self._where = where

    @classmethod
    def from_dict(cls, values: Mapping[_str, Any]) -> Metadata:
        """Metadata from plain values, typed as `fucina.gguf.write_gguf` would write them."""
        return cls(encode_metadata(values).entries)

    # --- the mapping --------------------------------------------------------------------------------------------

    def __getitem__(self, key: _str) -> Any:
        value = self._entries[key].value
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def __iter__(self) -> Iterator[_str]:
        return iter(self._entries)

    def __len__(self) -> _int:
        return len(self._entries)

    def __contains__(self, key: object) -> _bool:
        return key in self._entries

    def __repr__(self) -> _str:
        return f"<Metadata: {len(self)} keys>"

    def describe(self, key: _str) -> _str:
        """Type and value in short, for listings: `u32 32`, `string 'llama'`, `array of 49152 string`, `missing`."""
        entry = self._entries.get(key)
        return "missing" if entry is None else entry.describe()

    def entry(self, key: _str) -> Entry:
        """The typed entry of a key, to write it again unchanged (KeyError if missing)."""
        return self._entries[key]

    # --- scalars ------------------------------------------------------------------------------------------------

    def _find(self, key: _str, expected: _str, default: Any) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None and default is _REQUIRED:
            raise GgufError(f"{self._where}: metadata key {shown(key)} is missing; expected {expected}")
        return entry

    def _wrong(self, key: _str, expected: _str, found: _str) -> GgufError:
        return GgufError(f"{self._where}: metadata key {shown(key)}: expected {expected}, found {found}")

    def _scalar(self, key: _str, expected: _str, types: frozenset[ValueType], default: Any) -> Any:
        entry = self._find(key, expected, default)
        if entry is None:
            return default
        if entry.type not in types:
            raise self._wrong(key, expected, entry.describe())
        return entry.value

    def int(self, key: _str, default: Any = _REQUIRED) -> _int:
        """An integer of any width (never a boolean, never a float)."""
        return self._scalar(key, "an integer", INTEGERS, default)

    def float(self, key: _str, default: Any = _REQUIRED) -> _float:
        """A floating-point number (never an integer)."""
        return self._scalar(key, "a float", FLOATS, default)

    def bool(self, key: _str, default: Any = _REQUIRED) -> _bool:
        """A boolean (never an integer)."""
        return self._scalar(key, "a boolean", frozenset({ValueType.BOOL}), default)

    def str(self, key: _str, default: Any = _REQUIRED) -> _str:
        """A string, valid UTF-8."""
        value = self._scalar(key, "a string", frozenset({ValueType.STRING}), default)
        if not isinstance(value, bytes):
            return value  # the default
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._wrong(key, "a string of valid UTF-8", f"an invalid byte at {error.start}") from None

    # --- arrays -------------------------------------------------------------------------------------------------

    def _array(
        self, key: _str, expected: _str, types: frozenset[ValueType], default: Any, broadcast: _int | None
    ) -> Any:
        if broadcast is not None:
            expected += f" ({broadcast} of them, or one for all)"
        entry = self._find(key, expected, default)
        if entry is None:
            return None
        if entry.item in types:
            if broadcast is not None and len(entry.value) != broadcast:
                raise self._wrong(key, expected, entry.describe())
            return entry.value
        if broadcast is not None and entry.type in types:
            return np.full(broadcast, entry.value, VALUE_DTYPES[entry.type])
        raise self._wrong(key, expected, entry.describe())

    def ints(self, key: _str, default: Any = _REQUIRED, broadcast: _int | None = None) -> np.ndarray:
        """An array of integers, as int64.

        With `broadcast=n` the answer has exactly n values: an array of n, or a single integer repeated n times (a model
        may give one head count for all layers, or one for each).
        """
        value = self._array(key, "an array of integers", INTEGERS, default, broadcast)
        if value is None:
            return default
        if value.dtype == np.uint64 and len(value) and int(value.max()) > np.iinfo(np.int64).max:
            raise self._wrong(key, "integers below 2**63", f"{value.max()}")
        return value.astype(np.int64)

    def floats(self, key: _str, default: Any = _REQUIRED, broadcast: _int | None = None) -> np.ndarray:
        """An array of floats, as float32; `broadcast` as in `ints`."""
        value = self._array(key, "an array of floats", FLOATS, default, broadcast)
        if value is None:
            return default
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, as the field's engines read it
            return value.astype(np.float32)

    def bools(self, key: _str, default: Any = _REQUIRED, broadcast: _int | None = None) -> np.ndarray:
        """An array of booleans; `broadcast` as in `ints`."""
        value = self._array(key, "an array of booleans", frozenset({ValueType.BOOL}), default, broadcast)
        return default if value is None else value.astype(np.bool_)

    def strings(self, key: _str, default: Any = _REQUIRED) -> list[bytes]:
        """An array of strings, as raw bytes: tokens of a vocabulary need not be valid UTF-8."""
        value = self._array(key, "an array of strings", frozenset({ValueType.STRING}), default, None)
        return default if value is None else list(value.to_list())
