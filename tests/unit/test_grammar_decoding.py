"""Constrained decoding: replies are sentences of their grammars, and drafts and batches change nothing."""

import pytest

import fucina
from tests.grammars import SAMPLINGS, Run, case, judge, lark_case, together
from tests.models import TINY, need_gemma3, need_smollm2

PROMPT = "Answer with an example:\n"


@pytest.fixture(scope="module")
def tiny():
    model = fucina.load(TINY / "llama.gguf", threads=1)
    yield model
    model.close()


@pytest.fixture(scope="module")
def smollm2():
    model = fucina.load(need_smollm2())
    yield model
    model.close()


def check(model, seeds, prompt=PROMPT, max_tokens=120, per_pass=8, make=case):
    """Plain, speculative, batched and speculative-batched; every kind of sampling in turn.

    Returns how many replies were whole sentences, and how many tokens were drafted and accepted.
    """
    cases = {seed: make(seed) for seed in seeds}

    def run(seed, speculative):
        sampling, haste = SAMPLINGS[seed % len(SAMPLINGS)], 10.0 if make is lark_case else 0.0
        return Run(model, cases[seed][0], prompt, sampling, seed, speculative, max_tokens, haste)

    whole = drafted = accepted = 0
    expected = {}
    for seed, (grammar, kind, source) in cases.items():
        (alone,) = together(model, [run(seed, False)])
        alone.check_finite()
        expected[seed] = alone.outcome()
        text = alone.text
        assert alone.constraint.complete == (alone.stream.finish == "stop_token") or grammar.matches(text)
        if alone.stream.finish == "stop_token":
            judge(kind, source, text)
            assert grammar.matches(text)
            whole += 1
        (fast,) = together(model, [run(seed, True)])
        assert fast.outcome() == expected[seed], (seed, source)
        assert [row.tobytes() for row in fast.rows] == [row.tobytes() for row in alone.rows]
        drafted, accepted = drafted + fast.stream.drafter.stats.drafted, accepted + fast.stream.drafter.stats.accepted
    for speculative in (False, True):
        runs = {seed: run(seed, speculative) for seed in cases}
        together(model, list(runs.values()), per_pass)
        assert {seed: r.outcome() for seed, r in runs.items()} == expected
    return whole, drafted, accepted


@pytest.mark.parametrize("per_pass", range(1, 9))
def test_random_grammars_on_a_tiny_model(tiny, per_pass):
    """Up to 1, 2, ... 8 streams in a pass."""
    whole, _, accepted = check(tiny, range(9 * per_pass, 9 * per_pass + 9), per_pass=per_pass)
    assert whole >= 6 and accepted > 10


def test_random_grammars_on_a_real_model(smollm2):
    whole, _, accepted = check(smollm2, range(1000, 1004), max_tokens=40)
    assert whole >= 2 and accepted > 10


@pytest.mark.slow
@pytest.mark.parametrize("block", range(32))
def test_many_random_grammars_on_a_tiny_model(tiny, block):
    whole, _, accepted = check(tiny, range(2000 + 20 * block, 2020 + 20 * block))
    assert whole >= 14 and accepted > 40


def test_random_grammars_that_the_package_lark_judges(tiny):
    whole, _, accepted = check(tiny, range(12), max_tokens=60, make=lark_case)
    assert whole >= 6 and accepted > 3


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_many_grammars_that_the_package_lark_judges(tiny, block):
    whole, _, accepted = check(tiny, range(100 + 20 * block, 120 + 20 * block), max_tokens=60, make=lark_case)
    assert whole >= 10 and accepted > 5


@pytest.mark.slow
@pytest.mark.parametrize("block", range(75))
def test_300_random_schemas_and_200_regexes_on_a_real_model(smollm2, block):
    """10 in a block, of which 3 or 4 are regexes; every block with another number of streams in a pass."""
    whole, drafted, _ = check(
        smollm2, range(6000 + 10 * block, 6010 + 10 * block), max_tokens=80, per_pass=1 + block % 8
    )
    assert whole >= 6 and drafted > 0


@pytest.mark.slow
@pytest.mark.parametrize(("need", "make"), [(need_gemma3, case), (need_gemma3, lark_case), (need_smollm2, lark_case)])
@pytest.mark.parametrize("block", range(5))
def test_many_random_grammars_on_real_models(need, make, block):
    model = fucina.load(need())
    try:
        whole, drafted, _ = check(model, range(5000 + 10 * block, 5010 + 10 * block), max_tokens=60, make=make)
    finally:
        model.close()
    assert whole >= 6 and drafted > 0
