"""Files of rows as wholes: written, loaded, looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...errors import KvFileError, KvFileInvalid
from ...replacing import replacing
from ..state import State
from . import header as headers
from . import plain
from .files import DiskFile, named, open_to_read, open_to_write, sync_folder, unlocked_to_replace
from .header import Header
from .identity import Identity, StateMaker, identity_of
from .kvfile import KvFile
from .records import Index, scan, text_of
from .restoring import Restored, damaged, restore
from .writing import checked


class Loaded(tuple[State, list[int]]):
    """A state, and the text whose rows it holds: `state, tokens = load(path, model)`.

    Attributes
    ----------
    state : of the model.
    tokens : those of the rows after the prefix, and the newest one of a reply, if its row is yet to be computed.
    prefix_rows : rows at the beginning that belong to no token.
    notes : of the owner.
    """

    prefix_rows: int
    notes: Sequence[bytes]

    def __new__(cls, state: State, tokens: list[int], prefix_rows: int = 0, notes: Sequence[bytes] = ()) -> Loaded:
        """Make the pair."""
        pair = super().__new__(cls, (state, tokens))
        pair.prefix_rows, pair.notes = prefix_rows, notes
        return pair

    @property
    def state(self) -> State:
        """The first of the two."""
        return self[0]

    @property
    def tokens(self) -> list[int]:
        """The second."""
        return self[1]


def save(
    path: str | os.PathLike[str],
    state: State,
    tokens: Sequence[int],
    *,
    version: int = 3,
    prefix_rows: int = 0,
    notes: Sequence[bytes] = (),
    fsync: bool = False,
    tokenizer: bytes = b"",
    salt: bytes = b"",
) -> int:
    """Write a file of a state's rows in one step: under a temporary name, renamed when it is complete.

    Parameters
    ----------
    tokens : those of the state's rows after the prefix; version 3 takes one more, whose row is yet to be computed.
    version : 3, or 2 for the format that others read: version 1, or with a prefix 2.  1 refuses a prefix.
    prefix_rows : positions at the beginning that belong to no token.
    notes, tokenizer, salt : of version 3: see `KvFile.append`, `Tokenizer.fingerprint`, `KvFile.open`.
    fsync : wait for the device.

    Returns
    -------
    int : bytes of the file.

    Raises
    ------
    KvPersistTokenMismatch : not as many tokens as rows.
    KvFileInvalid : a version or notes that are none, or that cannot hold this state.
    KvFileLocked : somebody has the file open to write.  KvFileError : it cannot be written.
    """
    plain.checked_version(version, prefix_rows)
    ids = checked(state, tokens, prefix_rows, most=1 if version == 3 else 0)
    if version < 3:
        plain.check_expressible(state)
        if notes or tokenizer or salt:
            raise KvFileInvalid("versions 1 and 2 have no notes, tokenizer or salt; expected version 3")
    path = Path(path)
    try:
        with unlocked_to_replace(path), replacing(path) as temporary:
            file = open_to_write(temporary)
            try:
                if version < 3:
                    plain.append(file, state, ids, prefix_rows)
                else:
                    KvFile(file, Identity.of(state, tokenizer, salt), path).append(state, tokens, prefix_rows, notes)
                if fsync:
                    file.sync()
                size = file.size()
            finally:
                file.close()
        if fsync:
            sync_folder(path.parent)
        return size
    except OSError as error:
        raise named(path, "cannot be written", error) from None


def append_plain(path: str | os.PathLike[str], state: State, tokens: Sequence[int], prefix_rows: int = 0) -> int:
    """Append to a file of version 1 (with a prefix: 2) what it does not hold; returns the bytes written.

    The rules are the format's: a file that is absent, foreign, of another geometry or prefix is begun anew; of rows that it
    counts already only the tokens are compared; if it counts more than the state holds, the count goes down.

    Raises
    ------
    KvPersistTokenMismatch : tokens and prefix together are not as many as the state's rows.
    KvFileInvalid : these versions cannot hold the state.  KvFileLocked, KvFileError : it cannot be written.
    """
    path = Path(path)
    ids = checked(state, tokens, prefix_rows, most=0)
    plain.check_expressible(state)
    file = open_to_write(path)
    try:
        return plain.append(file, state, ids, prefix_rows)
    except OSError as error:
        raise named(path, "cannot be written", error) from None
    finally:
        file.close()


# --- reading --------------------------------------------------------------------------------------------------------


def load(
    path: str | os.PathLike[str],
    model: StateMaker,
    *,
    capacity: int | None = None,
    salt: bytes = b"",
    limit: int | None = None,
    explain: list[str] | None = None,
) -> Loaded | None:
    """Make a state of a model from a file of any version.

    Version 3 gives the largest true prefix; of versions 1 and 2 only the geometry is compared, as they have no checks.

    Parameters
    ----------
    capacity : of the state; None takes the model's context.
    salt : the tenant.
    limit : tokens that are wanted at most: what comes after them need not fit, and is not read.
    explain : a list that gets a message about what was not usable.

    Returns
    -------
    Loaded, or None if there is nothing usable: no file, of another model or tenant, damaged at its beginning, more
    positions than the capacity.

    Raises
    ------
    KvFileError : the file cannot be read.
    """
    path, said = Path(path), [] if explain is None else explain
    try:
        with _reading(path) as file:
            header = headers.read(file)
            if why := header.differs(identity_of(model, salt)):
                raise KvFileInvalid(why)
            state = model.new_cache(capacity)
            restored = _restore(file, header, state, limit)
    except FileNotFoundError:
        said.append(f"{path}: there is no such file")
        return None
    except KvFileInvalid as error:
        said.append(f"{path}: {error}")
        return None
    if restored.why:
        said.append(f"{path}: {restored.why}")
    return Loaded(state, restored.tokens, restored.prefix_rows, restored.notes) if state.len else None


def _restore(file: DiskFile, header: Header, state: State, limit: int | None = None) -> Restored:
    if header.version < 3:
        restored = plain.load(file, header, state)
        state.truncate(state.len if limit is None else header.prefix_rows + limit)
    else:
        index, why = _index(file, header)
        wanted = index if limit is None else index.cut(header.prefix_rows + limit)
        restored = restore(file, header, wanted, state)[1]
        restored = restored._replace(why=restored.why or (why if wanted is index else ""))
    return restored._replace(tokens=restored.tokens[:limit])


def _index(file: DiskFile, header: Header) -> tuple[Index, str]:
    counter = headers.newest(file, header.size, header.checksum)
    if counter is None:
        return Index(header.start, header.checksum), "neither of its counters is whole"
    return scan(file, header, counter.end)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read what a file of any version says about itself; no record is read.

    Raises
    ------
    KvFileInvalid : it is no file of rows, or its header is damaged.
    KvFileError : it cannot be read, or there is none.
    """
    path = Path(path)
    try:
        with _reading(path) as file:
            return headers.read(file)
    except KvFileInvalid as error:
        raise KvFileInvalid(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise named(path, "cannot be read", error) from None


def read_tokens(path: str | os.PathLike[str]) -> list[int]:
    """Read the tokens of a file, without its rows: those after the prefix, and the newest one without a row.

    Of version 3 they are checked and end where the records do not fit.  Whether the rows are whole, `inspect` says.

    Raises
    ------
    KvFileInvalid, KvFileError : as `read_header`.
    """
    return inspect(path, rows=False).tokens


class Inspection(NamedTuple):
    """What is in a file.

    header : see `Header`.
    tokens, notes : what it holds after the prefix.
    rows : positions that are whole, those of the prefix included.
    size : bytes of the file.
    why : what is wrong with it; "" if nothing is.
    """

    header: Header
    tokens: list[int]
    notes: list[bytes]
    rows: int
    size: int
    why: str


def inspect(
    path: str | os.PathLike[str], model: StateMaker | None = None, *, salt: bytes = b"", rows: bool = True
) -> Inspection:
    """Look at a file of any version; with a model, also whether it is one of its.

    rows : read the rows too and compare their checksums (versions 1 and 2 have none).

    Raises
    ------
    KvFileInvalid, KvFileError : as `read_header`.
    """
    path = Path(path)
    try:
        with _reading(path) as file:
            header, size = headers.read(file), file.size()
            why = header.differs(identity_of(model, salt)) if model is not None else ""
            if header.version < 3:
                tokens = plain.tokens_of(file, header, header.rows)
                if not why and (count := plain.count_of(file)) > header.rows:
                    why = f"the file ends after {header.rows} positions, its count says {count}"
                return Inspection(header, tokens[header.prefix_rows :], [], len(tokens), size, why)
            index, torn = _index(file, header)
            if rows and (bad := damaged(file, header, index)) is not None:
                index, torn = index.cut(bad), f"the rows of position {bad} are damaged"
            text = text_of(index, header.prefix_rows)
            return Inspection(header, text, index.notes(), len(index), size, why or torn)
    except KvFileInvalid as error:
        raise KvFileInvalid(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise named(path, "cannot be read", error) from None


@contextmanager
def _reading(path: Path) -> Iterator[DiskFile]:
    """An open file; errors of the system get the file's name, but for that there is none."""
    file = open_to_read(path)
    try:
        yield file
    except (KvFileError, FileNotFoundError):
        raise
    except OSError as error:
        raise named(path, "cannot be read", error) from None
    finally:
        file.close()
