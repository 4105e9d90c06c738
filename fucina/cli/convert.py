"""`fucina convert`: a published model becomes a GGUF file."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = (
        "Write a published model (a folder with config.json, tokenizer.json and safetensors) as a GGUF file. Families: "
        "llama, Mistral without windows, Qwen 3 and 3.5 with and without experts, Gemma 3 and 4 (text), DeepSeek V2 and V3. "
        "What may change the mathematics and is not known is refused by its name."
    )
    parser.add_argument("source", metavar="DIR", help="folder of the model")
    parser.add_argument("target", metavar="OUT", help="the new .gguf; one that exists is replaced only with --force")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        type=str.upper,
        help="format of the matrices, for instance F16 or Q4_K (that of the source)",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (as many as this process has processors)")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and say what is in it."""
    from ..convert import convert
    from ..errors import InvalidOption
    from ..measure.machine import usable_cpus

    if args.threads is not None and args.threads < 1:
        raise InvalidOption(f"--threads {args.threads}: expected 1 or more")
    target = Path(args.target)
    if target.exists() and not args.force:
        raise InvalidOption(f"{target} exists; expected a new name, or --force")
    start = time.monotonic()
    with text.progress_line() as progress:
        made = convert(args.source, target, args.type, progress, args.threads or usable_cpus())
    for remark in made.remarks:
        text.tell(f"note: {remark}")
    formats = Counter(t.name for t in made.formats.values())
    size, seconds = target.stat().st_size, time.monotonic() - start
    if args.json:
        document = {"file": str(target), "architecture": made.architecture, "bytes": size, "seconds": seconds}
        text.print_json({**document, "tensors": dict(formats), "notes": made.remarks})
    else:
        found = ", ".join(f"{count} {name}" for name, count in formats.most_common())
        print(f"{target}: {made.architecture}, {text.megabytes(size)} in {seconds:.1f} s; tensors: {found}")
    return 0
