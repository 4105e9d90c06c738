"""`fucina models`: list known models, find one, fetch one."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from .. import hub
from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--path", metavar="NAME", help="print the file of a model that is installed")
    what.add_argument(
        "--fetch", metavar="NAME", help="download a model from the Hugging Face hub unless it is installed"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list, or one path."""
    if args.path or args.fetch:
        path = hub.find(args.path) if args.path else _fetch(args.fetch)
        if args.json:
            text.print_json({"name": args.path or args.fetch, "path": str(path)})
        else:
            print(path)
        return 0
    known = hub.list_known()
    if args.json:
        documents = [dataclasses.asdict(model) for model in known]
        for document in documents:
            document["installed"] = document["installed"] and str(document["installed"])
        text.print_json({"models_folder": str(hub.models_folder()), "models": documents})
        return 0
    rows = [("name", "size", "installed", "licence", "description")]
    for model in known:
        installed = "yes" if model.available else "no"
        rows.append((model.name, text.megabytes(model.size), installed, model.licence, model.description))
    print(text.columns(rows, right=(1,)))
    for model in known:
        if model.available:
            where = model.installed or f"parts in {model.source}, joined when first used"
            print(f"\n{model.name}: {where}")
        else:
            print(f"\n{model.name}: {hub.how_to_get(model.name)}")
    return 0


def _fetch(name: str) -> Path:
    shown = 0.0

    def progress(done: int, total: int | None) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > 0.2 or done == total:
            shown = now
            print(f"\r{name}: {text.megabytes(done)} of {text.megabytes(total)} ", end="", file=sys.stderr, flush=True)

    on_terminal = sys.stderr.isatty()
    try:
        return hub.fetch(name, progress if on_terminal else None)
    finally:
        if on_terminal and shown:
            print(file=sys.stderr)
