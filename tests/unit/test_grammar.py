"""Grammars: what is accepted, what is refused and by which name, limits, the cache of compiled grammars."""

import json
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import fucina
from fucina import Grammar
from fucina.errors import (
    GrammarTooLarge,
    InvalidGrammar,
    InvalidOption,
    LlguidanceNotEnabled,
    MatcherFailed,
    NoEosToken,
    UnsatisfiableGrammar,
    UnsupportedKeyword,
)
from fucina.sampling import Sampler, SamplerOptions
from fucina.sampling.grammar import IgnoredKeyword, llg
from tests.chat_model import write_chat_model
from tests.grammars import allowed_ids
from tests.models import TINY, need_smollm2

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def model():
    m = fucina.load(TINY / "llama.gguf", threads=1)
    yield m
    m.close()


def loop(required):
    """An object that contains itself."""
    return {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"] if required else []}


# --- what is accepted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (
            OBJECT,
            ['{"a": 1}', '{"a": -20}'],
            ["{}", '{"a":1}', '{"a": 1, "b": 2}', ' {"a": 1}', '{"a": 1} ', '{"a": 01}'],
        ),
        (json.dumps(OBJECT), ['{"a": 1}'], ["{}"]),
        (True, ["1", "null", '{"x": [1, 2]}'], ["", "nul", "[1,2]"]),
        ({"type": "string", "maxLength": 2}, ['"é\\n"', '"😀b"'], ['"abc"', '"\t"', '"\\u00e9"', '"\\/"']),
        ({"type": "integer", "minimum": 1, "maximum": 10}, ["1", "10"], ["0", "11", "01", "-1", "1.0", "1e1"]),
        ({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 20}, ["5", "20"], ["0", "7", "25"]),
        ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-30"', '"24-02-28"']),
        (loop(False), ["{}", '{"a": {"a": {}}}'], ['{"a": 1}']),
        ({"uniqueItems": False, "type": "array", "items": {"type": "null"}}, ["[]", "[null, null]"], ["[1]"]),
        ({"items": [{"type": "integer"}], "type": "array"}, ["[1]", '[1, "a"]'], ['["a"]']),
    ],
    ids=str,
)
def test_schemas(schema, yes, no):
    grammar = Grammar.json_schema(schema)
    assert [grammar.matches(text) for text in yes] == [True] * len(yes)
    assert [grammar.matches(text) for text in no] == [False] * len(no)


def test_the_schema_of_the_caller_stays_as_it_is():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": False}
    before = json.dumps(schema)
    Grammar.json_schema(schema, max_field=3)
    assert json.dumps(schema) == before


def test_whitespace():
    compact, spaced = Grammar.json_schema(OBJECT, whitespace="compact"), Grammar.json_schema(OBJECT)
    some = Grammar.json_schema(OBJECT, whitespace=3)
    texts = ['{"a":1}', '{"a": 1}', '{ "a" :\n 1 }', '{   "a":1}', '{    "a":1}']
    assert [compact.matches(t) for t in texts] == [True, False, False, False, False]
    assert [spaced.matches(t) for t in texts] == [False, True, False, False, False]
    assert [some.matches(t) for t in texts] == [True, True, True, True, False]
    for wrong in ("loose", 0, -1, 1001, 1.5, True, None):
        with pytest.raises(InvalidOption, match="whitespace"):
            Grammar.json_schema(OBJECT, whitespace=wrong)


def test_max_field_bounds_what_has_no_bound():
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "string", "maxLength": 9}},
            "n": {"type": "integer"}, "p": {"type": "integer", "minimum": 0}, "e": {"enum": ["longer than that"]},
        },
        "required": ["s", "l", "n", "p", "e"],
    }  # fmt: skip
    grammar = Grammar.json_schema(schema, max_field=4)
    text = '{"s": "%s", "l": %s, "n": %s, "p": %s, "e": "longer than that"%s}'
    assert grammar.matches(text % ("abcd", "[]", "1", "0", ""))
    assert grammar.matches(text % ("", '["123456789"]', "-" + "9" * 15, "9" * 15, ""))
    for wrong in (("abcde", "[]", 1, 0, ""), ("", '["","","","",""]', 1, 0, ""), ("", "[]", "9" * 16, 0, ""),
                  ("", "[]", 1, "9" * 16, ""), ("", "[]", 1, -1, ""), ("", "[]", 1, 0, ', "more": 1')):  # fmt: skip
        assert not grammar.matches(text % wrong)
    assert Grammar.json_schema(schema).matches(text % ("abcde", "[]", 1, 0, ', "more": 1'))
    for wrong in (0, -1, "a", 1.5):
        with pytest.raises(InvalidOption, match="max_field"):
            Grammar.json_schema(schema, max_field=wrong)


def test_json_regex_lark_and_compositions():
    assert Grammar.json().matches('[1, {"a": null}]') and not Grammar.json().matches("[1,")
    assert Grammar.regex('a/b"\n[é]+').matches('a/b"\néé') and not Grammar.regex("a+").matches("aab")
    lark = Grammar.lark('start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/')
    assert lark.matches("((12))") and not lark.matches("((12)")
    parts = {
        "grammars": [{"lark_grammar": 'start: "x=" @value'}, {"name": "value", "json_schema": {"type": "boolean"}}]
    }
    for source in (parts, json.dumps(parts)):
        assert Grammar.llguidance(source).matches("x=true") and not Grammar.llguidance(source).matches("x=1")
    assert Grammar.regex("").matches("") and not Grammar.regex("").matches("a")
    assert Grammar.regex("a|b") == Grammar.regex("a|b") != Grammar.regex("a|c")
    assert repr(Grammar.regex("a")).startswith("Grammar(regex, ")


def test_lark_agrees_with_lark():
    """The package lark judges arithmetic that the constraint has written."""
    lark = pytest.importorskip("lark")
    text = 'start: term (("+" | "-") term)*\nterm: factor ("*" factor)*\nfactor: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/\n'
    parser, grammar = lark.Lark(text), Grammar.lark(text)
    model = fucina.load(TINY / "llama.gguf", threads=1)
    try:
        ended = 0
        for seed in range(30):
            g = model.generate("1", max_tokens=40, temperature=1.5, seed=seed, grammar=grammar)
            if g.complete:
                ended += 1
                parser.parse(g.text)
        assert ended >= 10
    finally:
        model.close()


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Grammar.json_schema(False), UnsatisfiableGrammar, "false"),
        (lambda: Grammar.json_schema({"properties": {"a": False}, "required": ["a"], "type": "object"}), UnsatisfiableGrammar, "a"),
        (lambda: Grammar.json_schema({"type": "integer", "minimum": 3, "maximum": 2}), UnsatisfiableGrammar, "3"),
        (lambda: Grammar.json_schema({"type": "integer", "minimum": 1.5, "maximum": 1.7}), UnsatisfiableGrammar, "1.5"),
        (lambda: Grammar.json_schema({"type": "array", "minItems": 3, "maxItems": 2}), UnsatisfiableGrammar, "3"),
        (lambda: Grammar.json_schema({"enum": []}), UnsatisfiableGrammar, "empty"),
        (lambda: Grammar.json_schema(loop(True)), UnsatisfiableGrammar, "refers back to itself"),
        (lambda: Grammar.json_schema({"$defs": {"x": {"items": {"$ref": "#/$defs/x"}, "type": "array", "minItems": 1}},
                                      "$ref": "#/$defs/x"}), UnsatisfiableGrammar, "refers back"),
        (lambda: Grammar.json_schema({"$ref": "#"}), UnsatisfiableGrammar, "refers back"),
        (lambda: Grammar.lark("start: start"), UnsatisfiableGrammar, "not even a first character"),
        (lambda: Grammar.regex("a[^\\x00-\\U0010FFFF]"), UnsatisfiableGrammar, "not even"),
        (lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}), UnsupportedKeyword, "uniqueItems"),
        (lambda: Grammar.json_schema({"not": {"type": "string"}}), UnsupportedKeyword, "not"),
        (lambda: Grammar.json_schema({"if": {}, "then": {}}), UnsupportedKeyword, "if"),
        (lambda: Grammar.json_schema({"type": "string", "format": "phone"}), UnsupportedKeyword, "phone"),
        (lambda: Grammar.json_schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}), UnsupportedKeyword, "oneOf"),
        (lambda: Grammar.json_schema({"$ref": "http://example.org/x"}), UnsupportedKeyword, "example.org"),
        (lambda: Grammar.json_schema({"extends": {}}), UnsupportedKeyword, "extends"),
        (lambda: Grammar.json_schema({"properties": {"p": {"divisibleBy": 2}}}), UnsupportedKeyword, "divisibleBy"),
        (lambda: Grammar.json_schema({"x-guidance": {"lenient": True}, "not": {}}), UnsupportedKeyword, "x-guidance"),
        (lambda: Grammar.json_schema({"type": "object", "minProperties": 2}), UnsupportedKeyword, "minProperties"),
        (lambda: Grammar.json_schema({"type": "string", "pattern": "(?=a)"}), UnsupportedKeyword, "look-around"),
        (lambda: Grammar.regex("(?=a)b"), UnsupportedKeyword, "look-around"),
        (lambda: Grammar.regex("(a)\\1"), UnsupportedKeyword, "backreferences"),
        (lambda: Grammar.regex("[a"), InvalidGrammar, "unclosed"),
        (lambda: Grammar.json_schema("{"), InvalidGrammar, "no JSON"),
        (lambda: Grammar.json_schema([]), InvalidGrammar, "an object, true or false"),
        (lambda: Grammar.json_schema({"type": "text"}), InvalidGrammar, "text"),
        (lambda: Grammar.json_schema({"const": float("nan")}), InvalidGrammar, "no JSON"),
        (lambda: Grammar.json_schema({"enum": [object()]}), InvalidGrammar, "no JSON"),
        (lambda: Grammar.json_schema({"properties": {"bar": "bar"}, "type": "object"}), InvalidGrammar, "object or boolean"),
        (lambda: Grammar.json_schema({"$ref": "#/$defs/missing"}), InvalidGrammar, "missing"),
        (lambda: Grammar.lark("start ="), InvalidGrammar, "Expected"),
        (lambda: Grammar.lark("start: x"), InvalidGrammar, "unknown name"),
        (lambda: Grammar.lark(b"start: x"), InvalidGrammar, "must be text"),
        (lambda: Grammar.llguidance("[1]"), InvalidGrammar, "grammars"),
        (lambda: Grammar.llguidance({"grammars": []}), InvalidGrammar, "at least one"),
        (lambda: Grammar.regex("a" * (1 << 20) + "a"), GrammarTooLarge, "limit"),
        (lambda: Grammar.json_schema({"enum": ["x" * (1 << 20)]}), GrammarTooLarge, "limit"),
        (lambda: Grammar.json_schema({"enum": [f"v{i}" for i in range(90_000)]}), GrammarTooLarge, "too big"),
    ],
)  # fmt: skip
def test_refusals(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert type(caught.value) is error and len(str(caught.value)) < 600


def test_unknown_keywords_are_told():
    with pytest.warns(IgnoredKeyword, match="maxlength, minlenght") as told:
        Grammar.json_schema({"type": "string", "maxlength": 3, "minlenght": 1, "x-note": 1, "title": "t"})
    assert [w.filename for w in told] == [__file__]
    unused = {"type": "null", "$defs": {"unused": {"not": {}, "strange": 1}}}  # constrains nothing
    assert Grammar.json_schema(unused).matches("null")


DEEP = """
import sys
from fucina import Grammar
from fucina.errors import InvalidGrammar
n = 10_000
dicts = {}
for _ in range(n):
    dicts = {"items": dicts}
refs = {"$defs": {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(n)}}
refs = refs | {"$ref": "#/$defs/d0"}
refs["$defs"][f"d{n}"] = {"type": "integer"}
some = {"$defs": {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(4000)}}
some = some | {"$ref": "#/$defs/d0"}
some["$defs"]["d4000"] = {"type": "integer"}
cases = [
    lambda: Grammar.json_schema(dicts),
    lambda: Grammar.json_schema('{"items":' * n + "{}" + "}" * n),
    lambda: Grammar.json_schema(refs),
    lambda: Grammar.json_schema(some),
    lambda: Grammar.lark("start: r0\\n" + "".join(f"r{i}: r{i + 1}\\n" for i in range(n)) + f'r{n}: "x"'),
    lambda: Grammar.lark("start: r0\\n" + "".join(f'r{i}: "a" r{i + 1} | "b"\\n' for i in range(4000)) + 'r4000: "x"'),
    lambda: Grammar.lark("start: T0\\n" + "".join(f'T{i}: "a" T{i + 1}\\n' for i in range(n)) + f'T{n}: "x"'),
    lambda: Grammar.lark("start: " + "(" * n + '"a"' + ")" * n),
    lambda: Grammar.regex("(" * n + "a" + ")" * n),
    lambda: Grammar.regex("(a" * n + ")?" * n),
    lambda: Grammar.llguidance({"grammars": [{"json_schema": dicts}]}),
    lambda: Grammar.llguidance('{"grammars":' + "[" * n + "]" * n + "}"),
]
for make in cases:
    try:
        make()
        print("made")
    except InvalidGrammar as error:
        print(type(error).__name__, str(error)[:80].replace(chr(10), " "))
assert Grammar.regex("a").matches("a")
"""


def test_the_process_survives_10000_levels():
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds = [line.split()[0] for line in done.stdout.splitlines()]
    large, bad = "GrammarTooLarge", "InvalidGrammar"
    assert kinds[:8] == [large, large, large, "made", large, "made", large, large], done.stdout
    assert all(kind in (large, bad, "made") for kind in kinds[8:]), done.stdout


def test_without_llguidance(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(LlguidanceNotEnabled, match=r'pip install "fucina\[grammar\]"') as caught:
        Grammar.regex("not compiled before [0-9]")
    assert isinstance(caught.value, ImportError)


def test_one_file_imports_llguidance():
    root = llg.__file__.rsplit("fucina", 1)[0]
    found = subprocess.run(
        [sys.executable, "-c", "import sys, fucina.sampling, fucina.chat; print('llguidance' in sys.modules)"],
        capture_output=True, text=True, cwd=root,
    )  # fmt: skip
    assert found.stdout.strip() == "False"  # it is imported when a grammar is made


# --- vocabularies -------------------------------------------------------------------------------------------------------


def test_no_end_token(model, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "eog_ids", frozenset())
    with pytest.raises(NoEosToken, match="no token that ends a text"):
        Grammar.regex("a").constraint(model)


def test_text_that_spells_a_marker_never_becomes_the_marker(tmp_path):
    m = fucina.load(write_chat_model(tmp_path / "chat.gguf"), threads=1)
    try:
        constraint = Grammar.regex("<\\|im_(start|end)\\|>").constraint(m)
        for character in "<|im_end|>":
            allowed = allowed_ids(constraint)
            assert not {256, 257} & set(allowed)
            (token,) = m.tokenizer.encode(character, special=False)
            assert token in allowed
            constraint.commit(token)
        assert allowed_ids(constraint) == sorted(m.tokenizer.eog_ids)
    finally:
        m.close()


def test_all_end_tokens_are_allowed_at_the_end_and_only_there():
    m = fucina.load(need_smollm2())
    try:
        assert m.tokenizer.eog_ids == {0, 2}
        for pattern, extends in (("hello", False), ("hello( world)?", True)):
            for end in (0, 2):
                constraint = Grammar.regex(pattern).constraint(m)
                for token in m.tokenizer.encode("hello", special=False):
                    assert not {0, 2} & set(np.flatnonzero(np.isfinite(masked(constraint, m))).tolist())
                    assert constraint.valid_prefix([token, end]) in (1, 2)
                    constraint.commit(token)
                allowed = set(np.flatnonzero(np.isfinite(masked(constraint, m))).tolist())
                assert allowed >= {0, 2} and (len(allowed) > 2) == extends
                assert constraint.accepting and constraint.complete == (not extends)
                constraint.commit(end)
                assert constraint.complete and constraint.ended
                constraint.commit(2)  # a second end changes nothing
                with pytest.raises(MatcherFailed, match="ended"):
                    masked(constraint, m)
                with pytest.raises(MatcherFailed, match="does not allow"):
                    constraint.commit(100)
        only = Grammar.regex("a").constraint(m, ends={0})
        (a,) = m.tokenizer.encode("a", special=False)
        only.commit(a)
        assert allowed_ids(only) == [0]
    finally:
        m.close()


def masked(constraint, m):
    row = np.zeros(m.n_tokens, np.float32)
    constraint.process(row, ())
    return row


def test_a_row_longer_or_shorter_than_the_vocabulary(model):
    constraint = Grammar.regex("[^#]{5}").constraint(model)
    long, short = np.zeros(model.n_tokens + 70, np.float32), np.zeros(100, np.float32)
    constraint.process(long, ())
    constraint.process(short, ())
    assert np.isinf(long[model.n_tokens :]).all() and np.isfinite(short).any()
    assert (np.isfinite(long[:100]) == np.isfinite(short)).all()
    tight = Grammar.regex("[ab]").constraint(model)
    row = np.zeros(model.n_tokens + 70, np.float32)
    row[model.n_tokens :] = 5.0
    assert Sampler(SamplerOptions(), tight).next(row) in allowed_ids(tight.clone())


def test_a_dead_end_and_a_wrong_token_fail_by_name(model):
    dead = Grammar.lark('start: "a" b\nb: b').constraint(model)
    a, b = model.tokenizer.encode("ab", special=False)
    dead.commit(a)
    for _ in range(2):
        with pytest.raises(MatcherFailed, match="cannot go on"):
            dead.mask()
    assert not dead.complete and not dead.accepting and dead.forced_tokens() == [] and dead.valid_prefix([a]) == 0
    wrong = Grammar.regex("ab").constraint(model)
    with pytest.raises(MatcherFailed, match="does not allow token"):
        wrong.commit(b)
    with pytest.raises(MatcherFailed):
        wrong.mask()
    wrong.reset()
    assert allowed_ids(wrong) == [a] and wrong.valid_prefix([a, b, a]) == 2
    assert wrong.valid_prefix([a, -1]) == 1 and wrong.valid_prefix([1 << 40]) == 0 and wrong.valid_prefix([]) == 0


def test_after_the_end_nothing_is_permitted(model):
    constraint = Grammar.regex("a*").constraint(model)
    a, end = model.tokenizer.encode("a", special=False)[0], min(model.tokenizer.eog_ids)
    assert constraint.permits(a) and constraint.permits(end) and constraint.ahead([a]) is not None
    constraint.commit(end)
    assert not constraint.permits(a) and not constraint.permits(end) and constraint.ahead([a]) is None
    with pytest.raises(MatcherFailed, match="was ended"):
        constraint.mask()
    whole = Grammar.regex("a").constraint(model)
    assert not whole.permits(end)
    whole.commit(a)
    assert whole.permits(end) and not whole.permits(a)


# --- compiled once ------------------------------------------------------------------------------------------------------


def test_a_grammar_is_compiled_once_per_vocabulary(model, monkeypatch):
    compiled = []
    real = llg.Vocabulary._compile
    monkeypatch.setattr(llg.Vocabulary, "_compile", lambda self, p: compiled.append((self.size, p)) or real(self, p))
    text = "compiled once [0-9]{3}"
    constraints = [Grammar.regex(text).constraint(model) for _ in range(5)]
    assert [size for size, _ in compiled] == [llg.byte_vocabulary().size, model.n_tokens]
    constraints[0].commit(allowed_ids(constraints[0])[0])
    assert allowed_ids(constraints[1]) == allowed_ids(constraints[2])  # their places are their own
    known = llg.vocabulary(model.tokenizer, model.tokenizer.eog_ids)
    for i in range(llg.KEPT + 3):
        Grammar.regex(f"other {i}").constraint(model)
    assert len(known._compiled) == llg.KEPT and Grammar.regex(text).program not in known._compiled
    before = len(compiled)
    assert allowed_ids(constraints[1].clone()) == allowed_ids(constraints[2])
    assert len(compiled) == before + 1


def test_threads_share_grammars(model):
    """Many threads ask for the same few grammars and each uses its own constraint: compiled once, same masks."""
    patterns = [f"thread {i} (yes|no|[0-9]+)" for i in range(4)]
    results, errors = {}, []
    barrier = threading.Barrier(8)

    def work(n):
        try:
            barrier.wait()
            for i in range(12):
                pattern = patterns[(n + i) % 4]
                constraint = Grammar.regex(pattern).constraint(model)
                seen = []
                while not constraint.accepting:
                    seen.append(allowed_ids(constraint))
                    constraint.commit(seen[-1][0])
                results.setdefault(pattern, set()).add(json.dumps(seen))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(len(seen) == 1 for seen in results.values()) and len(results) == 4


def test_a_grammar_that_fails_is_not_remembered(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(InvalidGrammar):
                Grammar.regex("[never")
    assert not any("[never" in program for program in llg.byte_vocabulary()._compiled)
