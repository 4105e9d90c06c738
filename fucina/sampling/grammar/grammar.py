"""Which texts are allowed: a JSON schema, a regex, a grammar."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...checks import shown, token_ids
from ...errors import GrammarTooLarge, InvalidGrammar, InvalidOption, MatcherFailed, UnsupportedKeyword
from . import llg
from .constraint import Constraint
from .lark import checked_lark
from .refused import embedded
from .schema import CHARACTERS, check_unicode, prepared

if TYPE_CHECKING:
    from ...tokenizers import Tokenizer

CIRCLE = 16  # tokens at the end of a reply that are all the same
PARTS = ("name", "lark_grammar", "json_schema")  # of a grammar in a composition


class UnboundedReply(UserWarning):
    """A constrained reply repeated one token until its budget was used up: a field without a limit."""


class HasTokenizer(Protocol):
    """What a constraint needs of a model: `fucina.Model` has it."""

    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Grammar:
    """Which texts a reply may be.  Made by one of the class methods; it may be used by any number of streams and threads.

    Attributes
    ----------
    kind : "json_schema", "json", "regex", "lark" or "llguidance".
    program : what is compiled.

    Raises
    ------
    InvalidGrammar : it cannot be compiled.  Three kinds of it: UnsatisfiableGrammar (no text is allowed),
        UnsupportedKeyword (it asks for what is not enforced), GrammarTooLarge.
    LlguidanceNotEnabled : the package llguidance is missing.
    """

    kind: str
    program: llg.Program

    def __post_init__(self) -> None:
        llg.byte_vocabulary().matcher(self.program)  # raises here, not when a model is about to answer

    def __repr__(self) -> str:
        return f"Grammar({self.kind}, {len(self.program)} characters)"

    # --- sources ------------------------------------------------------------------------------------------------------

    @classmethod
    def json_schema(cls, schema: Any, *, whitespace: str | int = "spaced", max_field: int | None = None) -> Grammar:
        """JSON that a schema allows (draft 2020-12; docs/grammars.md lists the keywords).

        Parameters
        ----------
        schema : dict (pydantic's `model_json_schema()` for example), True, or text.
        whitespace : "spaced" writes `{"a": 1, "b": 2}`, "compact" `{"a":1,"b":2}`; a number allows up to so many blanks
            and line breaks wherever JSON does.
        max_field : give strings and arrays without a limit this one, integers without a limit 15 digits, and close
            objects: so that a greedy reply cannot go on in one field for ever.
        """
        return cls("json_schema", llg.program("json_schema", prepared(schema, whitespace, max_field)))

    @classmethod
    def json(cls, *, whitespace: str | int = "spaced") -> Grammar:
        """Any JSON value."""
        return cls("json", llg.program("json_schema", prepared(True, whitespace, None)))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that a regular expression matches as a whole (the syntax of Rust's crate regex: nothing looks around)."""
        return cls("regex", llg.program("regex", _text("a regex", pattern)))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Sentences of a context-free grammar, in llguidance's variant of Lark's notation; they begin at `start`."""
        return cls("lark", llg.program("lark_grammar", checked_lark(_text("a Lark grammar", text))))

    @classmethod
    def llguidance(cls, source: str | dict[str, Any]) -> Grammar:
        """A composition in llguidance's own form: `{"grammars": [{"lark_grammar": ...}, {"name": ..., ...}]}`."""
        try:
            parsed = json.loads(_text("a composition", source)) if isinstance(source, str) else source
            parsed = json.loads(json.dumps(parsed, allow_nan=False))
            grammars = [dict(grammar) for grammar in parsed["grammars"]]
            check_unicode("a composition", json.dumps(grammars, ensure_ascii=False))
        except RecursionError:
            raise GrammarTooLarge("the composition is nested too deeply") from None
        except InvalidGrammar:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidGrammar(f'expected {{"grammars": [...]}} as JSON, got {shown(source)}: {error}') from None
        if not grammars:
            raise InvalidGrammar("a composition needs at least one grammar")
        _check_names("a composition", parsed, ["grammars"])
        for grammar in grammars:
            _check_names("a grammar in a composition", grammar, PARTS)
            if isinstance(grammar.get("lark_grammar"), str):
                grammar["lark_grammar"] = checked_lark(grammar["lark_grammar"])
            if "json_schema" in grammar:
                grammar["json_schema"] = embedded(grammar["json_schema"])
        return cls("llguidance", llg.composed(grammars))

    # --- use ----------------------------------------------------------------------------------------------------------

    def constraint(self, model: HasTokenizer | Tokenizer, ends: Collection[int] | None = None) -> Constraint:
        """Return one stream's matcher: a logit processor, to be given to a sampler.

        Parameters
        ----------
        model : or its tokenizer.
        ends : tokens that may end the text; default: all that the tokenizer calls ends.

        Raises
        ------
        NoEosToken : there is none.  TokenOutOfRange : one of them is no token.  InvalidOption : no model, no tokenizer.
        """
        tokenizer = model.tokenizer if hasattr(model, "tokenizer") else model
        if not hasattr(tokenizer, "eog_ids"):
            raise InvalidOption(f"a constraint needs a model or its tokenizer, got {type(model).__name__}")
        own = tokenizer.eog_ids if ends is None else token_ids("ends", list(ends), tokenizer.n_vocab)
        known = llg.vocabulary(tokenizer, frozenset(own))
        return Constraint(self.program, known, tokenizer)

    def matches(self, text: str | bytes) -> bool:
        """Return whether a whole text is a sentence of this grammar.

        Raises
        ------
        MatcherFailed : it cannot be said: the text leads to a limit of time or memory.
        """
        try:
            data = list(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
        except UnicodeEncodeError:  # an unpaired surrogate: no text at all
            return False
        matcher = llg.byte_vocabulary().matcher(self.program)
        whole = matcher.try_consume_tokens(data) == len(data) and bool(matcher.is_accepting())
        if (reason := llg.failure(matcher)) is not None:
            raise MatcherFailed(f"whether the text is a sentence cannot be said: {reason}")
        return whole


def check_grammar(grammar: Grammar | None) -> Grammar | None:
    """Return a grammar or None; raises InvalidOption for anything else."""
    if not isinstance(grammar, (Grammar, type(None))):
        raise InvalidOption(f"grammar must be a fucina.Grammar or None, got {type(grammar).__name__}")
    return grammar


def note_circle(tokens: Sequence[int], finish_reason: str) -> None:
    """Warn where a constrained reply was cut while it repeated one token: a field of its grammar has no limit."""
    run = 0
    while run < len(tokens) and tokens[-1 - run] == tokens[-1]:
        run += 1
    if finish_reason == "length" and run >= CIRCLE:
        warnings.warn(
            f"the reply repeated token {tokens[-1]} {run} times until its budget was used up: a field of the grammar has "
            "no limit; give it one (maxLength, maximum, maxItems, max_field=), or sample instead of temperature 0",
            UnboundedReply,
            stacklevel=2,
        )


def _check_names(what: str, given: dict[str, Any], known: Collection[str]) -> None:
    if unknown := given.keys() - known:
        raise UnsupportedKeyword(f"{what} has {', '.join(known)}; not supported: {', '.join(sorted(unknown))[:80]}")


def _text(what: str, text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidGrammar(f"{what} must be text, got {type(text).__name__}")
    if len(text) > CHARACTERS:
        raise GrammarTooLarge(f"{what} of {len(text)} characters is larger than the limit of {CHARACTERS}")
    check_unicode(what, text)
    return text
