"""`fucina perplexity`: how surprised a model is by a text."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from ..errors import InvalidOption
from ..perplexity import CHUNK, perplexity
from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("file", metavar="FILE", help="the text, UTF-8; - reads stdin")
    parser.add_argument(
        "model", nargs="?", default="smollm2", metavar="MODEL", help="a name from `fucina models`, or a .gguf (smollm2)"
    )
    parser.add_argument("--chunk", type=int, default=CHUNK, metavar="N", help=f"tokens per chunk ({CHUNK})")
    common.add_running_options(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the perplexity; on a terminal, how far it is."""
    given = _read(args.file)
    model = common.load_model(args)
    try:
        shown = sys.stderr.isatty()
        found = perplexity(model, given, args.chunk, _progress if shown else None)
        if shown:
            text.tell("")
    finally:
        model.close()
    if args.json:
        text.print_json(dataclasses.asdict(found))
    else:
        print(
            f"perplexity {found.value:.4f} +/- {found.error:.4f} "
            f"({found.tokens} tokens of {found.chunks} chunks of {found.chunk})"
        )
    return 0


def _read(name: str) -> bytes:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        data.decode("utf-8")
    except OSError as error:
        raise InvalidOption(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{name}: not UTF-8, at byte {error.start}") from None
    return data


def _progress(chunk: int, chunks: int, value: float) -> None:
    sys.stderr.write(f"\rchunk {chunk} of {chunks}: {value:.4f} ")
    sys.stderr.flush()
