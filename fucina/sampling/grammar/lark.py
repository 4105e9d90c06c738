"""Lark grammars before they are compiled: their size, the schemas inside them, and what would not be about text.

Only what decides is read: strings, regexes and comments are passed over, JSON is read as JSON.  Everything else is left
to the compiler.
"""

from __future__ import annotations

import json
import re

from ...errors import GrammarTooLarge, UnsupportedKeyword
from .refused import embedded

RULES = 5_000

_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_]\w*(?:\.\-?\d+)?(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?[ \t]*:", re.MULTILINE)
_LEXEME = re.compile(
    r'"(?:\\.|[^"\\\n])*"'  # a string
    r"|(?:\#|//)[^\n]*"  # a comment
    r"|/(?:\\.|[^/\\])+/[a-z]*"  # a regex
    r"|(?P<json>%(?:json|regex|llguidance)[ \t\r\n]*(?=\{))"
    r"|(?P<token><[^<>\s]+>)"
    r"|(?<![\w-])(?P<attribute>max_tokens|temperature)[ \t]*="
    r'|(?<![\w-])(?P<open>stop|suffix)[ \t]*=[ \t]*""'
)


def checked_lark(text: str) -> str:
    """Refuse what would be enforced in part only; return the text as it is compiled.

    Raises
    ------
    UnsupportedKeyword, UnsatisfiableGrammar : of a schema in it; or it speaks of tokens, not of text.
    GrammarTooLarge : it has too many rules, or a schema is nested too deeply.
    """
    rules = sum(1 for _ in _RULE.finditer(text))
    if rules > RULES:
        raise GrammarTooLarge(f"the grammar has {rules} rules, the limit is {RULES}")
    at, done, parts = 0, 0, []
    while (found := _LEXEME.search(text, at)) is not None:
        at = found.end()
        if found["token"]:
            raise UnsupportedKeyword(
                f"the token {found['token'][:80]} is not supported: a grammar is about text, and control tokens are none"
            )
        if found["attribute"]:
            raise UnsupportedKeyword(f"the attribute {found['attribute']} is not supported: it is not about text")
        if found["open"]:
            raise UnsupportedKeyword(
                f'{found["open"]}="" is not supported: the end of the reply cannot be inside a rule'
            )
        if found["json"]:
            begin = at
            try:
                value, at = json.JSONDecoder().raw_decode(text, begin)
            except RecursionError:
                raise GrammarTooLarge("a schema in the grammar is nested too deeply") from None
            except ValueError:
                break  # the compiler refuses it
            if found["json"].startswith("%json"):
                parts += [text[done:begin], json.dumps(embedded(value), ensure_ascii=False)]
                done = at
    return "".join([*parts, text[done:]])
