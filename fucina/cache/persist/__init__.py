"""Rows of a state in a file: what was computed once is there tomorrow.

`KvFile` is the file of a conversation that goes on: it is locked, and appending costs what is new.  `save` and `load`
treat a file as a whole.  Three versions of the format are read and written; version 3, the default, checks everything
that it gives: whatever happened to the file, a state gets a true prefix of what was stored, or nothing.
docs/kv-files.md has the bytes and the reasons.
"""

from .header import Header
from .identity import salt_hash
from .kvfile import KvFile
from .restoring import Restored
from .whole import Inspection, Loaded, append_plain, inspect, load, read_header, read_tokens, save

__all__ = [
    "Header",
    "Inspection",
    "KvFile",
    "Loaded",
    "Restored",
    "append_plain",
    "inspect",
    "load",
    "read_header",
    "read_tokens",
    "salt_hash",
    "save",
]
