"""Known models: where each one is found on this machine, and how to get it.

A model file comes from an installed Python package (the file itself, or parts that are joined once), from the models
folder of the user's cache, or, asked for by `fetch`, from the Hugging Face hub.  Every file in the models folder was
complete and had the right hash when it got its name.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import FucinaError, HashMismatch, ModelNotFound
from .known_models import KNOWN, Entry, entry_named
from .userdirs import cache_home, named_folder

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that `fucina.load` knows by name, as this machine has it.

    available : `fucina.load` would work now.  installed : the file, None also where a package has parts of it that are
    joined when it is first used.  source : where it is, or where it can be had.  size (bytes) and sha256 : None where
    only the hub knows them.
    """

    name: str
    description: str
    licence: str
    size: int | None
    sha256: str | None
    available: bool
    installed: Path | None
    source: str


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a model: a path as it is, a known name where it is installed.

    Parts that a package brings are joined into the models folder the first time.

    Raises
    ------
    ModelNotFound
        There is no such file; the name is unknown; or the model is known and not installed (the message says how to
        get it).
    HashMismatch
        The joined parts are not the file they should be.
    """
    if isinstance(name_or_path, str) and (entry := entry_named(name_or_path)) is not None:
        if Path(name_or_path).is_file():  # an existing file takes precedence over a name
            return Path(name_or_path)
        path = _installed(entry)
        if path is None:
            raise ModelNotFound(f"model {entry.name!r} is not installed: {entry.how_to_get}")
        return path
    path = Path(name_or_path)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if exists:
        return path
    if isinstance(name_or_path, str) and path.name == name_or_path and path.suffix != ".gguf":
        raise _unknown(name_or_path)
    raise ModelNotFound(
        f"there is no file {str(name_or_path)!r}: expected a .gguf file, or a name from `fucina models`"
    )


def _unknown(name: str) -> ModelNotFound:
    close = difflib.get_close_matches(name.lower(), [n for e in KNOWN for n in (e.name, *e.aliases)], 1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    names = ", ".join(entry.name for entry in KNOWN)
    return ModelNotFound(f"no model is called {name!r}{hint}: known are {names}; or give the path of a .gguf file")


def list_known() -> list[KnownModel]:
    """Return all known models, with what this machine has of them."""
    return [_on_this_machine(entry) for entry in KNOWN]


def _on_this_machine(entry: Entry) -> KnownModel:
    path, parts = _complete(entry), _parts(entry)
    if path is not None and path.parent == models_folder():
        source = "models folder"
    else:
        source = f"package {entry.package}" if entry.package else f"huggingface.co/{entry.repository}"
    available = path is not None or bool(parts)
    return KnownModel(entry.name, entry.description, entry.licence, entry.size, entry.sha256, available, path, source)


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Return the file of a known model, downloaded from the Hugging Face hub if it is not installed.

    The file gets its name only when size and SHA-256 are right; an interrupted download leaves nothing.

    Parameters
    ----------
    name : str
        A known name.
    progress : callable, optional
        Called with the bytes so far and the bytes in all (None if unknown).

    Raises
    ------
    ModelNotFound
        The name is unknown, or the hub cannot be reached or refuses.
    HashMismatch
        The file arrived damaged, or neither this registry nor the hub can say what its hash should be.
    """
    entry = entry_named(name)
    if entry is None:
        raise _unknown(name)
    path = _installed(entry)
    if path is not None:
        return path
    from . import download

    def write(target: Path) -> None:
        download.download(entry.url, target, entry.size, entry.sha256, progress)

    return _publish(entry, write)


def how_to_get(name: str) -> str:
    """Return what to type to have a known model; raises ModelNotFound for a name that is not known."""
    entry = entry_named(name)
    if entry is None:
        raise _unknown(name)
    return entry.how_to_get


def models_folder() -> Path:
    """Return the folder for model files: `FUCINA_HOME`/models, or `fucina/models` in the user's cache folder.

    Where there is no home, it is in the temporary folder.  The folder need not exist.  Raises InvalidOption if
    `FUCINA_HOME` is a relative path.
    """
    if home := named_folder("FUCINA_HOME"):
        return home / "models"
    return (cache_home() or Path(tempfile.gettempdir())) / "fucina" / "models"


def _complete(entry: Entry) -> Path | None:
    """The file as one: in the models folder, or whole in a package."""
    folders = [models_folder(), *([_second_folder()] if _is_own(_second_folder()) else [])]
    candidates = [folder / entry.filename for folder in folders]
    if len(entry.parts) == 1:
        candidates += _parts(entry)
    return next((path for path in candidates if _has_size(path, entry.size)), None)


def _parts(entry: Entry) -> list[Path]:
    """The package's files of this model in order; empty if any is missing."""
    found = [_in_package(package, inside) for package, inside in entry.parts]
    parts = [path for path in found if path is not None]
    return parts if len(parts) == len(found) else []


def _installed(entry: Entry) -> Path | None:
    """The file, joined from its parts if need be."""
    path = _complete(entry)
    parts = _parts(entry)
    if path is not None or len(parts) < 2:
        return path

    def join(target: Path) -> None:
        digest = hashlib.sha256()
        with target.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != entry.sha256:
            raise HashMismatch(
                f"the parts in package {entry.package} join to SHA-256 {digest.hexdigest()}, expected {entry.sha256}"
            )

    return _publish(entry, join)


def _in_package(package: str, inside: str) -> Path | None:
    """A data file of an installed package, without importing the package (its own imports may be missing)."""
    try:
        importlib.invalidate_caches()  # it may have been installed while this process was running
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *inside.split("/"))
        if path.is_file():
            return path
    return None


def _publish(entry: Entry, write: Callable[[Path], None]) -> Path:
    """Let `write` make the file under a temporary name, and give it its own name when it is complete."""
    path = _writable_folder() / entry.filename
    try:
        _forget_broken_off(path)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FucinaError:
        raise
    except OSError as error:
        if _has_size(path, entry.size):  # another process was first, and Windows does not replace an open file
            return path
        raise ModelNotFound(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _forget_broken_off(path: Path) -> None:
    """Remove files that a killed process left, a day later."""
    for old in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - old.stat().st_mtime > 86400:
            old.unlink(missing_ok=True)


def _writable_folder() -> Path:
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    second = _second_folder()
    try:
        second.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ModelNotFound(f"cannot write model files to {folder} or {second}: {error.strerror or error}") from error
    if not _is_own(second):
        raise ModelNotFound(f"cannot write model files to {folder}, and {second} belongs to somebody else")
    return second


def _second_folder() -> Path:
    """Where model files go when the models folder cannot be written: this user's own, in the temporary folder."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"fucina-models-{user}"


def _is_own(folder: Path) -> bool:
    """True if nobody else can have put files there."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return not hasattr(os, "getuid") or (
        stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022
    )


def _has_size(path: Path | None, size: int | None) -> bool:
    try:
        return path is not None and path.is_file() and (size is None or path.stat().st_size == size)
    except OSError:
        return False
