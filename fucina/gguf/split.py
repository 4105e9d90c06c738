"""Models that are split over several files: `name-00001-of-00003.gguf`, `name-00002-of-00003.gguf`, …

Each part is a GGUF file of its own that holds some of the tensors.  The first holds the model's metadata as well; every
part has its place in `split.no` (from 0), `split.count` and `split.tensors.count`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import GgufError, GgufOpenError
from .metadata import Metadata

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def split_count(metadata: Metadata) -> int:
    """How many files the model of this metadata has; 1 for a model in one file."""
    count = metadata.int("split.count", default=1)
    if count < 1 and "split.count" in metadata:
        count = 1  # written by some tools for "not split"
    return count


def is_part(path: Path, parts: Sequence[int]) -> bool:
    """Whether a file of this name, with tensors from these parts of a model, is itself one part of several."""
    match = _PART_NAME.fullmatch(path.name)
    return match is not None and int(match["count"]) > 1 and len(set(parts)) < 2


def part_paths(path: Path, metadata: Metadata) -> list[Path]:
    """The paths of all parts, in order, given the path and the metadata of any one of them.

    Raises
    ------
    GgufError
        Name and metadata of the part contradict each other.
    GgufOpenError
        A part is missing; the message names all that are.
    """
    count = split_count(metadata)
    if count == 1:
        return [path]
    number = metadata.int("split.no") + 1
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        raise GgufError(
            f"{path}: is part {number} of a model split over {count} files, and its name does not lead to the others; "
            f"expected a name that ends in {_ending(number, count)}"
        )
    if (int(match["no"]), int(match["count"])) != (number, count):
        raise GgufError(
            f"{path}: the name says part {int(match['no'])} of {int(match['count'])}, the metadata says part {number} "
            f"of {count}; expected the same"
        )
    paths = [path.with_name(match["stem"] + _ending(i + 1, count)) for i in range(count)]
    missing = [p.name for p in paths if not os.path.exists(p)]
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise GgufOpenError(f"{path}: the model is split over {count} files; missing beside it: {names}")
    return paths


def check_part(path: Path, metadata: Metadata, index: int, count: int) -> None:
    """Check that a file is part `index` (from 0) of `count`."""
    number, total = metadata.int("split.no", default=None), metadata.int("split.count", default=None)
    if (number, total) != (index, count):
        raise GgufError(f"{path}: split.no is {number} and split.count {total}; expected {index} and {count}")


def _ending(number: int, count: int) -> str:
    return f"-{number:05d}-of-{count:05d}.gguf"
