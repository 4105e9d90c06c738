"""Files as this package uses them: read and written at positions, locked while somebody writes, errors with names."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ...errors import KvFileError, KvFileLocked

_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_ATTEMPTS = 100
_LOCK_AT = 1 << 40  # Windows locks bytes, against readers too: one that no file has


class Storage(Protocol):
    """What the formats need of a file; tests give one that fails on purpose."""

    def is_there(self) -> bool: ...
    def size(self) -> int: ...
    def read_at(self, offset: int, count: int) -> bytes: ...
    def write_at(self, offset: int, data: bytes | memoryview) -> None: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class DiskFile:
    """A regular file, read and written at positions without a buffer."""

    def __init__(self, file: io.FileIO, locked: bool = False) -> None:
        self._file, self._locked, self._process = file, locked, os.getpid()
        self._path = os.path.abspath(os.fspath(file.name))  # the current folder may become another one

    def is_there(self) -> bool:
        """Whether its path still leads to this file: what is written to one that was removed is lost."""
        if sys.platform == "win32":  # no open file can be removed there
            return True
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def size(self) -> int:
        """Bytes that the file has."""
        return os.fstat(self._file.fileno()).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        """Read up to `count` bytes; fewer only where the file ends."""
        self._file.seek(offset)
        data = self._file.read(count) or b""
        while len(data) < count and (more := self._file.read(count - len(data))):
            data += more
        return data

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data`; the file grows where it must."""
        self._file.seek(offset)
        left = memoryview(data).cast("B")
        while left:
            left = left[self._file.write(left) :]

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._file.truncate(size)

    def sync(self) -> None:
        """Return when all that was written is on the device."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and release its lock."""
        # A copy of this process may have the file open too; then closing it here alone would not release the lock.
        if self._locked and not self._file.closed and self._process == os.getpid():
            unlock(self._file)
        self._file.close()


def open_to_read(path: Path) -> DiskFile:
    """Open a file for reading.

    Raises
    ------
    FileNotFoundError : there is none.
    KvFileError : it is a folder, a pipe or a device, or may not be read.
    """
    try:
        _check_regular(path, os.stat(path))
        return DiskFile(io.FileIO(path, "rb"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise named(path, "cannot be read", error) from None


def open_to_write(path: Path, make: bool = True) -> DiskFile:
    """Open a file for reading and writing, make an empty one if there is none, and lock it.

    The last part of the path must not be a symbolic link: what is written stays in the folder that was named.

    Raises
    ------
    KvFileLocked : another object, thread or process has it open to write.
    KvFileError : it is a folder, a link, a pipe or a device; the folder is missing, or may not be written.
    FileNotFoundError : there is none, and none is to be made.
    """
    try:
        for _ in range(_ATTEMPTS):
            try:
                _check_regular(path, os.lstat(path))
            except FileNotFoundError:
                if not make:
                    raise
                if not path.parent.is_dir():
                    raise KvFileError(f"{path}: there is no folder {path.parent}; expected one that exists") from None
            file = io.FileIO(path, "r+b", opener=_opener if make else _opener_of_old)
            try:
                lock(file, path)
                # Somebody may have replaced or removed the file between the two lines: then this lock guards nothing.
                # Not on Windows, where that is impossible with an open file, and where the two may be told apart.
                if sys.platform == "win32" or os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                    return DiskFile(file, locked=True)
            except FileNotFoundError:
                pass
            except BaseException:
                file.close()
                raise
            file.close()
        raise KvFileError(f"{path}: was replaced {_ATTEMPTS} times while it was opened; expected a file that stays")
    except (OSError, ValueError) as error:
        if not make and isinstance(error, FileNotFoundError):
            raise
        raise named(path, "cannot be written", error) from None


def _opener(path: str, _: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)  # a conversation is nobody else's business


def _opener_of_old(path: str, _: int) -> int:
    return os.open(path, os.O_RDWR | _FLAGS)


def remove(path: Path, known: os.stat_result | None = None) -> None:
    """Remove a file that nobody writes; nothing is done if there is none.

    Parameters
    ----------
    known : what the system said of it when it was chosen; None: whatever is there.

    Raises
    ------
    KvFileLocked : somebody writes it, or has written it since.  KvFileError : the system does not allow it.
    """
    try:
        file = open_to_write(path, make=False)
    except FileNotFoundError:
        return
    try:
        now = os.lstat(path)
        if known is not None and not (os.path.samestat(now, known) and now.st_mtime_ns == known.st_mtime_ns):
            raise KvFileLocked(f"{path}: was written in the meantime")
        if os.name == "nt":  # no open file can be removed there
            file.close()
        path.unlink(missing_ok=True)
    except OSError as error:
        raise named(path, "cannot be removed", error) from None
    finally:
        file.close()


def lock(file: io.FileIO, path: Path) -> None:
    """Lock an open file for its writer, until it is closed or the process ends.

    Raises
    ------
    KvFileLocked : somebody has.
    """
    taken = f"{path}: is being written by somebody else; expected a file that only one conversation or process uses"
    if sys.platform == "win32":
        import msvcrt

        file.seek(_LOCK_AT)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            raise KvFileLocked(taken) from None
    else:
        import fcntl

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KvFileLocked(taken) from None


def unlock(file: io.FileIO) -> None:
    """Release a file that `lock` has locked."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(_LOCK_AT)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@contextmanager
def unlocked_to_replace(path: Path) -> Iterator[None]:
    """Inside the block a file of this name may be replaced: nobody writes it, nor begins to (on Windows: nor has begun).

    Raises
    ------
    KvFileLocked : somebody writes it.  KvFileError : it is no regular file, or may not be opened.
    """
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        yield
        return
    except (OSError, ValueError) as error:
        raise named(path, "cannot be written", error) from None
    if stat.S_ISLNK(info.st_mode):  # the link is replaced, not what it leads to
        yield
        return
    file = open_to_write(path)
    if sys.platform == "win32":  # no open file can be replaced there, ours included: then that is the lock
        file.close()
    try:
        yield
    finally:
        file.close()


def sync_folder(folder: Path) -> None:
    """Make a file's new name outlive a loss of power, where the system has a way to."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def named(path: Path, what: str, error: BaseException) -> KvFileError:
    """A KvFileError with the reason that the system gives; an error that has a name already stays as it is."""
    if isinstance(error, KvFileError):
        return error
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    found = KvFileError(f"{path}: {what}: {reason}")
    found.errno = getattr(error, "errno", None)
    return found


def _check_regular(path: Path, info: os.stat_result) -> None:
    mode = info.st_mode
    if stat.S_ISLNK(mode):
        raise KvFileError(f"{path}: is a symbolic link; expected the path of the file that it leads to")
    if stat.S_ISDIR(mode):
        raise KvFileError(f"{path}: is a folder; expected a file")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise KvFileError(f"{path}: is a pipe or a device; expected a regular file")
