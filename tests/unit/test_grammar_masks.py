"""Masks against the grammar itself: every id that is masked in may follow, every id that is masked out is refused."""

import random

import numpy as np
import pytest

import fucina
from fucina import Grammar
from fucina.sampling import SamplerOptions
from tests.grammars import Run, allowed_ids, case, mask_of, together
from tests.models import TINY, need_gemma3, need_smollm2


class Recorder:
    """Compares the mask with a question about every single id, at some of the states that a run goes through."""

    def __init__(self, constraint, vocab, ends, at):
        self.constraint, self.vocab, self.ends, self.at = constraint, vocab, ends, at
        self.seen = self.compared = 0
        self.counts = []

    def __call__(self, logits, history):
        mask = mask_of(self.constraint, self.vocab)
        self.seen += 1
        if self.seen in self.at:
            self.compared += 1
            self.counts.append(int(mask.sum()))
            compare(self.constraint, mask, self.ends)
        logits[~mask] = -np.inf


def compare(constraint, mask, ends):
    whole = constraint.accepting
    validate = constraint._matcher.validate_tokens  # what `valid_prefix` asks, without its checks: this runs often
    valid = np.array([validate([token]) == 1 for token in range(len(mask))])
    for token in (*ends, *range(0, len(mask), 997)):
        assert valid[token] == (constraint.valid_prefix([token]) == 1)
    valid[list(ends)] = whole
    assert np.flatnonzero(mask != valid).tolist() == []
    assert allowed_ids(constraint) == np.flatnonzero(mask).tolist()
    for constraint._ready in (False, True):  # asked of the grammar, then of the mask
        for token in (*ends, *range(0, len(mask), 997), *np.flatnonzero(mask)[:50].tolist()):
            assert constraint.permits(token) == mask[token]
        assert not constraint.permits(len(mask)) and not constraint.permits(len(mask) + 40)


def states(model, seeds, at, sampling, prompt="Example:\n"):
    """Run grammars and compare at these steps; returns the number of states and the numbers of allowed ids."""
    compared, counts = 0, []
    for seed in seeds:
        run = Run(model, case(seed)[0], prompt, sampling, seed, max_tokens=max(at) + 1)
        recorder = Recorder(run.constraint, model.n_tokens, model.tokenizer.eog_ids, at)
        run.stream.sampler.processor = Observed(run.constraint, recorder)
        together(model, [run])
        compared, counts = compared + recorder.compared, counts + recorder.counts
    return compared, counts


class Observed:
    """A processor that lets a function do the masking."""

    def __init__(self, constraint, process):
        self.process, self.commit, self.reset = process, constraint.commit, constraint.reset


SAMPLED = {"temperature": 1.0, "top_p": 0.9}


@pytest.mark.parametrize("need", [need_smollm2, need_gemma3])
def test_every_id_at_some_states(need):
    model = fucina.load(need())
    try:
        few = need is need_gemma3
        compared, counts = states(model, [72] if few else range(70, 75), {3} if few else {2, 7}, SAMPLED)
    finally:
        model.close()
    assert compared >= (1 if few else 6) and min(counts) >= 1


def test_every_id_at_many_states_of_a_small_vocabulary():
    model = fucina.load(TINY / "llama.gguf", threads=1)
    try:
        compared, counts = states(model, range(80, 110), set(range(1, 60)), SAMPLED)
    finally:
        model.close()
    assert compared > 300 and min(counts) == 1 and max(counts) > 100


@pytest.mark.slow
@pytest.mark.parametrize("need", [need_smollm2, need_gemma3])
def test_every_id_at_200_states(need):
    model = fucina.load(need())
    try:
        compared = 0
        for first in range(600, 800, 4):
            compared += states(model, range(first, first + 4), {1, 2, 4, 7, 11, 16}, SAMPLED)[0]
            if compared >= 200:
                break
    finally:
        model.close()
    assert compared >= 200


# --- looking ahead changes nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200, 212))
def test_looking_ahead_changes_no_mask(seed):
    """One constraint is asked everything at every step, the other one only what it must be asked."""
    model = fucina.load(TINY / "llama.gguf", threads=1)
    r = random.Random(seed)
    try:
        grammar = case(seed)[0]
        asked, quiet = grammar.constraint(model), grammar.constraint(model)
        vocab = model.n_tokens
        for _ in range(60):
            for _ in range(r.randrange(4)):
                r.choice([
                    asked.forced_tokens, asked.tail_token, asked.mask, lambda: asked.permits(r.randrange(vocab)), lambda: asked.accepting, lambda: asked.complete,
                    lambda: asked.valid_prefix([r.randrange(vocab) for _ in range(3)]), lambda: mask_of(asked, vocab),
                    lambda: asked.valid_prefix(asked.forced_tokens()),
                ])()  # fmt: skip
            mask = mask_of(quiet, vocab)
            assert (mask_of(asked, vocab) == mask).all()
            assert asked.accepting == quiet.accepting
            token = int(r.choice(np.flatnonzero(mask)))
            asked.commit(token)
            quiet.commit(token)
            if asked.ended:
                break
        assert asked.complete == quiet.complete
    finally:
        model.close()


def test_forced_tokens_are_one_spelling_of_what_must_follow():
    """The mask allows other spellings of forced text, and sampling takes them: the draft decides nothing."""
    model = fucina.load(need_smollm2())
    try:
        schema = {"type": "object", "properties": {"population": {"type": "integer", "minimum": 0, "maximum": 99}}}
        grammar = Grammar.json_schema(schema | {"required": ["population"], "additionalProperties": False})
        constraint = grammar.constraint(model)
        forced = constraint.forced_tokens()
        assert model.tokenizer.decode(forced) == '{"population":'
        assert forced == model.tokenizer.encode('{"population":', special=False)
        assert constraint.valid_prefix(forced) == len(forced)
        assert model.tokenizer.decode([constraint.tail_token()]) == " "
        assert constraint.forced_tokens(2) == forced[:2]
        for token in forced:
            assert token in allowed_ids(constraint)
            constraint.commit(token)
        assert constraint.forced_tokens() == []
        other = grammar.constraint(model)
        spelled = [i for c in '{"population": 5}' for i in model.tokenizer.encode(c, special=False)]
        for token in spelled:  # one character at a time: another spelling of the same text
            assert mask_of(other, model.n_tokens)[token]
            other.commit(token)
        assert other.complete
        hot = SamplerOptions(temperature=50.0)
        differ = 0
        for seed in range(3):
            runs = [Run(model, grammar, "x", {"temperature": hot.temperature}, seed, s, 40) for s in (False, True)]
            together(model, runs, 1)
            assert runs[0].outcome() == runs[1].outcome()
            differ += runs[0].tokens[: len(forced)] != forced
        assert differ >= 1
    finally:
        model.close()
