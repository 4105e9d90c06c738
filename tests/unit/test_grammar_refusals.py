"""Schemas that would be enforced in part only: refused by name, in a schema and inside other grammars.  Their neighbours are not."""

import json

import pytest

import fucina
from fucina import Grammar
from fucina.errors import (
    GrammarTooLarge,
    InvalidGrammar,
    InvalidOption,
    MatcherFailed,
    SharedStream,
    TokenOutOfRange,
    UnsatisfiableGrammar,
    UnsupportedKeyword,
)
from fucina.sampling import BanTokens, compose
from tests.models import TINY

J = Grammar.json_schema
TWO = {
    "type": "object", "minProperties": 2, "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False,
}  # fmt: skip
FALSE = {"properties": {"b": False}, "patternProperties": {"^[xy]$": {"const": 1}}, "additionalProperties": False}
ALL = [
    {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}},
    {"properties": {"a": False, "b": False}, "patternProperties": {"^x$": {"const": 1}}, "additionalProperties": False},
]


@pytest.mark.parametrize(
    "schema",
    [
        TWO,
        {"$ref": "#/$defs/", "$defs": {"": TWO}},
        {"type": "object", "minProperties": 2, **FALSE},
        {"allOf": ALL},
        {"type": "object", "minProperties": 2.0},
    ],
    ids=str,
)
def test_names_that_may_be_equal_are_not_counted(schema):
    for make in embeddings(schema):
        with pytest.raises(UnsupportedKeyword, match="minProperties 2"):
            make()


def embeddings(schema):
    """A schema, and the same one inside other grammars."""
    text = json.dumps(schema)
    inside = {"grammars": [{"lark_grammar": "start: @value"}, {"name": "value", "json_schema": schema}]}
    return (
        lambda: J(schema),
        lambda: J(text),
        lambda: Grammar.lark("start: %json " + text),
        lambda: Grammar.lark('start: "x" value\nvalue: %json\n  ' + text),
        lambda: Grammar.llguidance({"grammars": [{"json_schema": schema}]}),
        lambda: Grammar.llguidance(inside),
        lambda: Grammar.llguidance(json.dumps({"grammars": [{"lark_grammar": "start: %json " + text}]})),
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#foo", "$defs": {"a": {"$anchor": "foo", **TWO}}},
        {"$id": "http://x/y", "$ref": "z", "$defs": {"a": {"$id": "http://x/z", **TWO}}},
        {"$id": "http://x/y", "$ref": "http://x/z#", "$defs": {"a": {"$id": "http://x/z", "const": 1}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "http://x/z", "items": {"$ref": "#/$defs/b"}}}},
    ],
    ids=str,
)
def test_references_other_than_pointers_are_refused(schema):
    for make in embeddings(schema):
        with pytest.raises(UnsupportedKeyword, match=r"\$ref"):
            make()


def test_references_that_are_pointers():
    for reference in ("#/$defs/a~1b%20c", "http://x/y#/$defs/a~1b%20c"):
        grammar = J({"$id": "http://x/y", "$ref": reference, "$defs": {"a/b c": {"const": 1}}})
        assert grammar.matches("1") and not grammar.matches("2")


def test_properties_that_can_be_counted():
    grammar = J({"type": "object", "minProperties": 3, "required": ["a", "z"], "properties": {"a": {}}})
    assert grammar.matches('{"a": 1, "z": 2, "y": 3}')
    for wrong in ('{"a": 1, "z": 2}', '{"a": 1, "z": 2, "z": 3}', '{"a": 1, "z": 2, "a": 3}'):
        assert not grammar.matches(wrong)
    parts = [{"required": ["a", "b"]}]
    assert J({"type": "object", "minProperties": 2, "properties": {"a": {}}, "allOf": parts}).matches(
        '{"a": 1, "b": 2}'
    )


# --- numbers ------------------------------------------------------------------------------------------------------------

LAST = 2**53


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("minimum", {"type": "integer", "minimum": LAST + 1, "maximum": LAST + 1}),
        ("minimum", {"type": "integer", "minimum": 1e29, "maximum": 1e30}),
        ("minimum", {"type": "integer", "minimum": 1e19}),
        ("maximum", {"type": "integer", "minimum": 0, "maximum": 1e20}),
        ("maximum", {"type": "integer", "maximum": 2**63 - 1}),
        ("minimum", {"type": "integer", "minimum": -(2**63)}),
        ("maximum", {"type": "number", "minimum": 1, "maximum": 1e30}),
        ("maximum", {"maximum": 10**400}),
        ("minimum", {"type": "number", "minimum": -LAST - 1}),
        ("exclusiveMaximum", {"type": "integer", "exclusiveMinimum": LAST - 1, "exclusiveMaximum": LAST + 2}),
        ("multipleOf", {"type": "integer", "multipleOf": LAST + 1}),
        ("const", {"const": LAST + 1}),
        ("enum", {"enum": ["a", {"b": [LAST + 3]}]}),
        ("const", {"const": -(2**63)}),  # would end the process
        ("const", {"const": -(2**63), "type": "integer"}),
        ("enum", {"enum": [1e20, "a"], "type": "integer"}),
        ("const", {"const": [{"a": -1e20}]}),
        ("const", {"const": 0.19861572706253594}),
        ("maximum", {"type": "number", "maximum": 1.0100000000000001e-08}),
        ("multipleOf", {"type": "number", "multipleOf": 1e-23}),
        ("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
        (
            "exclusiveMinimum",
            {"allOf": [{"exclusiveMinimum": 3}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"maximum": 3.5}}},
        ),
        ("exclusiveMaximum", {"anyOf": [{"exclusiveMaximum": -61}], "minimum": -61.5}),
        ("exclusiveMinimum", {"minimum": 0, "exclusiveMinimum": True, "exclusiveMaximum": 0.1}),
    ],
    ids=str,
)
def test_numbers_that_would_be_rounded(keyword, schema):
    for make in embeddings(schema):
        with pytest.raises(UnsupportedKeyword, match=f"^{keyword} "):
            make()


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("low", [0, 10**15, LAST - 2**12, -LAST])
def test_numbers_that_are_held_are_exact(kind, low):
    high = low + 2**12
    grammar = J({"type": kind, "minimum": low, "maximum": high})
    assert all(grammar.matches(str(n)) for n in (low, low + 1, high - 1, high))
    assert not any(grammar.matches(str(n)) for n in (low - 1, high + 1))
    for n in (low, 3 * 2**60):
        assert J({"const": n}).matches(str(n)) and not J({"const": n}).matches(str(n + 1))


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_open_bounds_are_exact(kind):
    grammar = J({"type": kind, "exclusiveMinimum": LAST - 3, "exclusiveMaximum": LAST})
    assert [grammar.matches(str(LAST - n)) for n in (0, 1, 2, 3)] == [False, True, True, False]


def test_open_ends_that_can_be_kept():
    grammar = J({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
    assert grammar.matches("0.5") and not any(map(grammar.matches, ("0", "0.0", "-0", "1", "1.0")))
    for least in (0.25, -1):
        grammar = J({"type": "number", "exclusiveMinimum": least, "maximum": 0.5})
        assert grammar.matches("0.5") and not grammar.matches(str(least)) and not grammar.matches(f"{least}0")


# --- formats, patterns, options -----------------------------------------------------------------------------------------


def test_every_unknown_format_is_refused():
    for name in ("unknown", "phone"):
        for make in embeddings({"type": "string", "format": name}):
            with pytest.raises(UnsupportedKeyword, match=f"Unknown format: {name}"):
                make()


@pytest.mark.parametrize(
    "pattern", ["[a&&b]", "[a[bc]]", "[[:alpha:]]", "x[^a--z]", "[a~~b]", r"[\]a[]", "[]a]", "[^]]"]
)
def test_sets_in_patterns_are_refused(pattern):
    for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: {}}}):
        with pytest.raises(UnsupportedKeyword, match="sets of characters"):
            J(schema)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"^[a\[&\-]{3}$", "[&-"), (r"^\[a&&b\]$", "[a&&b]"), ("^[a-z]--[^&]$", "a--b"), ("^a]$", "a]")],
)
def test_patterns_without_sets(pattern, text):
    assert J({"type": "string", "pattern": pattern}).matches(json.dumps(text))


def test_options_inside_other_grammars():
    unique = {"type": "array", "uniqueItems": True}
    for options in ({"lenient": True}, {"coerce_one_of": True}, {"whitespace_flexible": False, "lenient": True}, 1):
        for make in embeddings({**unique, "x-guidance": options})[2:]:
            with pytest.raises(UnsupportedKeyword, match="x-guidance"):
                make()
    for make in embeddings(unique):
        with pytest.raises(UnsupportedKeyword, match="uniqueItems"):
            make()
    compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    schema = {"type": "array", "items": {"const": 1}, "x-guidance": compact}
    grammar = Grammar.lark("start: %json " + json.dumps(schema))
    assert grammar.matches("[1,1]") and not grammar.matches("[1, 1]")
    assert Grammar.lark('start: "%json {" /[0-9]/').matches("%json {1")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("<|im_end|>", r"the token <\|im_end\|>"), ("<[5]>", "the token"), ("<[0-16]>", "the token"), ("<[*]>", "the token"),
        ("a[max_tokens=3]", "max_tokens"), ("a[lazy, temperature = 0.5]", "temperature"), ('a[stop=""]', "stop"),
        ('a[suffix = ""]', "suffix"),
    ],
)  # fmt: skip
def test_what_is_not_about_text(part, name):
    rule = f'start: "x" {part} "y"' if part.startswith("<") else f'start: "x" a "y"\n{part}: /[a-z]+/'
    for make in (lambda: Grammar.lark(rule), lambda: Grammar.llguidance({"grammars": [{"lark_grammar": rule}]})):
        with pytest.raises(UnsupportedKeyword, match=name):
            make()


def test_what_only_looks_like_it():
    for rule, text in (
        ('start: "<[5]>" # <[5]>', "<[5]>"),
        ("start: /<[5]>/ // <|im_end|>", "<5>"),
        ('start: "a\\"<[5]>" "max_tokens=3"', 'a"<[5]>max_tokens=3'),
        ('start: %json {"const": "<[5]> max_tokens=1 // "} "."', '"<[5]> max_tokens=1 // ".'),
        ('start: a "."\na[suffix=";"]: /[a-z]+/', "ab;."),
        ('start: (%json {"const": 1}) "#" %json {"const": 2}', "1#2"),
    ):
        assert Grammar.lark(rule).matches(text), rule
    with pytest.raises(UnsupportedKeyword, match="uniqueItems"):  # after a string with JSON in it
        Grammar.lark('start: "%json {" %json {"const": 1} "}" %json {"type": "array", "uniqueItems": true}')


def test_compositions():
    a = {"lark_grammar": 'start: "a" @main', "name": "first"}
    assert Grammar.llguidance({"grammars": [a, {"lark_grammar": 'start: "b"', "name": "main"}]}).matches("ab")
    unnamed = {"lark_grammar": 'start: "a" @main'}
    assert Grammar.llguidance({"grammars": [unnamed, {"lark_grammar": 'start: "b"', "name": "main"}]}).matches("ab")
    for wrong in ({"grammars": [a], "max_tokens": 3}, {"grammars": [{**a, "temperature": 1}]}):
        with pytest.raises(UnsupportedKeyword, match=r"max_tokens|temperature"):
            Grammar.llguidance(wrong)
    assert Grammar.llguidance({"grammars": [{"json_schema": {"const": {5: 1}}}]}).matches('{"5": 1}')
    for wrong in (float("nan"), {1}, object()):
        with pytest.raises(InvalidGrammar):
            Grammar.llguidance({"grammars": [{"json_schema": {"const": wrong}}]})


# --- names that are spelled in another way --------------------------------------------------------------------------------

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}, "b\x01\n": {"type": "integer"}}}


@pytest.mark.parametrize(
    "name", ["\\u0061", "b\\u0001\\n", "b\\u0001\\u000a", "\\u0062\\u0001\\n"]
)  # each is a declared name to whoever reads the reply
def test_a_declared_name_cannot_be_spelled_with_codes(name):
    patterned = {"type": "object", "patternProperties": {"^(a|b[^c]*)$": {"type": "integer"}}}
    for schema in (NAMED, patterned, {**NAMED, "additionalProperties": {"type": "string"}}):
        for make in embeddings(schema)[:3]:
            assert not make().matches(f'{{"{name}": "x"}}')
    parts = {"grammars": [{"lark_grammar": "start: @v"}, {"name": "v", "json_schema": NAMED}]}
    assert not Grammar.llguidance(parts).matches(f'{{"{name}": "x"}}')


def test_constants_with_control_characters():
    assert J(NAMED).matches('{"a": 1, "b\\u0001\\n": 2, "c\\n": "d\\t"}')
    constant = {"const": {"x": "\x01\x7f\n"}}
    assert any(J(constant).matches(f'{{"x": "{text}"}}') for text in ("\\u0001\x7f\\n", "\\u0001\\u007f\\n"))
    closed = {"type": "object", "properties": {"x": {"enum": ["\x01"]}}, "additionalProperties": False}
    assert J(closed).matches('{"x": "\\u0001"}')
    with pytest.raises(UnsupportedKeyword, match="control characters"):
        J({"type": "object", "properties": {"x": {"enum": ["\x01"]}}})


# --- schemas that must contain themselves ---------------------------------------------------------------------------------

SELF = {"$ref": "#"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "minProperties": 1, "additionalProperties": SELF},
        {"type": "object", "minProperties": 1, "properties": {"a": False}, "additionalProperties": SELF},
        {"type": "object", "patternProperties": {"^a$": SELF}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^a$": SELF}, "required": ["a"]},
        {"type": "object", "allOf": [{"properties": {"a": SELF}}, {"required": ["a"]}]},
        {"allOf": [{"type": "object"}, {"$ref": "#/$defs/x"}], "required": ["a"], "$defs": {"x": {"properties": {"a": SELF}}}},
        {"type": "object", "properties": {"a": SELF}, "anyOf": [{"required": ["a"]}, {"required": ["a", "b"]}]},
        {"allOf": [{"type": "array", "items": SELF}, {"minItems": 1}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_must_contain_itself_is_refused(schema):
    for make in embeddings(schema)[:2]:
        with pytest.raises(UnsatisfiableGrammar, match="refers back to itself"):
            make()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "additionalProperties": SELF}, '{"x": {}}'),
        ({"type": "object", "patternProperties": {"^b$": SELF}, "required": ["a"]}, '{"a": 1}'),
        ({"type": ["object", "null"], "patternProperties": {"^a$": SELF}, "required": ["a"]}, '{"a": null}'),
        ({"type": "object", "properties": {"a": SELF}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"b": 1}'),
        ({"allOf": [{"type": "array", "items": SELF}, {"maxItems": 1}]}, "[[]]"),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_contain_itself_is_not(schema, text):
    assert J(schema).matches(text)


# --- limits that are put in -----------------------------------------------------------------------------------------------

A = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]}
LONG = "x" * 100


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"allOf": [A, B]}, '{"a": 1, "b": 2}'),
        ({"allOf": [A], "properties": {"c": {}}, "required": ["c"]}, '{"a": 1, "c": 0}'),
        ({"$ref": "#/$defs/a", "required": ["c"], "$defs": {"a": A}}, '{"a": 1, "c": 0}'),
        ({**A, "required": ["z"]}, '{"z": 0}'),
        ({**A, "minProperties": 2}, '{"a": 1, "b": 0}'),
        ({"type": "string", "pattern": "^[a-z]{50}$"}, json.dumps(LONG[:50])),
        ({"type": "string", "anyOf": [{"minLength": 100}]}, json.dumps(LONG)),
        ({"anyOf": [{"type": "string"}], "minLength": 100}, json.dumps(LONG)),
        ({"allOf": [{"type": "array"}, {"minItems": 9}], "items": {"const": 1}}, "[" + ", ".join("1" * 9) + "]"),
        ({"allOf": [{**A, "properties": {"a": {"type": "string"}}}, {"properties": {"a": {"minLength": 100}}}]},
         json.dumps({"a": LONG})),
        ({"type": "integer", "minimum": 2 * 10**15, "multipleOf": 7}, str(7 * 10**15)),
        ({"type": "integer", "exclusiveMaximum": -(2 * 10**15), "multipleOf": 7}, str(-7 * 10**15)),
    ],
    ids=str,
)  # fmt: skip
def test_max_field_leaves_a_text(schema, text):
    assert J(schema).matches(text) and J(schema, max_field=5).matches(text)


def test_max_field_still_limits_what_stands_alone():
    word = {"type": "string"}
    for schema in (
        {"allOf": [word]},
        {"anyOf": [word, {"type": "null"}], "default": None},
        {"$ref": "#/$defs/w", "description": "a word", "$defs": {"w": word}},
    ):
        grammar = J(schema, max_field=5)
        assert grammar.matches('"abcde"') and not grammar.matches('"abcdef"')
    either = {
        **A,
        "properties": {"a": word, "b": word},
        "required": [],
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert J(either, max_field=5).matches('{"a": "abcde"}') and not J(either, max_field=5).matches('{"a": "abcdef"}')


# --- limits that are reached --------------------------------------------------------------------------------------------


def test_texts_that_are_too_much_work_are_neither_right_nor_wrong():
    for grammar, text in (
        (J({"type": "string", "minLength": 10**6}), '"' + "a" * 10**6 + '"'),
        (Grammar.regex("a" * 50_000), "a" * 50_000),
    ):
        with pytest.raises(MatcherFailed, match="cannot be said"):
            grammar.matches(text)
    for make in (
        lambda: J({"type": "string", "minLength": 2**32}),
        lambda: Grammar.regex("a{4294967296}"),
        lambda: J({"allOf": [{"multipleOf": 99991}, {"multipleOf": 99989}], "type": "integer"}),
    ):
        with pytest.raises(GrammarTooLarge):
            make()
    with pytest.raises(UnsupportedKeyword, match="disjoint"):
        J({"patternProperties": {"^a": {}, "^ab": {}}})
    with pytest.raises(UnsatisfiableGrammar, match="is forbidden, or refers back"):
        J({"type": "object", "minProperties": 1, "additionalProperties": False})


# --- errors have names ----------------------------------------------------------------------------------------------------


def test_text_that_is_none():
    makers = (
        Grammar.regex,
        Grammar.lark,
        lambda text: J({"enum": [text]}),
        lambda text: J({"properties": {text: {}}}),
        lambda text: Grammar.llguidance({"grammars": [{"lark_grammar": text}]}),
        lambda text: Grammar.llguidance({"grammars": [{"json_schema": {"const": text}}]}),
    )
    for make in makers:
        with pytest.raises(InvalidGrammar, match="unpaired surrogate") as caught:
            make("a\ud800")
        assert len(str(caught.value)) < 200
    assert not Grammar.regex(".*").matches("\ud800") and Grammar.regex(".*").matches("é")


def test_tokens_and_models_that_are_none():
    model = fucina.load(TINY / "llama.gguf", threads=1)
    try:
        constraint = Grammar.regex("a+").constraint(model)
        for token in (-1, model.tokenizer.n_vocab, 1 << 40):
            with pytest.raises(TokenOutOfRange, match=f"token id {token} is outside the vocabulary"):
                constraint.commit(token)
        (a,) = model.tokenizer.encode("a", special=False)
        constraint.commit(a)
        assert constraint.accepting
        for ends in ([99_999], [-1], [1.5]):
            with pytest.raises(TokenOutOfRange):
                Grammar.regex("a").constraint(model, ends=ends)
        for wrong in (None, "model", 5):
            with pytest.raises(InvalidOption, match="a model or its tokenizer"):
                Grammar.regex("a").constraint(wrong)
    finally:
        model.close()


def test_one_constraint_in_two_streams():
    model = fucina.load(TINY / "llama.gguf", threads=1)
    try:
        constraint = Grammar.regex("[a-c]{9}").constraint(model)
        alone = model.generate("x", max_tokens=20, processor=constraint)
        first = model.generate("x", max_tokens=20, stream=True, processor=constraint)
        begun = next(first)
        for more in ({}, {"stream": True}):
            with pytest.raises(SharedStream, match="close that one first"):
                model.generate("y", max_tokens=20, processor=compose(BanTokens([0]), constraint), **more)
        assert begun + "".join(first) == alone.text and first.result.tokens == alone.tokens
        model.generate("x", max_tokens=2, processor=constraint)
        second = model.generate("x", max_tokens=20, stream=True, processor=constraint)
        next(second)
        second.close()
        assert model.generate("x", max_tokens=20, processor=constraint).tokens == alone.tokens
    finally:
        model.close()


def test_how_deep_a_schema_may_be_nested():
    """What docs/grammars.md says: about 120 levels of JSON, and references do not count."""

    def nested(schema, levels, inside):
        for _ in range(levels):
            schema = inside(schema)
        return schema

    for levels, inside in (
        (60, lambda s: {"anyOf": [s]}),
        (60, lambda s: {"type": "object", "properties": {"a": s}}),
        (120, lambda s: {"type": "array", "items": s}),
    ):
        J(nested({"const": 1}, levels, inside))
        with pytest.raises(GrammarTooLarge):
            J(nested({"const": 1}, levels * 5 // 4, inside))
    with pytest.raises(GrammarTooLarge):
        Grammar.lark("start: %json " + '{"items": ' * 50_000 + "{}" + "}" * 50_000)
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(200)}
    grammar = J({"$ref": "#/$defs/d0", "$defs": {**chain, "d200": {"const": 1}}})
    assert grammar.matches("[" * 200 + "1" + "]" * 200) and not grammar.matches("[" * 201 + "1" + "]" * 201)


def test_what_the_documentation_says_of_seconds_and_sets():
    moment = J({"type": "string", "format": "date-time"})
    assert moment.matches('"2024-02-28T10:11:60Z"') and not moment.matches('"2024-02-28T10:11:61Z"')
    assert Grammar.regex("[a-c&&b]").matches("b") and not Grammar.regex("[a-c&&b]").matches("&")
    assert Grammar.regex("[a[bc]]").matches("c")
