"""The JSON files of a published model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import checks
from ..errors import ConvertError

MAX_BYTES = 1 << 28
"""Longest JSON file; real ones are below 2**26."""


def shown(value: Any) -> str:
    """What a file says, as a message shows it: ASCII, shortened."""
    return checks.shown(value).encode("ascii", "backslashreplace").decode()


def json_object(raw: bytes, what: str, error: type[ConvertError] = ConvertError) -> dict[str, Any]:
    """The object that a JSON text holds; what : its name in messages.

    Raises
    ------
    error : it is no JSON text, no object, or has a key twice.
    """
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as wrong:
        raise error(f"{what} is no JSON text: {shown(str(wrong))}") from None
    if not isinstance(value, dict):
        raise error(f"{what} holds a {type(value).__name__}; expected an object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return found


def json_file(path: Path, needed: str = "") -> dict[str, Any]:
    """The object in a file; an empty one where there is no such file.

    needed : what it is for; with it, a missing file is an error.

    Raises
    ------
    ConvertError : it is missing and needed, cannot be read, is too long, or holds no JSON object.
    """
    try:
        if path.is_file():
            if path.stat().st_size > MAX_BYTES:
                raise ConvertError(f"{path}: {path.stat().st_size} bytes; expected at most {MAX_BYTES}")
            return json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror})") from error
    if needed:
        raise ConvertError(f"{path} is missing, {needed}")
    return {}
