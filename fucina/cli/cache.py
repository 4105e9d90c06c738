"""`fucina cache`: look at files of stored texts, check and remove them."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FucinaError, InvalidOption
from . import common, text
from .cache_files import Found, find, inspected
from .save import SUFFIX

if TYPE_CHECKING:
    from ..cache.persist import Inspection
    from ..gguf import GgufFile

DAY = 24 * 60 * 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "action",
        choices=("list", "show", "verify", "prune"),
        help="list: one line per file.  show: all that a file says.  verify: read every record and compare its checksum; "
        "exit code 1 if one is damaged.  prune: remove files, without a question",
    )
    parser.add_argument(
        "path", type=Path, help=f"a folder, whose {SUFFIX} files are meant and no others; or one such file"
    )
    show = parser.add_argument_group("show")
    show.add_argument(
        "--text", action="store_true", help="the messages of a conversation; with --model, the text of all tokens"
    )
    show.add_argument("-m", "--model", metavar="NAME|PATH", help="the model whose rows they are")
    prune = parser.add_argument_group("prune (at least one of these)")
    prune.add_argument(
        "--max-bytes", metavar="SIZE", help="like 500MiB: remove those unused for longest until all take no more"
    )
    prune.add_argument("--older-than", type=float, metavar="DAYS", help="remove those not written for so many days")
    prune.add_argument("--damaged", action="store_true", help="remove those in which something is damaged")
    prune.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the action says."""
    pruning = (args.max_bytes is not None) + (args.older_than is not None) + args.damaged
    if args.action == "prune" and not pruning:
        raise InvalidOption("prune needs --max-bytes, --older-than or --damaged: it removes what you name")
    if args.action != "prune" and (pruning or args.dry_run):
        raise InvalidOption("--max-bytes, --older-than, --damaged and --dry-run belong to prune")
    if args.action != "show" and (args.text or args.model):
        raise InvalidOption("--text and --model belong to show")
    return {"list": _list, "show": _show, "verify": _verify, "prune": _prune}[args.action](args)


# --- list and show --------------------------------------------------------------------------------------------------


def _described(found: Found) -> dict[str, Any]:
    header = found.header
    document: dict[str, Any] = {
        "file": str(found.path),
        "bytes": found.info.st_size,
        "written": datetime.fromtimestamp(found.info.st_mtime).isoformat(timespec="seconds"),
    }
    if header is None:
        return {**document, "damaged": found.why}
    return {
        **document,
        "version": header.version,
        "tokens": max(header.rows - header.prefix_rows, 0),
        "prefix_rows": header.prefix_rows,
        "dtype": header.dtype,
        "model": header.fingerprint.hex() or None,
        "tenant": header.salt.hex() if any(header.salt) else None,
    }


def _list(args: argparse.Namespace) -> int:
    found, others = find(args.path)
    size = sum(f.info.st_size for f in found)
    documents = [_described(f) for f in found]
    if args.json:
        text.print_json({"path": str(args.path), "files": documents, "bytes": size, "others": others})
        return 0
    rows = [("file", "size", "tokens", "dtype", "model", "tenant", "written", "")]
    for f, d in zip(found, documents, strict=True):
        rows.append(
            (
                text.name(f.path.name),
                text.megabytes(d["bytes"]),
                str(d.get("tokens", "?")),
                d.get("dtype", "?"),
                (d.get("model") or "-")[:8],
                (d.get("tenant") or "-")[:8],
                d["written"],
                f"damaged: {d['damaged']}" if "damaged" in d else "",
            )
        )
    if found:
        print(text.columns(rows, right=(1, 2)))
    print(f"{_count(len(found))}, {text.megabytes(size)}" + (f"; {others} other left alone" if others else ""))
    return 0


def _show(args: argparse.Namespace) -> int:
    model = None if args.model is None else _open_model(args.model)
    found, _ = find(args.path)
    documents = []
    try:
        for f in found:
            documents.append(_shown(f, args.text, model))
    finally:
        if model is not None:
            model.close()
    if args.json:
        text.print_json(documents[0] if args.path.is_file() else {"path": str(args.path), "files": documents})
    else:
        print("\n\n".join("\n".join(_lines(d)) for d in documents))
    return 1 if any(d.get("damaged") for d in documents) else 0


def _shown(found: Found, with_text: bool, model: GgufFile | None) -> dict[str, Any]:
    document = _described(found)
    inspection, why = inspected(found, rows=False)
    if inspection is None:
        return {**document, "damaged": why}
    document |= {"tokens": len(inspection.tokens), "tokens_without_rows": _without_rows(inspection)}
    messages = _messages(inspection)
    if messages is not None:
        document |= {"messages": messages if with_text else len(messages)}
    if with_text and model is not None:
        document["text"] = _text_of(found, inspection, model)
    elif with_text and messages is None:
        raise InvalidOption(f"{found.path}: holds no conversation; --text needs --model to spell its tokens")
    return {**document, **({"damaged": why} if why else {})}


def _without_rows(inspection: Inspection) -> int:
    return len(inspection.tokens) - max(inspection.rows - inspection.header.prefix_rows, 0)


def _messages(inspection: Inspection) -> list[dict[str, Any]] | None:
    """The messages of a conversation; None if it is none."""
    from ..chat.notes import Notes
    from ..errors import NotASavedConversation

    try:
        return [dict(message) for message in Notes.read(inspection.notes, inspection.tokens)[1].messages]
    except NotASavedConversation:
        return None


def _open_model(name: str) -> GgufFile:
    from .. import hub
    from ..gguf import GgufFile

    return GgufFile(hub.find(name))


def _text_of(found: Found, inspection: Inspection, model: GgufFile) -> str:
    from ..tokenizers import load_tokenizer

    tokenizer, stored = load_tokenizer(model.metadata), inspection.header.tokenizer
    if any(stored) and stored != tokenizer.fingerprint:
        raise InvalidOption(
            f"{found.path}: is of another tokenizer: {stored.hex()}, and --model has {tokenizer.fingerprint.hex()}"
        )
    return tokenizer.decode(inspection.tokens)


def _lines(document: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in document.items():
        if name == "messages" and isinstance(value, list):
            lines += [text.plain(f"{m['role']}: {m['content']}") for m in value]
        elif name == "text":
            lines += ["text:", text.plain(value)]
        else:
            lines.append(f"{name.replace('_', ' ')}: {'-' if value is None else text.name(value)}")
    return lines


# --- verify and prune -----------------------------------------------------------------------------------------------


def _verify(args: argparse.Namespace) -> int:
    found, others = find(args.path)
    documents = []
    for f in found:
        inspection, why = inspected(f, rows=True)
        document = {"file": str(f.path), "bytes": f.info.st_size, "damaged": why or None}
        if inspection is not None:
            document |= {"positions": inspection.rows, "checks": inspection.header.version > 2}
        documents.append(document)
        if not args.json:
            whole = "whole" if document.get("checks", True) else "readable (its version has no checksums)"
            print(f"{text.name(f.path)}: {f'damaged: {why}' if why else whole}")
    damaged = sum(document["damaged"] is not None for document in documents)
    if args.json:
        text.print_json({"path": str(args.path), "files": documents, "damaged": damaged, "others": others})
    else:
        print(f"{_count(len(found))}, {damaged} damaged")
    return 1 if damaged else 0


def _prune(args: argparse.Namespace) -> int:
    from ..cache.persist.files import remove
    from ..checks import byte_count, real

    most = None if args.max_bytes is None else byte_count("--max-bytes", args.max_bytes)
    days = None if args.older_than is None else real("--older-than", args.older_than, 0)
    if not args.path.is_dir():
        raise InvalidOption(f"{args.path}: prune needs a folder")
    found, others = find(args.path)
    reasons: dict[Path, str] = {}
    now = time.time()
    for f in found:
        if days is not None and now - f.info.st_mtime > days * DAY:
            reasons[f.path] = f"not written for {(now - f.info.st_mtime) / DAY:.1f} days"
        elif args.damaged and (why := inspected(f, rows=True)[1]):
            reasons[f.path] = f"damaged: {why}"
    left = sum(f.info.st_size for f in found if f.path not in reasons)
    for f in sorted(found, key=lambda f: f.info.st_mtime):
        if most is not None and left > most and f.path not in reasons:
            reasons[f.path] = f"all take more than {most} bytes"
            left -= f.info.st_size
    removed: list[dict[str, Any]] = []
    failed = 0
    for f in found:
        if f.path not in reasons:
            continue
        document = {"file": str(f.path), "bytes": f.info.st_size, "why": reasons[f.path]}
        try:
            if not args.dry_run:
                remove(f.path, f.info)
        except FucinaError as error:
            failed += 1
            text.tell(f"not removed: {text.name(error)}")
            continue
        removed.append(document)
        if not args.json:
            print(f"{'would be removed' if args.dry_run else 'removed'}: {text.name(f.path)} ({document['why']})")
    size = sum(document["bytes"] for document in removed)
    if args.json:
        text.print_json({"path": str(args.path), "removed": removed, "bytes": size, "failed": failed, "others": others})
    else:
        kept = len(found) - len(removed)
        print(
            f"{_count(len(removed))} {'to remove' if args.dry_run else 'removed'}, {text.megabytes(size)}; {kept} left"
        )
    return 1 if failed else 0


def _count(n: int) -> str:
    return f"{n} file{'' if n == 1 else 's'}"
