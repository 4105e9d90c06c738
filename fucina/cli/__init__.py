"""The `fucina` command: one file per subcommand, imported only when it runs.

Exit codes: 0 done, 1 it failed (one line on stderr tells why), 2 wrong usage, 130 ended with Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .. import __version__
from ..errors import FucinaError, InvalidOption, InvalidSamplerOption
from . import text
from .quick_start import quick_start

COMMANDS = {
    "generate": "continue a text",
    "chat": "hold a conversation with a model",
    "info": "show what is in a model file",
    "tokenize": "turn a text into token ids, or ids into text",
    "models": "list known models, find or fetch one",
    "convert": "write a published model (safetensors) as a GGUF file",
    "quantize": "write a model with its matrices in another format",
    "serve": "answer requests over HTTP, in the shape of OpenAI's API",
    "cluster": "serve by replicas of Ray Serve, or simulate how many would answer a trace",
    "cache": "list, show, verify or prune files of stored texts",
    "perplexity": "tell how surprised a model is by a text",
    "bench": "measure speed on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; default those of the process.
    """
    text.prepare_streams()
    try:
        if argv is not None:
            return _guarded(list(argv))
        with quick_start():
            return _guarded(sys.argv[1:])
    finally:
        text.drop_output()


def _guarded(arguments: list[str]) -> int:
    """Run the command; errors that are expected become one line on stderr and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = _run(arguments)
            sys.stdout.flush()
            return status
    except (InvalidOption, InvalidSamplerOption) as error:
        return _fail(error, 2)
    except FucinaError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            text.tell("")  # after the ^C that the terminal shows
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has closed it: an error line would not be read either
        return 0
    except OSError as error:
        if not text.is_output_error(error):
            raise
        return _fail(f"the output cannot be written: {error.strerror}", 1)


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fucina", description="Language models on a CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fucina {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        description = summary[0].upper() + summary[1:] + "."
        sub = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
        if name == asked:  # the others are only named
            module = importlib.import_module(f".{name}", __name__)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as end:  # --help, --version, or wrong usage: argparse has printed the text for it
        return int(end.code or 0)
    return args.run(args)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    text.tell(f"warning: {message}")


def _fail(error: FucinaError | str, status: int) -> int:
    message = " ".join(str(error).split()) or type(error).__name__
    with suppress(OSError):  # stderr may be what cannot be written
        text.tell(f"fucina: {message}")
    return status
