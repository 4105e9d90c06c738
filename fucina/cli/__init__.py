"""The `fucina` command: one file a subcommand, each imported only when it runs.

Exit codes: 0 done, 1 it failed (one line on stderr says why), 2 wrong usage, 130 broken off with Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence

from .. import __version__
from ..errors import FucinaError, InvalidOption, InvalidSamplerOption

COMMANDS = {
    "generate": "continue a text",
    "chat": "hold a conversation with a model",
    "info": "say what is in a model file",
    "tokenize": "turn a text into token ids, or ids into text",
    "models": "list known models, find or fetch one",
    "bench": "measure speed on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; default those of the process.
    """
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(arguments)
    except (InvalidOption, InvalidSamplerOption) as error:
        return _fail(error, 2)
    except FucinaError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has had enough: nothing to say, nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fucina", description="Language models on a CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fucina {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in _available().items():
        sub = commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        if name == asked:  # the others are only named
            module = importlib.import_module(f".{name}", __name__)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as end:  # --help, --version, or wrong usage: argparse has said what there is to say
        return int(end.code or 0)
    status = args.run(args)
    sys.stdout.flush()
    return status


def _available() -> dict[str, str]:
    return {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(f"{__name__}.{name}")}


def _prepare_streams() -> None:
    """Never fail on a character that a terminal cannot show, or on a stream that whoever started us has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
        if encoding != "utf8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _fail(error: FucinaError, status: int) -> int:
    text = " ".join(str(error).split())
    print(f"fucina: {text or type(error).__name__}", file=sys.stderr)
    return status
