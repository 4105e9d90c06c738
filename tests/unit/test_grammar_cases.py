"""Faults that constrained decoding has had elsewhere, each with what is right."""

import json

import numpy as np
import pytest

import fucina
from fucina import Grammar
from fucina.errors import InvalidGrammar, MatcherFailed, UnsatisfiableGrammar
from fucina.speculative import ConstrainedSource
from tests.grammars import Run, allowed_ids, mask_of, together
from tests.models import need_smollm2


@pytest.fixture(scope="module")
def smollm2():
    model = fucina.load(need_smollm2())
    yield model
    model.close()


def walk(constraint, tokens):
    for token in tokens:
        constraint.commit(token)
    return constraint


def test_pattern_properties_can_be_written():
    grammar = Grammar.json_schema({
        "type": "object", "patternProperties": {"^s[a-z]*$": {"type": "integer"}}, "additionalProperties": False,
    })  # fmt: skip
    assert grammar.matches('{"score": 5}') and not grammar.matches('{"value": 5}') and grammar.matches("{}")


def test_every_way_to_split_a_text_ends_in_the_same_ends(smollm2):
    grammar = Grammar.regex("hello world")
    splits = [["hello", " world"], ["hel", "lo", " wor", "ld"], list("hello world")]
    for parts in splits:
        tokens = [i for part in parts for i in smollm2.tokenizer.encode(part, special=False)]
        constraint = walk(grammar.constraint(smollm2), tokens)
        assert allowed_ids(constraint) == [0, 2]
        for end in (0, 2):
            other = walk(grammar.constraint(smollm2), [*tokens, end])
            assert other.complete


def test_merged_tokens_that_are_masked_in_can_be_committed(smollm2):
    constraint = Grammar.json_schema({"properties": {"a": {}}, "required": ["a"], "type": "object"}).constraint(smollm2)
    walk(constraint, smollm2.tokenizer.encode('{"a', special=False))
    allowed = allowed_ids(constraint)
    assert 1799 in allowed  # `":`
    for token in allowed:
        assert constraint.valid_prefix([token]) == 1
        other = walk(constraint.clone(), smollm2.tokenizer.encode('{"a', special=False))
        other.commit(token)
        other.process(np.zeros(smollm2.n_tokens, np.float32), ())


def test_a_dead_grammar_is_no_empty_answer(smollm2):
    with pytest.raises(UnsatisfiableGrammar):
        Grammar.lark("start: start")
    dead = Grammar.lark('start: "a" b\nb: b')
    with pytest.raises(MatcherFailed):
        smollm2.generate("x", grammar=dead, max_tokens=5)


def test_schema_text_in_any_escaping_means_the_same(smollm2):
    for schema in (json.dumps({"enum": ["é"]}), json.dumps({"enum": ["é"]}, ensure_ascii=False), {"enum": ["é"]}):
        assert smollm2.generate("x", grammar=Grammar.json_schema(schema), max_tokens=10).text == '"é"'


def test_control_characters_in_keys(smollm2):
    schema = {"type": "object", "properties": {"a\u0001b": {"const": "\u0000\n\u001f\u007f"}}, "required": ["a\u0001b"]}
    g = smollm2.generate("x", grammar=Grammar.json_schema(schema | {"additionalProperties": False}), max_tokens=60)
    assert json.loads(g.text) == {"a\u0001b": "\u0000\n\u001f\u007f"} and g.complete


def test_a_thousand_items_stay_within_the_limits(smollm2):
    """An array of 10 to 1000 items: item after item, within the limits of work per mask (`python -m bench.grammar` times it)."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 10, "maxItems": 1000}
    constraint = Grammar.json_schema(schema).constraint(smollm2)
    walk(constraint, smollm2.tokenizer.encode("[", special=False))
    closing = smollm2.tokenizer.token_id("]")
    for item in range(300):
        walk(constraint, smollm2.tokenizer.encode(f"{item % 10}", special=False))
        assert (closing in allowed_ids(constraint)) == (item >= 9)
        walk(constraint, smollm2.tokenizer.encode(", ", special=False))


def test_bad_grammars_leave_the_engine_as_it_was(smollm2):
    for make in (
        lambda: Grammar.regex("[a"), lambda: Grammar.regex("(?=a)"), lambda: Grammar.regex("(a)\\1"),
        lambda: Grammar.json_schema({"properties": {"foo": "bar"}, "type": "object"}),
    ):  # fmt: skip
        with pytest.raises(InvalidGrammar):
            make()
        assert smollm2.generate("x", grammar=Grammar.regex("[ab]"), max_tokens=4).text in ("a", "b")
    assert Grammar.regex("foo**").matches("foooo")


def test_declared_keys_keep_their_order_and_extras_do_not_replace_them():
    grammar = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})
    assert grammar.matches('{"a": 1, "b": "x"}') and grammar.matches('{"b": "x"}') and grammar.matches('{"c": 1}')
    assert not grammar.matches('{"b": "bar", "a": "BAD"}') and not grammar.matches('{"b": "bar", "a": 1}')


@pytest.mark.parametrize("schema", [{}, True, {"type": "object"}, {"type": "null"}])
def test_small_schemas_constrain_too(smollm2, schema):
    """The first character is that of a JSON value, whatever the model would rather say."""
    first = Grammar.json_schema(schema).constraint(smollm2)
    pieces = {smollm2.tokenizer.piece(i)[:1] for i in np.flatnonzero(mask_of(first, smollm2.n_tokens)).tolist()}
    kinds = {"object": b"{", "null": b"n"}
    expected = kinds.get(schema.get("type"), b'{["-0123456789tfn') if isinstance(schema, dict) else b'{["-0123456789tfn'
    assert pieces == {bytes([b]) for b in expected}
    assert smollm2.generate("Hello", grammar=Grammar.json_schema(schema), max_tokens=1).text[:1].encode() in pieces


def test_arrays_do_not_collapse(smollm2):
    """With the layout that the model expects, arrays have items: the reason for the default of `whitespace`."""
    schema = {
        "type": "object", "required": ["topic", "items"], "additionalProperties": False,
        "properties": {
            "topic": {"type": "string", "maxLength": 20},
            "items": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        },
    }  # fmt: skip
    grammar, full = Grammar.json_schema(schema), 0
    for topic in ("fruits", "planets", "rivers"):
        prompt = f"<|im_start|>user\nList some {topic} as JSON with the keys topic and items.<|im_end|>\n<|im_start|>assistant\n"
        g = smollm2.generate(prompt, grammar=grammar, max_tokens=80, speculative=True)
        assert g.complete
        full += bool(json.loads(g.text)["items"])
    assert full == 3


def test_arguments_of_a_tool_call_parse_to_their_schema(smollm2):
    arguments = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    call = {
        "type": "object", "required": ["name", "arguments"], "additionalProperties": False,
        "properties": {"name": {"const": "weather"}, "arguments": arguments | {"additionalProperties": False}},
    }  # fmt: skip
    g = smollm2.generate("Call the weather tool for Oslo:\n", grammar=Grammar.json_schema(call), max_tokens=60)
    parsed = json.loads(g.text)
    assert (
        parsed["name"] == "weather"
        and isinstance(parsed["arguments"], dict)
        and isinstance(parsed["arguments"]["city"], str)
    )


def test_invalid_drafts_are_cut_before_the_pass(smollm2):
    """A source that drafts what the grammar refuses costs no row, and the matcher is not given it."""

    class Wrong:
        def suggest(self, context, limit):
            return [100, 200, 300]

        def observe(self, committed):
            pass

    grammar = Grammar.regex("[0-9]{6}")
    plain, drafted = Run(smollm2, grammar, "x", {}, 0), Run(smollm2, grammar, "x", {}, 0, speculative=True)
    drafted.stream.drafter.source = ConstrainedSource(drafted.constraint, Wrong())
    together(smollm2, [plain], 1)
    together(smollm2, [drafted], 1)
    assert drafted.outcome() == plain.outcome() and drafted.stream.drafter.stats.drafted == 0


def test_no_control_token_inside_a_string(smollm2):
    constraint = walk(
        Grammar.json_schema({"type": "string"}).constraint(smollm2), smollm2.tokenizer.encode('"', special=False)
    )
    mask = mask_of(constraint, smollm2.n_tokens)
    assert mask.sum() > 48_000 and not mask[:17].any()
