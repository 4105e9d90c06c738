"""Files of stored texts: which of a folder's files are ours, and what is in them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidOption, KvFileError, KvFileInvalid
from .save import SUFFIX

if TYPE_CHECKING:
    from ..cache.persist import Header, Inspection


class Found(NamedTuple):
    """A file of ours.  header : None if it is damaged or empty; `why` tells."""

    path: Path
    info: os.stat_result
    header: Header | None
    why: str


def find(path: Path) -> tuple[list[Found], int]:
    """Our files in a folder, or the one file; and how many other files there are.

    Ours are regular files with our suffix that begin as our formats do.  Links are not followed.

    Raises
    ------
    InvalidOption : there is neither a folder nor a file.
    """
    if path.is_dir():
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            raise InvalidOption(f"{path}: {error.strerror}") from None
        paths = [path / name for name in names]
        found = [f for p in paths if p.suffix == SUFFIX and (f := _look(p)) is not None]
        return found, sum(not p.is_dir() for p in paths) - len(found)
    if not path.is_file():
        raise InvalidOption(f"{path}: there is no such folder or file")
    one = _look(path)
    if one is None:
        raise InvalidOption(f"{path}: is no file of stored rows")
    return [one], 0


def _look(path: Path) -> Found | None:
    """What a file says about itself, or None if it is not ours."""
    from ..cache.persist import read_header
    from ..cache.persist.header import MAGIC

    try:
        info = os.lstat(path)
        if not stat.S_ISREG(info.st_mode):
            return None
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError:
        return None
    if begin not in MAGIC.values():
        return None
    try:
        return Found(path, info, read_header(path), "")
    except (KvFileInvalid, KvFileError) as error:
        return Found(path, info, None, _reason(path, error))


def inspected(found: Found, rows: bool) -> tuple[Inspection | None, str]:
    """All of a file, and what is wrong with it; None for the first if it cannot be read."""
    from ..cache.persist import inspect

    if found.header is None:
        return None, found.why
    try:
        inspection = inspect(found.path, rows=rows)
    except (KvFileInvalid, KvFileError) as error:
        return None, _reason(found.path, error)
    return inspection, inspection.why


def _reason(path: Path, error: Exception) -> str:
    return str(error).removeprefix(f"{path}: ")
