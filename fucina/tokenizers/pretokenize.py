r"""Pre-tokenizer rules: how a text is cut into words before byte-pair encoding looks at each word by itself.

A merge never crosses the border of a word, so these rules decide which tokens are possible at all: whether a space
belongs to the word after it, whether `2024` is one word or four, whether `don't` is `don` + `'t`.  They are part of
what a model was trained with.  A GGUF only *names* its rules (`tokenizer.ggml.pre`), see `rules.py`; a `tokenizer.json`
spells them out.  With the wrong ones the ids are still valid and the text still decodes, but the model sees spellings
that it never saw in training.

All rules cut without loss: the words, put together, are the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Rules of one name.

    Attributes
    ----------
    patterns
        Regular expressions (syntax of the `regex` module) that match one word each; what lies between two matches is a
        word, too.  With more than one, the text is cut by the first, the parts by the second, and so on.  An empty match
        cuts and is no word.
    ignore_merges
        A word that is itself a token becomes that token, even if the merges would not lead to it.
    add_bos
        Whether these models want BOS when their file does not say.
    in_characters
        Their vocabularies are spelt in characters, with `▁` for a space, not in stand-ins of bytes.
    whole_line_ends
        As `ignore_merges`, for runs of line feeds alone.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    in_characters: bool = False
    whole_line_ends: bool = False

    def cut(self, text: str) -> list[str]:
        """The words of a text, in order; their concatenation is the text."""
        words = [text] if text else []
        for pattern in self.patterns:
            expression = _compiled(pattern)
            parts = {word: _parts(expression, word) for word in dict.fromkeys(words)}  # words repeat
            words = list(chain.from_iterable(map(parts.__getitem__, words)))
        return words


def _parts(pattern: regex.Pattern[str], text: str) -> list[str]:
    """Matches of the pattern and what lies between them, in order."""
    if not pattern.groups:  # of an expression with groups, findall gives the groups
        found = pattern.findall(text)
        if sum(map(len, found)) == len(text):  # most patterns leave nothing out
            return found if "" not in found else list(filter(None, found))
    parts, done = [], 0
    for match in pattern.finditer(text):
        start, stop = match.span()
        if start > done:
            parts.append(text[done:start])
        if stop > start:
            parts.append(text[start:stop])
        done = stop
    return [*parts, text[done:]] if done < len(text) else parts


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # here, since a tokenizer that never cuts words (SentencePiece) need not wait for it

    return regex.compile(pattern)
