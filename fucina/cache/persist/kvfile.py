"""One file of a conversation: opened, locked, restored from and appended to."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import ref

import numpy as np

from ...errors import KvCacheShapeMismatch, KvFileError, KvFileInvalid
from ..state import State
from . import header as headers
from .files import Storage, named, open_to_write, sync_folder
from .header import MAGIC, Header
from .identity import Identity, StateMaker, identity_of
from .records import Index, scan, text_of
from .restoring import Restored, restore
from .writing import Writer, checked, checked_notes, kept, prefix_differs


@dataclass(frozen=True, slots=True)
class _Content:
    """What the file is known to hold; replaced as a whole, so that an interrupt leaves the old or the new.

    clean : the counter on the disk says exactly this.
    owner : the state whose rows it was restored into, or written from.
    """

    header: Header | None = None
    index: Index = Index(0, 0)
    sequence: int = 0
    clean: bool = False
    owner: ref[State] | None = None


class KvFile:
    """A file of rows, version 3, that this object alone may write until it is closed.

    Made by `KvFile.open`.  Calls from several threads wait for each other.

    Attributes
    ----------
    path : of the file.
    why : what is wrong with the file that was there: of another model, damaged, of an older version; "" if nothing is,
        or if it is new.  What cannot be restored is overwritten by the next `append`.
    """

    def __init__(self, file: Storage, identity: Identity, path: Path | None = None, fsync: bool = False) -> None:
        self.path = Path("the file") if path is None else path
        self._file: Storage | None = file
        self._identity, self._fsync = identity, fsync
        self._lock = threading.RLock()  # if Ctrl-C keeps a lock from being released, this thread can go on
        self._process = os.getpid()
        self._content, self.why = self._look(file)

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: StateMaker, *, fsync: bool = False, salt: bytes = b"") -> KvFile:
        """Open the file of a conversation to write it; there may be none yet.

        Reads the tokens, not the rows: `restore` does.

        Parameters
        ----------
        path : its folder must exist; the last part must not be a symbolic link.
        model : whose states are stored (a `Model`, or anything with `new_cache`).
        fsync : wait for the device at every `append`: the file then outlives a loss of power, not only of the process.
        salt : names a tenant; files of one salt give nothing to another.

        Raises
        ------
        KvFileLocked : somebody else has it open to write.
        KvFileError : it cannot be opened or made.
        KvFileInvalid : there is a file that is none of rows; it is left as it is.
        """
        path = Path(path)
        identity = identity_of(model, salt)
        file = open_to_write(path)
        try:
            if fsync:
                sync_folder(path.parent)  # it may be new
            return cls(file, identity, path, fsync)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                raise named(path, "cannot be read", error) from None
            raise

    def _look(self, file: Storage) -> tuple[_Content, str]:
        """Read the header, and follow the records by their heads."""
        sector = file.read_at(0, 512)
        begin = sector[:8]
        if not any(sector) or (len(begin) < 8 and any(magic.startswith(begin) for magic in MAGIC.values())):
            return _Content(), ""  # new, or its first write did not come to its end
        if begin not in MAGIC.values():
            raise KvFileInvalid(
                f"{self.path}: is no file of rows, it begins with {begin!r}; expected one, or no file of this name"
            )
        try:
            found = headers.read(file)
        except KvFileInvalid as error:
            return _Content(), str(error)
        if found.version < 3:
            return _Content(), f"it is of version {found.version}, which has no checks; fucina.cache.load reads it"
        if why := found.differs(self._identity):
            return _Content(), why
        counter = headers.newest(file, found.size, found.checksum)
        if counter is None:
            return _Content(), "neither of its counters is whole"
        index, why = scan(file, found, counter.end)
        return _Content(found, index, counter.sequence, not why), why

    # --- what it holds ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"KvFile({str(self.path)!r}, {self.len} positions{', closed' if self._file is None else ''})"

    @property
    def len(self) -> int:
        """Positions that the file holds, those of a prefix included."""
        return len(self._content.index)

    @property
    def prefix_rows(self) -> int:
        """Positions at the beginning that belong to no token."""
        return self._content.header.prefix_rows if self._content.header else 0

    @property
    def tokens(self) -> list[int]:
        """The tokens after the prefix; the newest one of a reply, without a row yet, included."""
        return text_of(self._content.index, self.prefix_rows)

    @property
    def notes(self) -> list[bytes]:
        """The owner's notes."""
        return self._content.index.notes()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        with self._lock:
            return self._opened().size()

    # --- restore and append -----------------------------------------------------------------------------------------

    def restore(self, state: State, limit: int | None = None) -> Restored:
        """Fill an empty state with the largest true prefix that the file holds and a pass can go on from.

        All rows are read, and their checksums compared.  Recurrent parts come back with their checkpoints.

        Parameters
        ----------
        limit : take at most so many tokens; what comes after them stays in the file until the next `append`.

        Returns
        -------
        Restored : if nothing can be used, the state is empty, and so are `tokens` and `notes`; `why` says why.

        Raises
        ------
        KvCacheShapeMismatch : the state is not empty, or not of the model that the file was opened for.
        KvFileError : the file cannot be read.  The state is empty then.
        """
        with self._lock:
            file, content = self._opened(), self._content
            self._check(state)
            if state.len:
                raise KvCacheShapeMismatch(
                    f"{self.path}: is restored into an empty state, this one holds {state.len} rows"
                )
            if content.header is None:
                return Restored([], 0, [], 0, self.why or "the file is new")
            wanted = content.index if limit is None else content.index.cut(content.header.prefix_rows + limit)
            try:
                index, restored = restore(file, content.header, wanted, state)
            except OSError as error:
                raise named(self.path, "cannot be read", error) from None
            whole = len(index) == len(wanted)
            if limit is not None and whole:
                index = content.index
            self._content = replace(content, index=index, clean=content.clean and whole, owner=ref(state))
            if limit is None:
                return restored._replace(why=restored.why or self.why)
            return restored._replace(tokens=restored.tokens[:limit], why="" if whole else restored.why)

    def append(
        self, state: State, tokens: Sequence[int], prefix_rows: int = 0, notes: Sequence[bytes] | None = None
    ) -> int:
        """Make the file hold what a state holds: cut what differs, write what is new, then the counter.

        Call `restore` before, where a file is to be continued: rows that were never read are not compared with their
        checksums.

        Parameters
        ----------
        tokens : those of the state's rows after the prefix; one more, if the newest token has no row yet.
        prefix_rows : positions at the beginning that belong to no token.
        notes : all notes of the owner; those that the file holds are not written again.  None keeps those that were
            there when the file held the common prefix.

        Returns
        -------
        int : bytes written.

        Raises
        ------
        KvPersistTokenMismatch : not as many tokens as rows.  TokenOutOfRange, InvalidOption : they are none.
        KvCacheShapeMismatch : a state of another model.
        KvFileInvalid : notes that are none.
        KvFileError : the disk is full, the file cannot be written, was removed, or was closed.  What it holds is a true
            prefix.
        """
        with self._lock:
            file = self._opened()
            self._check(state)
            if not file.is_there():
                raise KvFileError(f"{self.path}: was removed or replaced while it was open; expected one that stays")
            ids = checked(state, tokens, prefix_rows)
            wanted = None if notes is None else checked_notes(notes)
            every = np.concatenate([np.zeros(prefix_rows, np.uint32), ids])
            try:
                return self._append(file, state, every, prefix_rows, wanted)
            except OSError as error:
                raise named(self.path, f"cannot be written after {self.len} positions", error) from None

    def _append(
        self, file: Storage, state: State, tokens: np.ndarray, prefix_rows: int, notes: list[bytes] | None
    ) -> int:
        content, header, written = self._content, self._content.header, 0
        known = content.owner is not None and content.owner() is state
        if (
            header is None
            or header.prefix_rows != prefix_rows
            or file.size() < (content.index.end if content.index.end > header.start else header.size)  # it was cut
            or prefix_differs(content.index, state, prefix_rows, known)
        ):
            header, written = self._begin(file, prefix_rows)
            content = _Content(header, Index(header.start, header.checksum))
        rows = kept(content.index, state, tokens)
        clean = content.clean and rows == len(content.index)
        content = replace(content, index=content.index.cut(rows), clean=False, owner=ref(state))
        # From here on the disk may hold other records after these, however this ends.
        self._content = content
        writer = Writer(file, header, content.index, written)
        if notes is not None:
            writer.cut_notes(notes)
        writer.state(state, tokens)
        writer.pending(int(tokens[state.len]) if len(tokens) > state.len else None)
        if notes is not None:
            writer.notes(notes)
        if clean and not writer.written:
            self._content = replace(content, clean=True)
            return 0
        if self._fsync:
            file.sync()
        counter = headers.Counter(content.sequence + 1, writer.index.end, len(writer.index))
        written = writer.written + headers.write_counter(file, header, counter)
        if self._fsync:
            file.sync()
        self._content = replace(content, index=writer.index, sequence=counter.sequence, clean=True)
        self.why = ""
        if file.size() > counter.end:  # of a turn that was undone nothing stays on the disk
            file.truncate(counter.end)
        return written

    def _begin(self, file: Storage, prefix_rows: int) -> tuple[Header, int]:
        """Begin the file anew; returns its header, and the bytes written."""
        header, data = headers.make(self._identity, prefix_rows)
        self._content = _Content()
        file.truncate(0)
        file.write_at(0, data)
        return header, len(data)

    def _opened(self) -> Storage:
        if self._file is None:
            raise KvFileError(f"{self.path}: was closed; open it again")
        if self._process != os.getpid():
            raise KvFileError(f"{self.path}: was opened by another process, of which this one is a copy; open it here")
        return self._file

    def _check(self, state: State) -> None:
        if Identity.of(state) != self._identity._replace(tokenizer=bytes(16), salt=bytes(16)):
            raise KvCacheShapeMismatch(f"{self.path}: the state is not of the model that the file was opened for")

    def close(self) -> None:
        """Close the file and release its lock; once more does nothing."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def __enter__(self) -> KvFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
