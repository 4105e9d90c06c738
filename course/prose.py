"""Lines of prose: broken at a width, with code in one piece."""

from __future__ import annotations

import re
import textwrap


def wrapped(text: str, later: str = "  ", width: int = 112) -> list[str]:
    """Break long prose at spaces; code in a message is never cut inside a word.

    Parameters
    ----------
    text : str
        Spaces at its beginning indent the first line.
    later : str
        What the other lines begin with.
    width : int
        The most columns of a line.
    """
    indent = text[: len(text) - len(text.lstrip())]
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text.strip())  # code stays on one line
    rows = textwrap.wrap(
        whole, width, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return [row.replace("\0", " ") for row in rows]
