"""The tier on disk: texts that memory has no room for are written to files, and read when they serve a request best.

Files are of version 3 (`fucina.cache.persist`): they name model and tenant, and everything that they give is checked.
The index is locked only to look something up or to note a change; rows are written and read without a lock.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import KvFileError, KvFileInvalid, KvFileLocked
from ...interrupts import HoldInterrupts
from ..persist import KvFile, inspect, load, salt_hash
from ..persist.header import make
from ..persist.identity import identity_of
from ..persist.records import HEAD_BYTES
from ..rows import append_rows
from .folder import Folder, Stored
from .store import Victim
from .tree import TOKEN, path_of_text, shared, text_of_path

if TYPE_CHECKING:
    from ...engine import Engine
    from ..state import State


@dataclass(slots=True, weakref_slot=True)
class _Job:
    """A file that is being written: reserved, then written, then settled.

    before : the text that it had; empty, if it is a new file.
    written : it holds the whole text.  useless : it is to be removed.
    """

    stored: Stored | None = None
    before: bytes = b""
    written: bool = False
    useless: bool = False


class DiskTier:
    """Files of one pool.

    Parameters
    ----------
    model : whose rows they hold.
    folder : made if it does not exist.
    budget : bytes that this model's files in the folder may take; the oldest of those found go if they take more.

    Attributes
    ----------
    spills, restores, errors : files written; requests served from files; texts that could not be written.
    """

    def __init__(self, model: Engine, folder: Path, budget: int) -> None:
        self.budget, self.spills, self.restores, self.errors = budget, 0, 0, 0
        self._model, self._folder = model, Folder(folder, model)
        self._lock = threading.Lock()
        header, _ = make(identity_of(model), 0)
        self._fixed, self._per_row, self._per_bank = header.start, HEAD_BYTES + header.row_bytes, 0
        if header.bank_bytes:
            self._per_bank = HEAD_BYTES + header.bank_bytes
        self._folder.scan()
        self._folder.trim(budget)

    def counts(self) -> tuple[int, int]:
        """How many files of this model there are, and their bytes."""
        with HoldInterrupts(), self._lock:
            return len(self._folder.files), self._folder.size

    # --- reading ------------------------------------------------------------------------------------------------------

    def restore(self, scope: bytes, path: bytes, gate: int, better_than: int, capacity: int) -> State | None:
        """A state with rows of the beginning of a text, all positions but the last at most.

        Parameters
        ----------
        gate : a file that shares no more positions than this is not similar enough to be read.
        better_than : positions that memory has; a file must give more.

        Returns
        -------
        State, or None if no file does.
        """
        limit = len(path) // TOKEN - 1
        _, prefix_rows = text_of_path(path)
        with HoldInterrupts(), self._lock:
            candidates = self._choose(scope, path, gate, better_than, limit)
        for stored in candidates:
            found = self._read(stored, scope, path, limit - prefix_rows, capacity)
            if found is not None and found.len > better_than:
                with HoldInterrupts(), self._lock:
                    self.restores += 1
                    self._folder.use(stored)
                return found
            self._drop_if_damaged(stored, scope)
        return None

    def _choose(self, scope: bytes, path: bytes, gate: int, better_than: int, limit: int) -> list[Stored]:
        """The file that shares most; and, should its windows not allow that, the longest one that lies on the way."""
        nodes, matched = self._folder.text_index(salt_hash(scope)).walk(path)
        found = [(matched, nodes[-1].latest)] if nodes else []
        found += [(node.end, node.entry) for node in reversed(nodes) if node.end <= matched and node.entry is not None]
        good: list[Stored] = []
        for same, entry in found:
            if entry is not None and same > gate and min(same, limit) > better_than and entry.item not in good:
                good.append(entry.item)
        return good[:2]

    def _read(self, stored: Stored, scope: bytes, path: bytes, limit: int, capacity: int) -> State | None:
        """The rows of a file that belong to a text."""
        file = self._folder.path / stored.name
        try:
            loaded = load(file, self._model, capacity=capacity, salt=scope, limit=limit)
        except KvFileError:
            return None
        if loaded is None:
            return None
        # What the file holds is compared again: since it was chosen, somebody may have written another text to it.
        state, same = loaded.state, shared(path, path_of_text(loaded.tokens, loaded.prefix_rows))
        state.rewind(state.rewind_point(min(same, state.len)))
        return state if state.len >= loaded.prefix_rows else None

    def _drop_if_damaged(self, stored: Stored, scope: bytes) -> None:
        """Remove a file that gave nothing because there is something wrong with it, and say so."""
        try:
            why = inspect(self._folder.path / stored.name, self._model, salt=scope).why
        except (KvFileError, KvFileInvalid) as error:
            why = str(error)
        word = "was removed"
        with HoldInterrupts(), self._lock:
            if not why or stored.busy or self._folder.files.get(stored.name) is not stored:
                return
            try:
                if not self._folder.remove(stored):
                    return
            except KvFileLocked:  # another process writes it: nothing is wrong but the moment
                return
            except KvFileError as error:  # a folder that became read-only: the request goes on all the same
                self._folder.forget(stored)
                word, why = "cannot be removed", f"{why}; {error}"
        warnings.warn(f"{stored.name} {word}, a request goes on without it: {why}", stacklevel=5)

    # --- writing ------------------------------------------------------------------------------------------------------

    def spill(self, victim: Victim, new: bytes = b"") -> None:
        """Write an entry that memory has dropped, if that is worth it.

        It is not if it is empty; if `new`, the text that pushed it out, shares at least half of it; if a file holds it
        already.  A file whose text it extends is continued, otherwise it gets one of its own.
        """
        match, path = victim.match, victim.path[: victim.match.point * TOKEN]
        _, prefix_rows = text_of_path(path)
        length = match.point - prefix_rows
        same = shared(path, new) - prefix_rows
        if length <= 0 or (new and 2 * same >= length):
            return

        def state() -> State:
            filled = self._model.new_cache(match.point)
            append_rows(filled, match.pieces, match.low, match.bank)
            return filled

        self.keep(victim.scope, path, state)

    def keep(self, scope: bytes, path: bytes, state: Callable[[], State], banks: int = 1) -> None:
        """Write a text, unless a file holds it already or it is above the budget alone.

        Parameters
        ----------
        state : gives a state with its rows, called if they are to be written.
        banks : places at which that has recurrent parts.
        """
        locked: set[str] = set()
        while True:
            job = _Job()
            try:
                with HoldInterrupts(), self._lock:
                    if not self._reserve(job, scope, path, banks, locked):
                        return
                self._write(job, scope, path, state())
                return
            except KvFileLocked:  # another process is at it, or was: leave that file alone
                assert job.stored is not None
                locked.add(job.stored.name)
            except KvFileError as error:
                job.useless, self.errors = True, self.errors + 1
                warnings.warn(f"a text was not stored on disk: {error}", stacklevel=4)
                return
            finally:
                with HoldInterrupts(), self._lock:
                    self._settle(job, path)

    def _reserve(self, job: _Job, scope: bytes, path: bytes, banks: int, locked: set[str]) -> bool:
        """Choose the file for a text, and make room for it: False if none is to be written."""
        folder, salt, rows = self._folder, salt_hash(scope), len(path) // TOKEN
        folder.scan()
        nodes, matched = folder.text_index(salt).walk(path)
        size = self._fixed + rows * self._per_row + banks * self._per_bank
        if matched == rows or size > self.budget:
            return False
        extended = [node.entry for node in nodes if node.entry is not None and node.end <= matched]
        usable = [entry for entry in extended if entry.item.name not in locked and not entry.item.busy]
        if usable:
            job.stored, old = usable[-1].item, usable[-1].length
            job.before = path[: old * TOKEN]
            size = max(size, usable[-1].item.size + (rows - old) * self._per_row + banks * self._per_bank)
        else:
            job.stored = folder.make(salt)
        job.stored.reserve(job, size)
        return folder.trim(self.budget)

    def _write(self, job: _Job, scope: bytes, path: bytes, state: State) -> None:
        assert job.stored is not None
        tokens, prefix_rows = text_of_path(path)
        with KvFile.open(self._folder.path / job.stored.name, self._model, salt=scope) as file:
            if file.why or not path_of_text(file.tokens, file.prefix_rows).startswith(job.before):
                raise KvFileLocked(f"{file.path}: is not what it was: {file.why or 'it holds another text'}")
            file.append(state, tokens, prefix_rows)
        job.written = True

    def _settle(self, job: _Job, path: bytes) -> None:
        """Note what became of a file."""
        if job.stored is None:
            return
        try:
            if job.written:
                self._folder.settle(job.stored, path)
                self.spills += 1
            elif job.useless or not job.before:
                self._folder.remove(job.stored)
            else:  # it still holds what it held, perhaps more: the next look at the folder tells
                self._folder.forget(job.stored)
            self._folder.trim(self.budget)
        except KvFileError as error:
            warnings.warn(f"the folder of the pool cannot be kept in order: {error}", stacklevel=5)
