"""Which exercise's part of a file a line belongs to."""

from __future__ import annotations

import re

MARKER = re.compile(r"^# %% (ch\d\d\.[a-z][a-z0-9_]*)\b")


def region_of_lines(text: str) -> list[str]:
    """For every line number (from 1; entry 0 is the head) the exercise whose part it is in, or an empty string."""
    found = [""]
    for line in text.splitlines():
        match = MARKER.match(line)
        found.append(match[1] if match else found[-1])
    return found


def region_at(text: str, line: int) -> str:
    """The exercise whose part of a file holds line `line`, or an empty string."""
    regions = region_of_lines(text)
    return regions[min(line, len(regions) - 1)]
