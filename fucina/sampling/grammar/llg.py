"""llguidance: the engine that turns grammars into masks over a vocabulary.  The only file that imports it.

What crosses this border: the bytes of every token, which tokens are special, a grammar as llguidance's own JSON; and
back: matchers.  Masks allow every tokenisation of an allowed text (`no_forcing`); which one it becomes is the model's
choice.
"""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import (
    GrammarTooLarge,
    InvalidGrammar,
    LlguidanceNotEnabled,
    NoEosToken,
    UnsatisfiableGrammar,
    UnsupportedKeyword,
    UnsupportedTokenizerFormat,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

    from ...tokenizers import Tokenizer

INSTALL = 'pip install "fucina[grammar]"'
KEPT = 64  # compiled grammars per vocabulary
STACK = 256 << 20  # bytes of address space; llguidance descends a chain of rules or references by recursion
LEXER_STATES = 50_000  # about 2 kB each
DEAD_END = "no token may follow, and the text is not a whole sentence of the grammar (a dead end in the grammar)"
MESSAGE = 400  # characters of an error that are passed on

Program = str  # a grammar in llguidance's JSON
T = TypeVar("T")

_UNSATISFIABLE = ("Unsatisfiable schema", "Regex is empty", "NoExtension")
_UNSUPPORTED = (
    "Unimplemented",
    "Unknown format",
    "not supported",
    "only supported",
    "does not fetch resources",
    "not implemented",
    "not disjoint",
)
_TOO_LARGE = (
    "too big", "too large", "too deeply", "too many", "recursion limit", "too complex", "panic", "exceed", "exhausted",
    "decimal literal invalid",
)  # fmt: skip


def llguidance() -> Any:
    """Return the package; raises LlguidanceNotEnabled where it is not installed."""
    try:
        import llguidance as package
    except ImportError as error:
        raise LlguidanceNotEnabled(f"grammars need the package llguidance ({error}); {INSTALL} installs it") from None
    return package


def program(name: str, text: str) -> Program:
    """Return the program of a grammar: a "json_schema", a "regex" or a "lark_grammar"."""
    if name == "regex":
        (main,) = json.loads(llguidance().LLMatcher.grammar_from_regex(text))["grammars"]
        return composed([main])
    return composed([{name: json.loads(text) if name == "json_schema" else text}])


def composed(grammars: list[dict[str, Any]]) -> Program:
    """Return a program of several grammars, of which the first is the text and may refer to the others by name."""
    taken = {grammar.get("name") for grammar in grammars[1:]}
    free = next(name for name in ("main", *(f"main-{i}" for i in range(len(grammars)))) if name not in taken)
    main = {**grammars[0], "name": grammars[0].get("name") or free}
    top = {"lark_grammar": f'%llguidance {{"no_forcing": true}}\nstart: @{main["name"]}'}
    return json.dumps({"grammars": [top, main, *grammars[1:]]}, ensure_ascii=False)


class Vocabulary:
    """What llguidance is told about a tokenizer, and the grammars that were compiled for it.

    Parameters
    ----------
    tokenizer : Tokenizer, or None for one token per byte.
    ends : tokens that may end a text.

    Raises
    ------
    NoEosToken : there is no end.  UnsupportedTokenizerFormat : llguidance refuses the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer | None, ends: frozenset[int]) -> None:
        package = llguidance()
        self.ends = ends
        if tokenizer is None:
            self._tokens = package.LLTokenizer("byte")
        else:
            if not ends:
                raise NoEosToken(
                    "this vocabulary has no token that ends a text: a finished grammar could not end a reply"
                )
            try:
                wrapper = package.TokenizerWrapper(_Described(tokenizer, ends))
                self._tokens = package.LLTokenizer(wrapper, eos_token=sorted(ends))
            except Exception as error:
                raise UnsupportedTokenizerFormat(f"llguidance refuses the vocabulary: {_short(str(error))}") from error
        self.size = self._tokens.vocab_size
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Program, _Entry] = OrderedDict()

    def matcher(self, program: Program) -> LLMatcher:
        """Return a new matcher at the beginning of a text; the grammar is compiled when it is asked for first.

        Safe under threads: two that ask for one grammar compile it once, two grammars are compiled side by side.

        Raises
        ------
        InvalidGrammar, UnsatisfiableGrammar, UnsupportedKeyword, GrammarTooLarge
        """
        with self._lock:
            entry = self._compiled.setdefault(program, _Entry())
            self._compiled.move_to_end(program)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        with entry.lock:
            if entry.matcher is None:
                try:
                    entry.matcher = _with_deep_stack(lambda: self._compile(program))
                except BaseException:
                    with self._lock:
                        self._compiled.pop(program, None)
                    raise
            return entry.matcher.deep_copy()

    def _compile(self, program: Program) -> LLMatcher:
        package = llguidance()
        matcher = package.LLMatcher(self._tokens, program, log_level=0, limits=_limits(package))
        if matcher.is_error():
            raise _named(matcher.get_error())
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise _named(probe.get_error())
        return matcher


class _Entry:
    """A place in the cache: whoever holds its lock compiles."""

    __slots__ = ("lock", "matcher")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.matcher: LLMatcher | None = None


class _Described:
    """A tokenizer in the words of `llguidance.TokenizerWrapper`."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self.eos_token_id, self.bos_token_id = min(ends), tokenizer.bos
        self.tokens = [tokenizer.piece(i) for i in range(tokenizer.n_vocab)]
        self.special_token_ids = sorted(ends.union(filter(tokenizer.is_special, range(tokenizer.n_vocab))))
        self._tokenizer = weakref.ref(tokenizer)

    def __call__(self, text: str | bytes) -> list[int]:
        tokenizer = self._tokenizer()
        return [] if tokenizer is None else tokenizer.encode(text, special=False)


_known: weakref.WeakKeyDictionary[Tokenizer, dict[frozenset[int], Vocabulary]] = weakref.WeakKeyDictionary()
_making = threading.Lock()
_bytes: list[Vocabulary] = []


def vocabulary(tokenizer: Tokenizer, ends: frozenset[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer: made once, and kept as long as the tokenizer."""
    with _making:
        mine = _known.setdefault(tokenizer, {})
        if ends not in mine:
            mine[ends] = Vocabulary(tokenizer, ends)
        return mine[ends]


def byte_vocabulary() -> Vocabulary:
    """Return the vocabulary of single bytes, with which grammars are checked before a model is known."""
    with _making:
        if not _bytes:
            _bytes.append(Vocabulary(None, frozenset()))
        return _bytes[0]


def _limits(package: Any) -> LLParserLimits:
    return package.LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)


_starting = threading.Lock()


def _with_deep_stack(work: Callable[[], T]) -> T:
    """Run `work` on a thread with a deep stack: a chain of 5,000 references would overflow an ordinary one."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="fucina-grammar", daemon=True)
    with _starting:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _short(text: str) -> str:
    text = text.partition("\n<")[0].strip()  # a state or a backtrace may follow
    return text if len(text) <= MESSAGE else text[:MESSAGE] + " ..."


def _named(message: str) -> InvalidGrammar:
    """The error that a message of llguidance stands for."""
    for kind, words in (
        (UnsatisfiableGrammar, _UNSATISFIABLE), (UnsupportedKeyword, _UNSUPPORTED), (GrammarTooLarge, _TOO_LARGE)
    ):  # fmt: skip
        if any(word in message for word in words):
            if kind is UnsatisfiableGrammar and "NoExtension" in message:
                return kind("no text satisfies this grammar: not even a first character is allowed")
            return kind(_short(message))
    return InvalidGrammar(_short(message))


def failure(matcher: LLMatcher) -> str | None:
    """Return what is wrong with a matcher, or None."""
    if not matcher.is_error():
        return None
    with contextlib.suppress(Exception):
        message = matcher.get_error()
        return DEAD_END if "NoExtension" in message else _short(message)
    return "unknown error"
