"""Texts that come in (arguments, stdin, files) and go out (stdout, stderr, tables, JSON)."""

from __future__ import annotations

import argparse
import codecs
import errno
import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..errors import InvalidText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE, errno.EINVAL}

# --- standard streams -------------------------------------------------------------------------------------------


def prepare_streams() -> None:
    """Never fail on a character that a terminal cannot show, or on a standard stream that is closed from the start."""
    codecs.register_error("fucina", _show_what_can_be_shown)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 -- for the whole process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="fucina")


def _show_what_can_be_shown(error: UnicodeError) -> tuple[str | bytes, int]:
    """A handler for encoders: `?` for what the encoding lacks; bytes of a file name that is no text stay as they are."""
    assert isinstance(error, UnicodeEncodeError)
    code = ord(error.object[error.start])
    return (bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else "?"), error.start + 1


def is_output_error(error: OSError) -> bool:
    """Whether this error came from writing to stdout or stderr: it names no file."""
    return error.filename is None and error.errno in _OUTPUT_ERRORS


def drop_output() -> None:
    """Drop output that cannot be written, so that the interpreter does not fail on it again as it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def show(text: str) -> None:
    """Print a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Print a line about what is going on; stdout is for results alone."""
    print(text, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Print one JSON document, in ASCII."""
    print(json.dumps(document, indent=2, allow_nan=False))


# --- texts that come in -----------------------------------------------------------------------------------------


def argument(value: str) -> str:
    """A text from the command line: UTF-8, also where the locale knows ASCII only (`LC_ALL=C`).

    Raises
    ------
    argparse.ArgumentTypeError
        Its bytes are not UTF-8.
    """
    if value.isascii() or not any("\udc80" <= c <= "\udcff" for c in value):
        return value
    try:
        return decoded(os.fsencode(value), "the text")
    except InvalidText as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def decoded(raw: bytes, what: str, where: str = "") -> str:
    """Text from UTF-8; raises InvalidText, which names the first byte that is not."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidText(f"{what} is not UTF-8: byte 0x{raw[error.start]:02X} at {error.start}{where}") from None


def read_text(given: str | None, what: str) -> str:
    """Return a text given as an argument, or read it from stdin (UTF-8, one final newline dropped).

    Raises
    ------
    InvalidText
        stdin is not UTF-8.
    """
    if given is not None and given != "-":
        return given
    if sys.stdin.isatty():
        tell(f"reading the {what} from the terminal; end it with Ctrl-D (Ctrl-Z, Enter on Windows)")
    buffer = getattr(sys.stdin, "buffer", None)
    text = sys.stdin.read() if buffer is None else decoded(buffer.read(), f"the {what} on stdin")
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def read_lines() -> Iterator[str]:
    """Give the lines of stdin (UTF-8) as they come, without their ends or a byte order mark; raises InvalidText."""
    buffer = getattr(sys.stdin, "buffer", None)
    for number, raw in enumerate(sys.stdin if buffer is None else buffer, 1):
        line = raw if isinstance(raw, str) else decoded(raw, "stdin", f" of line {number}")
        yield (line.removeprefix("\ufeff") if number == 1 else line).removesuffix("\n").removesuffix("\r")


# --- tables -----------------------------------------------------------------------------------------------------


def columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    """Return rows as aligned columns; those whose numbers are in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def plain(text: str) -> str:
    """A text of a file in which nothing but new lines and tabs commands the terminal; the rest is escaped (`\\x1b`).

    Bytes of a file name that are no text stay as they are.
    """
    return "".join(c if _harmless(c) or c in "\n\t" else repr(c)[1:-1] for c in text)


def name(path: object) -> str:
    """A file's name in one line."""
    return "".join(c if _harmless(c) else repr(c)[1:-1] for c in str(path))


def _harmless(character: str) -> bool:
    return character.isprintable() or character == "\u3000" or 0xDC80 <= ord(character) <= 0xDCFF


def megabytes(size: int | None) -> str:
    """Return a size in MB (10**6 bytes), or ?."""
    return "?" if size is None else f"{size / 1e6:.1f} MB"


@contextmanager
def progress_line() -> Iterator[Callable[[int, int], None] | None]:
    """Give what shows progress(bytes done, bytes in all) on one line of a terminal; None where stderr is none."""
    shown = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > 0.2 or done == total:
            shown = now
            print(f"\r{megabytes(done)} of {megabytes(total)} ", end="", file=sys.stderr, flush=True)

    try:
        yield progress if sys.stderr.isatty() else None
    finally:
        if shown:
            print(file=sys.stderr)
