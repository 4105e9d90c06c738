"""Random grammars with independent judges, and streams under them: what the tests of constrained decoding share."""

from __future__ import annotations

import hashlib
import json
import random
import re
import string

import jsonschema
import lark
import numpy as np

from fucina import Grammar
from fucina.engine import Scheduler, Stream
from fucina.errors import InvalidGrammar, MatcherFailed
from fucina.sampling import BiasTokens, Sampler, SamplerOptions, compose, structure_of
from fucina.speculative import Options, make_drafter
from tests.spec_toys import rows_of
from tests.wild_grammars import sentence, wild_lark

WORDS = ("a", "id", "name", "größe", "x y", 'q"t', "tag", "n", "value", "of")
SAMPLINGS = (
    {},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 20, "repeat_penalty": 1.3, "presence_penalty": 0.2},
)
EAGER = Options(min_speedup=0.0, adapt_budget=False, min_draft=1)  # verifies whatever is drafted


# --- schemas ----------------------------------------------------------------------------------------------------------


def random_schema(r: random.Random, depth: int = 3) -> dict:
    """A schema whose texts are short."""
    root = _value(r, depth)
    if r.random() < 0.3:
        root = {"type": "object", "properties": {"x": {"$ref": "#/$defs/part"}, "y": root}, "required": ["x", "y"]}
        root |= {"additionalProperties": False, "$defs": {"part": _value(r, 1)}}
    return root


def _value(r: random.Random, depth: int) -> dict:
    kinds = ["string", "string", "integer", "number", "boolean", "null", "enum", "const"]
    kinds += ["object", "object", "array", "anyOf", "oneOf", "several", "tuple"] if depth else []
    kind = r.choice(kinds)
    if kind == "string":
        return {"type": "string", **r.choice(_STRINGS)(r)}
    if kind == "integer":
        low = r.randrange(-50, 50)
        more = r.choice([{}, {}, {"multipleOf": r.choice([2, 5])}])
        return {
            "type": "integer",
            "minimum": low,
            r.choice(["maximum", "exclusiveMaximum"]): low + r.randrange(10, 500),
            **more,
        }
    if kind == "number":
        low = r.choice([0, -1.5, 10])
        return {"type": "number", "minimum": low, "maximum": low + r.choice([1, 2.25, 1000])}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": r.sample([1, "a", None, True, "é", [1, 2], {"k": "v"}, 2.5, "two words"], r.randrange(1, 4))}
    if kind == "const":
        return {"const": r.choice(["fixed", 7, None, ["a", 1], {"deep": {"er": []}}])}
    if kind == "object":
        return _object(r, depth)
    if kind == "array":
        low = r.randrange(0, 2)
        return {"type": "array", "items": _value(r, depth - 1), "minItems": low, "maxItems": low + r.randrange(1, 3)}
    if kind == "tuple":
        n = r.randrange(1, 3)
        return {"type": "array", "prefixItems": [_value(r, depth - 1) for _ in range(n)], "minItems": n, "maxItems": n}
    if kind == "anyOf":
        return {"anyOf": [_value(r, depth - 1) for _ in range(2)]}
    if kind == "oneOf":
        return {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 0, "maximum": 99}]}
    return {"type": ["string", "null", "boolean"], "maxLength": 4}


def _object(r: random.Random, depth: int) -> dict:
    names = r.sample(WORDS, r.randrange(0, 5))
    schema: dict = {"type": "object", "properties": {name: _value(r, depth - 1) for name in names}}
    schema["required"] = [name for name in names if r.random() < 0.7]
    schema["additionalProperties"] = False
    if r.random() < 0.15:
        schema["patternProperties"] = {"^z[0-9]$": {"type": "integer", "minimum": 0, "maximum": 9}}
    return schema


_STRINGS = (
    lambda r: {"maxLength": r.randrange(0, 8)},
    lambda r: {"minLength": 1, "maxLength": r.randrange(2, 6)},
    lambda r: {"pattern": r.choice(["^[a-z]{2,5}$", "^[A-Z][0-9]{3}$", "^(yes|no)$", "^\\d{1,3}-x$"])},
    lambda r: {"format": r.choice(["date", "uuid", "ipv4"])},
    lambda r: {"pattern": "b", "maxLength": 5},
)


# --- regexes ----------------------------------------------------------------------------------------------------------


def random_regex(r: random.Random, depth: int = 3) -> str:
    """A regex in what Python's `re` and Rust's crate have in common; what it matches is short."""
    return "".join(_piece(r, depth) for _ in range(r.randrange(1, 4)))


def _piece(r: random.Random, depth: int) -> str:
    atoms = [
        lambda: "".join(r.choice(string.ascii_lowercase + " é0") for _ in range(r.randrange(1, 6))),
        lambda: re.escape("".join(r.choice("+.*()[]{}|\\/^$\"'-") for _ in range(r.randrange(1, 3)))),
        lambda: r.choice(["[a-f]", "[^a-z\\n]", "[0-9]", "[àéî]", "."]),
    ]
    if depth:
        atoms.append(lambda: f"({random_regex(r, depth - 1)}|{random_regex(r, depth - 1)})")
    atom = r.choice(atoms)()
    if len(atom) > 1 and not atom.startswith(("[", "(")):
        atom = f"(?:{atom})"
    return atom + r.choice(["", "", "", "?", "{1,3}", "{2}", "{0,2}"])


# --- judges -----------------------------------------------------------------------------------------------------------


def case(seed: int) -> tuple[Grammar, str, object]:
    """A grammar, its kind and source, decided by a seed: two schemas for each regex."""
    r = random.Random(seed)
    if seed % 3 == 2:
        source: object = random_regex(r)
        return Grammar.regex(source), "regex", source
    source = random_schema(r)
    return Grammar.json_schema(source, whitespace=r.choice(["spaced", "compact", 2])), "json_schema", source


def lark_case(seed: int) -> tuple[Grammar, str, object]:
    """As `case`, in Lark's notation: a grammar that the package lark takes as well, with short sentences and no dead end."""
    r = random.Random(seed)
    while True:
        source = wild_lark(r)
        try:
            grammar = Grammar.lark(source)
            lark_parser(source)
            found = [sentence(grammar, r, 60, 0.2) for _ in range(12)]
        except (InvalidGrammar, MatcherFailed, lark.exceptions.LarkError):
            continue
        if any(found) and found.count(None) < 4:
            return grammar, "lark", source


def lark_parser(source: str) -> lark.Lark:
    """A parser of the package lark without a lexer before it: every derivation counts."""
    return lark.Lark(source, parser="earley", lexer="dynamic_complete")


def lark_judge(parser: lark.Lark, text: str) -> None:
    """Raise where the package lark finds no derivation."""
    try:
        parser.parse(text)
    except (
        RuntimeError
    ) as error:  # lark 1.3 asks to report this: it has found two derivations that it takes for different
        assert "multiple start symbol items" in str(error)


def judge(kind: str, source: object, text: str) -> None:
    """Raise where an independent validator does not accept the text."""
    if kind == "regex":
        assert re.fullmatch(source, text), (source, text)
        return
    if kind == "lark":
        lark_judge(lark_parser(source), text)
        return
    checker = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    jsonschema.Draft202012Validator(source, format_checker=checker).validate(json.loads(text))


# --- streams ----------------------------------------------------------------------------------------------------------


class Run:
    """One stream under a grammar.  `haste` is added to the logits of end tokens: so grammars with loops come to an end."""

    def __init__(self, model, grammar, prompt, sampling, seed, speculative=False, max_tokens=160, haste=0.0):
        self.model, self.rows = model, []
        self.constraint = grammar.constraint(model)
        hurry = BiasTokens(dict.fromkeys(model.tokenizer.eog_ids, haste)) if haste else None
        sampler = Sampler(SamplerOptions(**sampling, seed=seed), compose(hurry, self.constraint))
        drafter = make_drafter(model, EAGER if speculative else False, (), structure_of(sampler.processor))
        ids = model.tokenizer.encode(prompt)
        self.stream = Stream(
            model.new_cache(len(ids) + max_tokens), ids, sampler, drafter, stop_tokens=model.tokenizer.eog_ids,
            max_tokens=max_tokens, on_row=lambda n, row: self.rows.append(row.copy()),
        )  # fmt: skip

    @property
    def tokens(self):
        return self.stream.tokens[self.stream.prompt_end :]

    @property
    def text(self):
        return self.model.tokenizer.decode(self.tokens)

    def outcome(self):
        """Everything that must not depend on drafts and batches."""
        s = self.stream
        digest = hashlib.sha256(b"".join(rows_of(s.state))).hexdigest()
        return self.tokens, s.finish, s.stop_token, s.sampler.rng.position, s.cached, digest, self.constraint.complete

    def check_finite(self):
        """Every token that was chosen had a finite logit before the mask."""
        chosen = [*self.tokens, *([] if self.stream.stop_token is None else [self.stream.stop_token])]
        assert len(chosen) == len(self.rows)
        assert all(np.isfinite(row[token]) for row, token in zip(self.rows, chosen))


def together(model, runs, per_pass=8):
    """Run streams to their ends, up to 8 in a pass; later ones join while earlier ones run."""
    scheduler, waiting = Scheduler(model), list(runs)
    while waiting or scheduler.live:
        while waiting and len(scheduler.live) < per_pass:
            scheduler.add(waiting.pop(0).stream)
        scheduler.step()
        for stream in [s for s in scheduler.streams if s.finish is not None]:
            assert stream.error is None, stream.error
            scheduler.remove(stream)
    return runs


def mask_of(constraint, vocab):
    """Bool [vocab]: what `process` leaves."""
    row = np.zeros(vocab, np.float32)
    constraint.process(row, ())
    return np.isfinite(row)


def allowed_ids(constraint):
    """The ids that may follow, ascending."""
    return np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist()
