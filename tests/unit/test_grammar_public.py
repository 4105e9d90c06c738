"""Schemas that people use: those of SchemaStore.org.  Each compiles or is refused by name; replies are valid."""

import json
import warnings
from collections import Counter

import jsonschema
import pytest

import fucina
from fucina import Grammar
from fucina.errors import InvalidGrammar
from fucina.sampling.grammar import IgnoredKeyword
from tests.grammars import SAMPLINGS, Run, together
from tests.models import TINY, need_smollm2
from tests.schemastore import public_schemas

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(name, schema, grammar) of those that are supported."""
    found, refused = [], Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredKeyword)
        for name, schema in public_schemas(tmp_path_factory.mktemp("schemas")):
            try:
                found.append((name, schema, Grammar.json_schema(schema, max_field=12)))
            except InvalidGrammar as error:
                assert str(error)
                refused[type(error).__name__] += 1
    print(f"{len(found)} compile, refused: {dict(refused)}")
    return found


def test_enough_of_them_compile(compiled):
    assert len(compiled) >= 100


@pytest.mark.parametrize(("name", "first", "tokens"), [("tiny", 1000, 150), ("smollm2", 120, 60)])
def test_replies_are_valid_whatever_runs_beside_them(compiled, name, first, tokens):
    model = fucina.load(TINY / "llama.gguf", threads=1) if name == "tiny" else fucina.load(need_smollm2())
    compiled = compiled[:first]
    whole = accepted = 0
    try:
        for start in range(0, len(compiled), 8):
            some = list(enumerate(compiled[start : start + 8], start))
            outcomes = []
            for speculative, per_pass in ((False, 1), (True, 1), (False, 8), (True, 8)):
                runs = [Run(model, g, "x", SAMPLINGS[i % 3], i, speculative, tokens) for i, (_, _, g) in some]
                together(model, runs, per_pass)
                outcomes.append([run.outcome() for run in runs])
                accepted += sum(run.stream.drafter.stats.accepted for run in runs) if speculative else 0
            assert outcomes[1:] == outcomes[:1] * 3
            for run, (_, (name, schema, grammar)) in zip(runs, some):
                run.check_finite()
                if run.stream.finish == "stop_token":
                    whole += 1
                    assert grammar.matches(run.text), name
                    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
                    validator(schema).validate(json.loads(run.text))
    finally:
        model.close()
    print(f"{whole} of {len(compiled)} replies ended, all of them valid; {accepted} drafted tokens accepted")
    assert whole >= 60 and accepted > 500
