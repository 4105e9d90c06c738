"""--save of `generate` and `chat`: which names are taken, where a conversation without a name is kept, what is told."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption, KvFileError
from .common import random_seed
from .text import tell

if TYPE_CHECKING:
    from ..chat import Conversation
    from ..model import Model

SUFFIX = ".fuxkv"
"""Of files that hold a text with its rows."""


def add_option(parser: argparse.ArgumentParser, help: str, **more: Any) -> None:
    """Add --save."""
    parser.add_argument("--save", metavar=f"FILE{SUFFIX}", help=help, **more)


def check(name: str) -> Path:
    """The path that --save names.

    Raises
    ------
    InvalidOption
        It does not end with .fuxkv: then it is a message, or a file of another kind, rather than such a file.
    """
    if Path(name).suffix != SUFFIX:
        raise InvalidOption(
            f"--save {name!r}: expected the name of a {SUFFIX} file (a text goes before --save, or after --)"
        )
    return Path(name)


def own_file(model: Model) -> Path:
    """The file of a model's conversation for whoever names none; its folder is for this user's eyes alone."""
    from .. import hub

    folder = hub.models_folder().parent / "chats"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KvFileError(f"{folder}: cannot be made: {error.strerror}") from None
    end = f"-{model.fingerprint.hex()[:16]}{SUFFIX}"
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", model.path.stem).strip("._")[:60]
    known = sorted(folder.glob(f"*{end}"))  # under the name that the model's file had then
    return known[0] if known else folder / f"{stem or 'model'}{end}"


@contextmanager
def failures() -> Iterator[list[str]]:
    """Inside the block every write that fails is told, and noted: the same one again, too."""
    from ..saving import SaveFailed

    found: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SaveFailed):
                found.append(str(message))
            show(message, category, *where, **more)

        warnings.simplefilter("always", SaveFailed)
        warnings.showwarning = note
        yield found


def tell_saved(conversation: Conversation, choose_seed: bool) -> None:
    """Say what the file held; a conversation that begins there gets a seed, if it draws and has none."""
    c = conversation
    if c.history or c.sampler.rng.position:
        turns = sum(message["role"] == "user" for message in c.messages)
        known = f"{turns} message{'' if turns == 1 else 's'}, {c.restored} of {len(c.history)} tokens restored"
        tell(f"goes on from {c.save_path}: {known}; /reset forgets them")
    else:
        if choose_seed and not c.sampler.options.greedy:
            c.sampler.options = replace(c.sampler.options, seed=random_seed())
            c.sampler.reset()
            tell(f"seed {c.sampler.options.seed}")
        tell(f"kept in {c.save_path}")
