"""Who may share rows with whom."""

from __future__ import annotations

import hashlib

from ... import checks
from ...errors import InvalidOption, InvalidPrefix


def scope_of(tenant: str, selection: str = "", prefix_rows: int = 0) -> bytes:
    """32 bytes that are equal for requests which may share rows, and for no others.

    Raises
    ------
    InvalidOption : tenant or selection are no text.  InvalidPrefix : prefix_rows is no count.
    """
    digest = hashlib.sha256(b"fucina slot pool")
    for name, text in (("tenant", tenant), ("selection", selection)):
        if not isinstance(text, str):
            raise InvalidOption(f"{name} must be a text, got {type(text).__name__}")
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"|{name}:{len(data)}:".encode() + data)  # tagged, and with its length: no two fields can collide
    digest.update(f"|{checks.integer('prefix_rows', prefix_rows, 0, error=InvalidPrefix)}".encode())
    return digest.digest()
