"""One file mapped read-only into memory.

Mapping (mmap) makes the file's bytes appear at an address without reading them: the operating system fetches a page of
4 KiB when it is first touched, and may drop it again because the file still has it.  Opening a 100 GB model is
therefore instant, and the weights that are never used are never read.
"""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..errors import GgufError, GgufIncomplete, GgufOpenError


def shown(text: str | bytes, limit: int = 80) -> str:
    """Text from a file as a message shows it: ASCII, quoted, shortened."""
    out = ascii(text if isinstance(text, str) else text.decode("utf-8", "backslashreplace"))
    return out if len(out) <= limit else out[: limit - 4] + "..." + out[-1]


class MappedFile:
    """A regular file, mapped read-only; `bytes` is a uint8 view of all of it.

    The operating system's file handle is closed at once: the mapping does not need it.  The mapping itself lives as
    long as any array that views it.

    Raises
    ------
    GgufOpenError
        The path is missing, a folder, a device or pipe, or may not be read.
    GgufIncomplete
        The file is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            info = os.stat(path)
            if stat.S_ISDIR(info.st_mode):
                raise GgufOpenError(_folder_message(path))
            if not stat.S_ISREG(info.st_mode):  # opening a pipe would block for ever
                raise GgufOpenError(f"{path}: not a regular file; expected a .gguf file")
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:  # an empty file cannot be mapped
                    raise GgufIncomplete(
                        f"{path}: the file is empty (0 bytes); expected a GGUF file. Download it again"
                    )
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except GgufError:
            raise
        except FileNotFoundError:
            raise GgufOpenError(f"{path}: no such file; expected the path of a .gguf file") from None
        except PermissionError as error:
            raise GgufOpenError(f"{path}: may not be read ({error.strerror}); check the file's permissions") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or a file that shrank meanwhile
            raise GgufOpenError(f"{str(path)!a}: cannot be opened ({error})") from error
        self.size = size
        self.bytes = np.frombuffer(self._map, np.uint8)

    def release_pages(self, start: int, stop: int) -> None:
        """Give bytes start..stop back to the system for now; a later access reads them from the file again.

        Only whole pages inside the range are released.  Does nothing where the system has no such call (Windows).
        """
        if not hasattr(self._map, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
            return
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        last = self.size if stop >= self.size else stop // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Drop the mapping, now if no view is left, otherwise when the last view is gone."""
        self.bytes = np.empty(0, np.uint8)
        with suppress(BufferError):  # a view is still in use: the mapping must outlive it
            self._map.close()


def _folder_message(path: Path) -> str:
    found = sorted(p.name for p in path.glob("*.gguf"))
    if not found:
        return f"{path}: is a folder without .gguf files; expected the path of a .gguf file"
    first = next((name for name in found if "-00001-of-" in name), found[0])
    more = f" ({len(found)} .gguf files inside)" if len(found) > 1 else ""
    return f"{path}: is a folder{more}; expected a file, such as {path / first}"
