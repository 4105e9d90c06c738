"""Writing a file so that no reader ever finds half of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name beside `path`; when the block ends, what was written there takes the name `path`.

    After an error nothing is left of it, and an older file of the name stays as it was.  The temporary name is short,
    so that a file may have the longest name that its system allows.
    """
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
