"""The files of a pool in one folder: which of them are this model's, what they take, and the order of their use.

The folder itself is the truth: it is looked at again before every write.  So files of an earlier run are found, changes by
another process are noticed, and nothing has to be put right after an interrupt.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import KvFileError, KvFileInvalid, KvFileLocked
from ..persist import inspect, read_header
from ..persist.files import named, remove
from ..persist.identity import Identity, identity_of
from .tree import Entry, PrefixTree, Usage, path_of_text

if TYPE_CHECKING:
    from ..persist.identity import StateMaker

_NAME = re.compile(r"kv-slot-([0-9]{1,15})\.fuxkv")

Stamp = tuple[int, int, int]  # time of the last change, bytes, number of the file


@dataclass(slots=True)
class Stored:
    """A file of this model.

    name, stamp, size : what tells whether it has changed; bytes, of one that is being written those that it may get.
    salt : of its tenant, as its header has it.
    used : grows with every use.
    entry, indexed : its text in the index, once that was needed; whether it was.
    writer : who writes it; as long as that lives, the size stands for what the file may get.
    """

    name: str
    stamp: Stamp
    size: int
    salt: bytes
    used: int
    entry: Entry | None = None
    indexed: bool = False
    writer: weakref.ref[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether it is being written."""
        return self.writer is not None and self.writer() is not None

    def reserve(self, writer: object, size: int) -> None:
        """Let somebody write it.  If he goes without a word (Ctrl-C), the next look at the folder tells what it holds."""
        self.writer, self.stamp, self.size = weakref.ref(writer), (0, 0, 0), size


class Folder:
    """Files `kv-slot-<number>.fuxkv`; others, links and folders are left alone, and so are those of other models.

    Raises
    ------
    KvFileError : the folder cannot be made or read.
    """

    def __init__(self, path: Path, model: StateMaker) -> None:
        self.path = path
        self.files: dict[str, Stored] = {}
        self._usage = Usage()
        self._identity: Identity = identity_of(model)
        self._foreign: dict[str, Stamp] = {}
        self._trees: dict[bytes, PrefixTree] = {}
        self._tick = self._last = 0
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a name that no system has
            raise named(path, "cannot be made", error) from None

    @property
    def size(self) -> int:
        """Bytes of this model's files."""
        return sum(stored.size for stored in self.files.values())

    def scan(self) -> None:
        """Look which files there are, and read the headers of those that are new or have changed."""
        found: dict[str, Stamp] = {}
        try:
            with os.scandir(self.path) as listing:
                for item in listing:
                    number = _NAME.fullmatch(item.name)
                    if number is None:
                        continue
                    self._last = max(self._last, int(number[1]))
                    stamp = _stamp(Path(item.path))
                    if stamp is not None:
                        found[item.name] = stamp
        except OSError as error:
            raise KvFileError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        for gone in [stored for name, stored in self.files.items() if name not in found and not stored.busy]:
            self.forget(gone)
        for name, stamp in sorted(found.items(), key=lambda item: item[1]):
            stored = self.files.get(name)
            if stored is not None and (stored.busy or stored.stamp == stamp):
                continue
            if self._foreign.get(name) != stamp:
                self._read(name, stamp, stored)

    def _read(self, name: str, stamp: Stamp, known: Stored | None) -> None:
        if known is not None:
            self.forget(known)
        self._foreign.pop(name, None)
        try:
            header = read_header(self.path / name)
            foreign = header.version != 3 or bool(header.differs(self._identity._replace(salt=header.salt)))
        except (KvFileInvalid, KvFileError):
            foreign = True  # damaged, or just begun by another process: not ours to judge
        if foreign:
            self._foreign[name] = stamp
            return
        self._tick += 1
        self.files[name] = Stored(name, stamp, stamp[1], header.salt, known.used if known else self._tick)

    def text_index(self, salt: bytes) -> PrefixTree:
        """The texts of one tenant's files; reads the tokens of those that were not needed before."""
        tree = self._trees.get(salt)
        if tree is None:
            tree = self._trees[salt] = PrefixTree(salt, self._usage)
        new = [stored for stored in self.files.values() if stored.salt == salt and not stored.indexed]
        for stored in sorted(new, key=lambda stored: stored.used):
            try:
                found = inspect(self.path / stored.name, rows=False)
            except (KvFileInvalid, KvFileError):
                stored.indexed = True  # it has changed since its header was read: the next scan sees that
                continue
            prefix = found.header.prefix_rows
            self.enter(stored, path_of_text(found.tokens[: found.rows - prefix], prefix))
        return tree

    def enter(self, stored: Stored, path: bytes) -> None:
        """Let a file be found by its text."""
        self._leave(stored)
        stored.indexed = True
        if not path:
            return
        tree = self._trees.setdefault(stored.salt, PrefixTree(stored.salt, self._usage))
        entry = tree.add(tree.end_of(path), item=stored)
        if entry.item is not stored:  # the same text in two files: the newer one will do
            entry.item.entry = None
            entry.item = stored
        stored.entry, entry.used = entry, stored.used
        tree.touch(tree.nodes_to(entry.node), entry)

    def use(self, stored: Stored) -> None:
        """Note that a file was used."""
        self._tick += 1
        stored.used = self._tick
        if (entry := stored.entry) is not None:
            entry.used = self._tick
            entry.tree.touch(entry.tree.nodes_to(entry.node), entry)

    def _leave(self, stored: Stored) -> None:
        if stored.entry is not None:
            stored.entry.tree.remove(stored.entry)
            stored.entry = None

    def forget(self, stored: Stored) -> None:
        """Take a file out of the index."""
        self._leave(stored)
        self.files.pop(stored.name, None)

    def settle(self, stored: Stored, path: bytes) -> None:
        """A file was written: take its size, and let it be found by its text."""
        stamp = _stamp(self.path / stored.name)
        if stamp is None:  # somebody has removed it
            self.forget(stored)
            return
        stored.writer, stored.stamp, stored.size = None, stamp, stamp[1]
        self.enter(stored, path)
        self.use(stored)

    # --- writing ------------------------------------------------------------------------------------------------------

    def make(self, salt: bytes) -> Stored:
        """Make an empty file under a new name; nobody else has it.  Raises KvFileError if the system does not allow it."""
        while True:
            self._last += 1
            name = f"kv-slot-{self._last}.fuxkv"
            try:
                os.close(os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                continue
            except OSError as error:
                raise named(self.path / name, "cannot be made", error) from None
            self.files[name] = stored = Stored(name, (0, 0, 0), 0, salt, 0, indexed=True)
            self.use(stored)
            return stored

    def _is_gone(self, stored: Stored) -> bool:
        """Whether another process has removed a file, and perhaps given its name to one of another model or tenant."""
        stamp = _stamp(self.path / stored.name)
        if stamp is None or (stored.stamp[2] and stamp[2] != stored.stamp[2]):
            return True
        try:
            header = read_header(self.path / stored.name)
        except (KvFileInvalid, KvFileError):
            return False
        return header.version != 3 or bool(header.differs(self._identity._replace(salt=stored.salt)))

    def remove(self, stored: Stored) -> bool:
        """Remove a file; False if another process did.

        Raises
        ------
        KvFileLocked : another process writes it.  KvFileError : the system does not allow it.
        """
        gone = self._is_gone(stored)
        if not gone:
            remove(self.path / stored.name)
        self.forget(stored)
        return not gone

    def trim(self, budget: int) -> bool:
        """Remove the files that were not used for longest until the others fit; whether they do."""
        locked: set[str] = set()
        while self.size > budget:
            idle = [stored for stored in self.files.values() if not stored.busy and stored.name not in locked]
            if not idle:
                return False
            oldest = min(idle, key=lambda stored: stored.used)
            try:
                self.remove(oldest)
            except KvFileLocked:  # another process writes it
                locked.add(oldest.name)
        return True


def _stamp(path: Path) -> Stamp | None:
    """What changes when a regular file does; None for anything else, and where there is nothing."""
    try:
        info = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (info.st_mtime_ns, info.st_size, info.st_ino) if stat.S_ISREG(info.st_mode) else None
