"""`fucina info`: what is in a model file."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from typing import Any

import numpy as np

from ..cache.dtypes import DTYPES
from ..cache.parts import Part
from ..errors import GgufError, KvCacheShapeMismatch, ModelError, UnsupportedTokenizerFormat
from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "model", nargs="?", default="smollm2", metavar="NAME|PATH", help="a known name or a .gguf (smollm2)"
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--metadata", action="store_true", help="list every metadata key")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the description; nothing of the weights is read."""
    from .. import hub
    from ..gguf import GgufFile

    file = GgufFile(hub.find(args.model))
    document = describe(file)
    if args.tensors:
        document["tensors"] = [
            {"name": t.name, "shape": list(t.shape), "type": t.ggml_type.name, "bytes": t.nbytes}
            for t in file.tensors.values()
        ]
    if args.metadata:
        document["metadata"] = {key: file.metadata.describe(key) for key in file.metadata}
    file.close()
    if args.json:
        text.print_json(document)
    else:
        print(_readable(document))
    return 0


def describe(file: Any) -> dict[str, Any]:
    """Return what is in an open GGUF, as plain values."""
    from ..cache import MAX_ROWS, Layout
    from ..gguf import SUPPORTED
    from ..models import read_family
    from ..ops.multiplied import multiplied

    meta = file.metadata
    by_type: dict[str, dict[str, Any]] = defaultdict(lambda: {"tensors": 0, "parameters": 0, "bytes": 0})
    slow = set()
    for tensor in file.tensors.values():
        row = by_type[tensor.ggml_type.name]
        row["native"] = multiplied(tensor.ggml_type)
        if len(tensor.shape) > 1 and tensor.ggml_type in SUPPORTED and not row["native"]:
            slow.add(tensor.ggml_type.name)
        row["tensors"] += 1
        row["parameters"] += math.prod(tensor.shape)
        row["bytes"] += tensor.nbytes
    architecture = meta.str("general.architecture", default=None)
    document = {
        "file": str(file.path),
        "file_bytes": sum(part.stat().st_size for part in file.parts),
        "parts": len(file.parts),
        "name": meta.str("general.name", default=None),
        "licence": meta.str("general.license", default=None),
        "architecture": architecture,
        "sizes": {
            key.split(".", 1)[1]: meta[key].tolist() if isinstance(meta[key], np.ndarray) else meta[key]
            for key in meta
            if architecture
            and key.startswith(f"{architecture}.")
            and isinstance(meta[key], (int, float, str, np.ndarray))
        },
        "parameters": sum(row["parameters"] for row in by_type.values()),
        "tensor_types": dict(by_type),
        "needs_naive": sorted(slow),
        "chat_template": "tokenizer.chat_template" in meta,
        "tokenizer": _tokenizer(meta),
    }
    try:
        family = read_family(file)
        areas = Layout(family.parts).areas
        growing = sum(area.width for area in areas if area.kind == "full")
        fixed = sum(
            area.width * area.stride(family.config.context_length, MAX_ROWS) for area in areas if area.kind == "ring"
        )
        document |= {"runs_here": True, "why_not": None}
        recurrent = 4 * sum(area.width for area in areas if area.kind == "recurrent")
        document |= {"cache_bytes_per_position": 2 * growing, "cache_bytes_of_windows": 2 * fixed}
        document |= {"cache_bytes_per_position_in_q8_0": _in_q8_0(family.parts, growing)}
        document |= {"cache_bytes_of_recurrent_parts": recurrent}
    except (ModelError, GgufError) as error:
        document |= {"runs_here": False, "why_not": str(error)}
        document |= {"cache_bytes_per_position": None, "cache_bytes_of_windows": None}
        document |= {"cache_bytes_of_recurrent_parts": None, "cache_bytes_per_position_in_q8_0": None}
    return document


def _in_q8_0(parts: tuple[Part, ...], numbers: int) -> int | None:
    """Bytes of so many numbers in q8_0; None for a model whose cache cannot have it."""
    try:
        DTYPES["q8_0"].check(parts)
    except KvCacheShapeMismatch:
        return None
    return DTYPES["q8_0"].nbytes(numbers)


def _tokenizer(meta: Any) -> dict[str, Any] | None:
    from ..tokenizers import load_tokenizer

    try:
        tokenizer = load_tokenizer(meta)
    except (UnsupportedTokenizerFormat, GgufError) as error:
        return {"error": str(error)}
    return {
        "kind": meta.str("tokenizer.ggml.model", default=None),
        "pre": tokenizer.pre,
        "tokens": tokenizer.n_vocab,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "add_bos": tokenizer.add_bos,
        "ends": sorted(tokenizer.eog_ids),
    }


def _readable(d: dict[str, Any]) -> str:
    lines = [
        ("file", d["file"] + (f" and {d['parts'] - 1} more parts" if d["parts"] > 1 else "")),
        ("size", text.megabytes(d["file_bytes"])),
        ("name", d["name"] or "-"),
        ("licence", d["licence"] or "-"),
        ("architecture", f"{d['architecture']}" + ("" if d["runs_here"] else f"  (does not run here: {d['why_not']})")),
        ("parameters", f"{d['parameters']:,}"),
    ]
    lines += [(f"  {key}", _short(value)) for key, value in d["sizes"].items()]
    if d["runs_here"]:
        windows = d["cache_bytes_of_windows"]
        more = f", and at most {windows:,} bytes of windows" if windows else ""
        if recurrent := d["cache_bytes_of_recurrent_parts"]:
            more += f", and {recurrent:,} bytes of recurrent parts in each of three banks"
        blocks = d["cache_bytes_per_position_in_q8_0"]
        other = f"; q8_0: {blocks:,}" if blocks is not None else "; not in q8_0"
        lines.append(("cache", f"{d['cache_bytes_per_position']:,} bytes per position{more} (f16{other})"))
    if d["needs_naive"]:
        types = ", ".join(d["needs_naive"])
        lines.append(
            ("fast engine", f"no: it does not multiply {types}; --backend naive does, some hundred times slower")
        )
    lines.append(("tokenizer", _tokenizer_line(d["tokenizer"])))
    lines.append(("chat template", "yes" if d["chat_template"] else "no: a base model, it continues text"))
    out = [text.columns(lines), ""]
    rows: list[tuple[str, ...]] = [("type", "tensors", "parameters", "bytes", "fast engine")]
    for t, r in d["tensor_types"].items():
        rows.append((t, f"{r['tensors']}", f"{r['parameters']:,}", f"{r['bytes']:,}", "yes" if r["native"] else "no"))
    out.append(text.columns(rows, right=(1, 2, 3)))
    if "tensors" in d:
        rows = [("tensor", "shape", "type", "bytes")]
        rows += [(t["name"], " x ".join(map(str, t["shape"])), t["type"], f"{t['bytes']:,}") for t in d["tensors"]]
        out += ["", text.columns(rows, right=(3,))]
    if "metadata" in d:
        out += ["", text.columns([("metadata", "value"), *d["metadata"].items()])]
    return "\n".join(out)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(int(v) if isinstance(v, bool) else v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tokenizer_line(t: dict[str, Any]) -> str:
    if "error" in t:
        return f"cannot be used: {t['error']}"
    pre = f", rules {t['pre']}" if t["pre"] else ""
    bos = "added in front" if t["add_bos"] else "not added"
    return f"{t['kind']}{pre}, {t['tokens']} tokens, bos {t['bos']} ({bos}), eos {t['eos']}, ends {t['ends']}"
