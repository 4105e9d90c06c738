"""Grammars: a reply that *is* valid JSON, a match of a regex, a sentence of a grammar.

`Grammar` says which texts are allowed.  `Constraint` is one stream's place in such a text: before each token it forbids
all that cannot go on to an allowed text.  See docs/grammars.md.
"""

from .constraint import Constraint
from .grammar import Grammar, UnboundedReply, check_grammar, note_circle
from .refused import IgnoredKeyword

__all__ = ["Constraint", "Grammar", "IgnoredKeyword", "UnboundedReply", "check_grammar", "note_circle"]
