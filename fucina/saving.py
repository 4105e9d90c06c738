"""A text that is kept in a file: what a failed write, or a damaged file, means for whoever goes on with it.

A reply that is there must not be lost because a disk is full: a write that fails becomes a warning, and the next one
writes what is missing.  What a file has lost is said, never passed over in silence.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .engine.drafts import common_prefix
from .errors import FucinaError, InvalidOption, KvFileInvalid, NotASavedText
from .interrupts import HoldInterrupts

if TYPE_CHECKING:
    from .cache import State
    from .cache.persist import KvFile, Restored
    from .model import Model


class SaveFailed(UserWarning):
    """A turn or a text could not be written to its file.  It is still there, and is written with the next one."""


class SaveCut(UserWarning):
    """A file is damaged: what comes before the damage is used, and the warning says what is lost."""


class SaveFile:
    """A file that one text is kept in, open and locked.

    Parameters
    ----------
    path : of the file; made if there is none.
    model : whose rows it holds.

    Attributes
    ----------
    lost : what could not be read, or "".
    error : why the latest write failed, or None.

    Raises
    ------
    InvalidOption : `path` is no path.
    KvFileInvalid : it is another model's file, no such file at all, or damaged from its beginning; it stays as it is.
    KvFileLocked : somebody else writes it.  KvFileError : it cannot be opened or made.
    """

    def __init__(self, path: str | os.PathLike[str], model: Model) -> None:
        from .cache import KvFile

        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise InvalidOption(f"save must be the path of a file, got {path!r}")
        self.path = Path(path)
        self.lost = ""
        self.error: Exception | None = None
        self._file: KvFile = KvFile.open(self.path, model)
        if self._file.why and self.empty:  # what the next write would replace
            why = self._file.why
            self._file.close()
            raise KvFileInvalid(f"{self.path}: {why}; it is left as it is, expected a file of this model, or none")

    @property
    def empty(self) -> bool:
        """Whether the file holds nothing yet."""
        return not (self._file.len or self._file.notes)

    @property
    def positions(self) -> int:
        """Positions that the file holds, those of a prefix included."""
        return self._file.len

    @property
    def tokens(self) -> list[int]:
        """The tokens that the file holds; their rows are not checked before `restore`."""
        return self._file.tokens

    @property
    def notes(self) -> list[bytes]:
        """The notes that the file holds."""
        return self._file.notes

    def restore(self, state: State, limit: int | None = None) -> Restored:
        """Fill an empty state from the file: at most its first `limit` tokens; see `KvFile.restore`."""
        return self._file.restore(state, limit)

    def warn_of_loss(self, message: str) -> None:
        """Say what a damaged file has lost."""
        self.lost = f"{self.path}: {message}"
        warnings.warn(self.lost, SaveCut, stacklevel=5)

    def write(self, state: State, tokens: Sequence[int], prefix_rows: int, notes: Sequence[bytes]) -> bool:
        """Let the file hold these tokens, their rows and notes: writes what it lacks; False if that failed.

        Rows of all tokens must be in the state, but that of the newest one.
        """
        try:
            with HoldInterrupts():
                self._file.append(state, tokens, prefix_rows, notes)
        except (OSError, FucinaError) as error:
            self.failed(error)
            return False
        self.error = None
        return True

    def failed(self, error: Exception) -> None:
        """Warn that what should be written is not."""
        self.error = error
        reason = str(error).removeprefix(f"{self.path}: ")
        warnings.warn(f"{self.path}: not saved, which is tried again later: {reason}", SaveFailed, stacklevel=3)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class SavedText:
    """The file of a text that is continued: what a new prompt shares with it is there, and the new text replaces it.

    Parameters
    ----------
    path : of the file.
    state : of the model, empty: gets the rows of what file and prompt share.
    ids : the prompt.

    Raises
    ------
    NotASavedText : the file holds a conversation.  The errors of `SaveFile`.
    """

    NOTE = b'{"fucina":"text","version":1}'

    def __init__(self, path: str | os.PathLike[str], model: Model, state: State, ids: Sequence[int]) -> None:
        self._file: SaveFile | None = SaveFile(path, model)
        try:
            self._begin(self._file, state, ids)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, file: SaveFile, state: State, ids: Sequence[int]) -> None:
        if any(note != self.NOTE for note in file.notes):
            raise NotASavedText(f"{file.path}: holds a conversation; expected a file of `generate`, or a new one")
        shared = common_prefix(file.tokens, ids[:-1])
        if not shared:
            return
        found = file.restore(state, shared)
        if found.why:
            file.warn_of_loss(f"{found.why}; {state.len} of the {shared} tokens of the prompt that it holds are used")

    def store(self, state: State, tokens: Sequence[int]) -> None:
        """Store the whole text, at the end of the run, and release the file; once more does nothing."""
        file = self._file
        if file is not None:
            file.write(state, tokens[: state.len + 1], 0, [self.NOTE])
            file.close()
            self._file = None
