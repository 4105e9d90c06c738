"""`fucina quantize`: write a model with its matrices in another format."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Write a model with its matrices in another format: Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, IQ4_NL, Q3_K, "
        "Q2_K, TQ2_0, F16, BF16 or F32. Norms stay as they are, the matrix that makes the logits gets Q6_K or more. "
        "A model that is quantised already loses a little more each time."
    )
    parser.add_argument("model", metavar="IN", help="a known name, or a .gguf")
    parser.add_argument("target", metavar="OUT", help="the new .gguf; one that exists is replaced only with --force")
    parser.add_argument("format", metavar="TYPE", type=str.upper, help="the format, for instance Q4_K")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (as many as this process has processors)")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and say what is in it."""
    from .. import hub
    from ..errors import FucinaError, GgufOpenError, InvalidOption
    from ..gguf import GgufFile, quantize_file
    from ..measure.machine import usable_cpus

    if args.threads is not None and args.threads < 1:
        raise InvalidOption(f"--threads {args.threads}: expected 1 or more")
    target = Path(args.target)
    if target.exists() and not args.force:
        raise InvalidOption(f"{target} exists; expected a new name, or --force")
    start = time.monotonic()
    with GgufFile(hub.find(args.model)) as file:
        before = sum(part.stat().st_size for part in file.parts)
        try:
            with text.progress_line() as progress:
                plan = quantize_file(file, target, args.format, progress, args.threads or usable_cpus())
        except OSError as error:
            if isinstance(error, FucinaError):
                raise
            raise GgufOpenError(f"{target} cannot be written: {error.strerror}") from error
    formats = Counter(t.name for t in plan.values())
    after, seconds = target.stat().st_size, time.monotonic() - start
    if args.json:
        document = {"file": str(target), "bytes_before": before, "bytes": after, "seconds": seconds}
        text.print_json({**document, "tensors": dict(formats)})
    else:
        found = ", ".join(f"{count} {name}" for name, count in formats.most_common())
        print(f"{target}: {text.megabytes(before)} -> {text.megabytes(after)} in {seconds:.1f} s; tensors: {found}")
    return 0
