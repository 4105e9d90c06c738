"""What a grammar lets through, against judges of another make: jsonschema, `re`, the package lark, exact arithmetic."""

import json
import random
import re
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import jsonschema
import lark
import pytest

from fucina import Grammar
from fucina.errors import InvalidGrammar, MatcherFailed, UnsatisfiableGrammar, UnsupportedKeyword
from fucina.sampling.grammar import IgnoredKeyword
from tests.grammars import lark_judge, lark_parser, random_regex
from tests.wild_grammars import sentence, wild_lark, wild_schema

FORMATS = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])


def judged_schemas(seeds):
    """Sentences of wild schemas before jsonschema; returns how many there were, and how many schemas were refused."""
    counts = Counter()
    for seed in seeds:
        r = random.Random(seed)
        schema = wild_schema(r)
        layout, limit = r.choice(["spaced", "compact", 2]), r.choice([None, None, 5])
        try:
            grammar = Grammar.json_schema(schema, whitespace=layout, max_field=limit)
        except InvalidGrammar as error:
            counts["refused"] += 1
            if limit is not None and isinstance(error, UnsatisfiableGrammar):
                with pytest.raises(UnsatisfiableGrammar):  # a limit never leaves a schema without a text
                    Grammar.json_schema(schema, whitespace=layout)
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        for _ in range(4):
            text = sentence(grammar, r)
            if text is not None:
                counts["judged"] += 1
                assert validator.is_valid(json.loads(text)), (seed, text, schema)
    return counts


def test_sentences_of_wild_schemas():
    counts = judged_schemas(range(250))
    assert counts["judged"] > 500 and counts["refused"] < 125


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_sentences_of_many_wild_schemas(block):
    assert judged_schemas(range(1000 * block + 1000, 1000 * block + 2000))["judged"] > 2000


# --- numbers ------------------------------------------------------------------------------------------------------------


def exact(value):
    return Fraction(Decimal(value if isinstance(value, str) else repr(value)))


def a_number(r):
    """Whole, with a few decimals, tiny, large."""
    return r.choice([
        r.randrange(-30, 30), round(r.uniform(-9, 9), r.randrange(6)), round(r.uniform(-1, 1), 12), 10.0 ** r.randrange(-18, 9),
        r.randrange(-9, 9) / 8, r.uniform(-1, 1),
    ])  # fmt: skip


@pytest.mark.parametrize("block", range(4))
def test_numbers_stay_inside_their_bounds(block):
    """Judged with fractions: what is refused by name is not judged, what compiles has no number outside."""
    r, counts = random.Random(block), Counter()
    for _ in range(150):
        low, high = sorted([a_number(r), a_number(r)])
        high = r.choice([high, low + r.choice([1, 0.5, 1e-3])])
        bounds = {r.choice(["minimum", "exclusiveMinimum"]): low, r.choice(["maximum", "exclusiveMaximum"]): high}
        where = r.choice([bounds, {"allOf": [{name: value} for name, value in bounds.items()]}])
        kind = r.choice(["number", "number", "integer"])
        try:
            grammar = Grammar.json_schema({"type": kind, **where})
        except (UnsupportedKeyword, UnsatisfiableGrammar) as error:
            counts[type(error).__name__] += 1
            continue

        def inside(x, low=low, high=high, bounds=bounds):
            first = x > exact(low) if "exclusiveMinimum" in bounds else x >= exact(low)
            return first and (x < exact(high) if "exclusiveMaximum" in bounds else x <= exact(high))

        ends = [
            text for end in (low, high, 0) for text in (format(Decimal(repr(end)), "f"), str(int(end)), f"{int(end)}.0")
        ]
        for text in [*ends, *((sentence(grammar, r, 60) or b"").decode() for _ in range(6))]:
            if text and grammar.matches(text):
                counts["judged"] += 1
                assert inside(exact(text)), (bounds, text)
        for x in {low, high, (low + high) / 2}:  # nothing inside is lost, if zeros may be written at its end
            if inside(exact(x)) and (kind == "number" or x == int(x)):
                text = str(int(x)) if x == int(x) else format(Decimal(repr(x)), "f")
                zeros = range(25) if "." in text else [0]
                assert any(grammar.matches(text + "0" * n) for n in zeros), (bounds, text)
    assert counts["judged"] > 250 and counts["UnsupportedKeyword"] < 90


def test_constants_are_written_as_they_are():
    r, judged = random.Random(7), 0
    for _ in range(200):
        value = r.choice(
            [r.uniform(-1, 1) * 10.0 ** r.randrange(-30, 18), round(r.uniform(-99, 99), r.randrange(12)), a_number(r)]
        )
        for schema in ({"const": value}, {"enum": [value, "a"], "type": "number"}):
            try:
                grammar = Grammar.json_schema(schema)
            except UnsupportedKeyword:
                continue
            text = sentence(grammar, r, 400)
            judged += 1
            assert json.loads(text) == value, (value, text)
    assert judged > 150


# --- regexes and grammars -------------------------------------------------------------------------------------------------


def test_sentences_of_regexes_and_texts_near_them():
    r, alike = random.Random(3), Counter()
    for seed in range(250):
        pattern = random_regex(random.Random(seed))
        grammar = Grammar.regex(pattern)
        for _ in range(4):
            text = sentence(grammar, r, 80)
            if text is None:
                continue
            text = text.decode()
            assert re.fullmatch(pattern, text), (pattern, text)
            at = r.randrange(len(text) + 1)
            for near in (text[:at], text[:at] + r.choice("ab é0+") + text[at:], text[:at] + text[at + 1 :]):
                expected = re.fullmatch(pattern, near) is not None
                alike[expected] += 1
                assert grammar.matches(near) == expected, (pattern, near)
    assert min(alike.values()) > 200


def judged_larks(seeds):
    """Sentences of wild grammars before the package lark."""
    counts = Counter()
    for seed in seeds:
        r = random.Random(seed)
        text = wild_lark(r)
        try:
            grammar = Grammar.lark(text)
            judge = lark_parser(text)
        except (InvalidGrammar, lark.exceptions.LarkError):
            counts["refused"] += 1
            continue
        for _ in range(4):
            try:
                found = sentence(grammar, r, 60, 0.4)
            except MatcherFailed:  # a dead end, which docs/grammars.md tells of
                counts["dead"] += 1
                break
            if found is not None:
                counts["judged"] += 1
                lark_judge(judge, found.decode())
    return counts


def test_sentences_of_wild_lark_grammars():
    counts = judged_larks(range(120))
    assert counts["judged"] > 150 and counts["dead"] < 12


@pytest.mark.slow
def test_sentences_of_many_wild_lark_grammars():
    assert judged_larks(range(1000, 1600))["judged"] > 800


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredKeyword)
        yield
