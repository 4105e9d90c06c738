"""The suffix automaton of a short text, drawn straight from its definition."""

from __future__ import annotations

from collections.abc import Sequence

from course.figures.graph import state_graph
from course.figures.svg import Figure


def suffix_automaton(text: Sequence[str], title: str = "") -> Figure:
    """States with their longest strings, edges, and dashed suffix links; `current` is the state of the match.

    Parameters
    ----------
    text : sequence of str
        Tokens of one character each.
    title : str, optional
    """
    whole = "".join(text)
    if not whole or len(whole) != len(text):
        raise ValueError(f"the text must be one or more tokens of one character each, got {list(text)!r}")
    ends: dict[str, list[int]] = {}
    for start in range(len(whole)):
        for end in range(start, len(whole)):
            ends.setdefault(whole[start : end + 1], []).append(end)
    together: dict[tuple[int, ...], list[str]] = {}
    for string, at in ends.items():
        together.setdefault(tuple(at), []).append(string)
    groups = [sorted(strings, key=len, reverse=True) for strings in together.values()]  # the longest string first
    name = {string: group[0] for group in groups for string in group} | {"": "root"}
    places: dict[str, tuple[float, float]] = {"root": (0, 0)}
    below: dict[int, int] = {}
    for group in sorted(groups, key=lambda group: len(group[0])):
        longest, first = group[0], whole.index(group[0]) + len(group[0])
        if whole.startswith(longest):
            places[longest] = (first, 0)
        else:  # below the chain, where it first ended
            below[first] = below.get(first, 0) + 1
            places[longest] = (first - 0.5, below[first])
    edges = sorted({(name[string[:-1]], name[string], string[-1]) for string in name if string})
    links = sorted((group[0], name[group[-1][1:]]) for group in groups)
    earlier = [string for string in name if string and whole.endswith(string) and string in whole[:-1]]
    current = name[max(earlier, key=len, default="")]
    return state_graph(
        places, edges, dashed=links, current=current, title=title or f"The automaton of {' '.join(whole)}"
    )
