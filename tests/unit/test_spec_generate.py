"""`generate(speculative=True)` and the command line: what plain decoding gives, with everything that may end a text."""

import json

import numpy as np
import pytest

import fucina
from fucina.cli import main
from fucina.decoding import Decoder
from fucina.errors import AllTokensMasked, InvalidOption, TokenOutOfRange
from fucina.generation import GenerationStream
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import Options, SpeculationIndex, SpeculativeDecoder, Stats
from tests.models import TINY
from tests.spec_toys import Logged, Replay

PATH = TINY / "llama.gguf"
PROMPT = "the the cat the the cat the"


@pytest.fixture(scope="module")
def model():
    m = fucina.load(PATH, threads=1)
    yield m
    m.close()


@pytest.fixture(scope="module")
def naive():
    m = fucina.load(PATH, backend="naive")
    yield m
    m.close()


def fields(result):
    return result.text, result.tokens, result.finish_reason, result.stop, result.prompt_tokens, result.seed


def perfect(model, text, **options):
    options = Options(**{"adapt_budget": False, "min_speedup": 0, "min_draft": 1, **options})
    return SpeculativeDecoder(model, Replay(text), options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.8, "top_k": 20, "seed": 3, "repeat_penalty": 1.1},
        {"temperature": 1.2, "seed": 4, "frequency_penalty": 0.3},
        {"repeat_penalty": 1.4},
    ],
)
@pytest.mark.parametrize("references", [(), ["the cat sat on the cat", [5, 6, 7, 8]]])
def test_the_same_text(model, options, references):
    plain = model.generate(PROMPT, max_tokens=120, ignore_eos=True, **options)
    fast = model.generate(PROMPT, max_tokens=120, ignore_eos=True, speculative=True, references=references, **options)
    assert fields(plain) == fields(fast)
    assert plain.speculation is None and isinstance(fast.speculation, Stats) and fast.speculation.committed == 120


def test_the_naive_backend_speculates_too(naive):
    plain = naive.generate(PROMPT, max_tokens=12, ignore_eos=True)
    ids = naive.tokenizer.encode_prompt(PROMPT)
    fast = naive.generate(PROMPT, max_tokens=12, ignore_eos=True, speculative=perfect(naive, ids + plain.tokens))
    assert fields(plain) == fields(fast) and fast.speculation.accepted > 5


def test_repetition_is_accepted(model):
    """Biased towards a cycle, text repeats itself: most of it comes from drafts."""
    decoder = SpeculativeDecoder(model, SpeculationIndex(256), Options(min_speedup=0))
    result = model.generate([1, 2, 3] * 30, max_tokens=200, ignore_eos=True, speculative=decoder, repeat_penalty=0.05)
    plain = model.generate([1, 2, 3] * 30, max_tokens=200, ignore_eos=True, repeat_penalty=0.05)
    assert result.tokens == plain.tokens
    assert result.speculation.accepted > 100 and result.speculation.steps < 100


# --- ends -------------------------------------------------------------------------------------------------------------


def run(model, ids, decoder, sampler, stops=(), ends=frozenset(), max_tokens=40, cache=None):
    stream = GenerationStream(model, ids, max_tokens, sampler, stops, ends, cache, decoder)
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text
    return stream.result


def two_turns(model, make_decoder, stops=(), ends=frozenset(), seed=7):
    """A turn that is ended from inside, then another on the same cache and sampler: all that must be equal."""
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=seed, repeat_penalty=1.2), Logged())
    ids = model.tokenizer.encode(PROMPT)
    cache = model.new_cache(200)
    decoder = make_decoder()
    first = run(model, ids, decoder, sampler, stops, ends, cache=cache)
    after = sampler.rng.position, list(sampler.processor.log), cache.len
    keys = [plane[:, : cache.len].tobytes() for i in range(len(cache.geometry)) for plane in cache.planes(i)]
    tokens = ids + first.tokens + [17, 18]
    cache.truncate(min(cache.len, len(tokens) - 1))
    second = run(model, tokens, decoder, sampler, (), frozenset(), 10, cache)
    return fields(first), after, keys, fields(second), sampler.rng.position


@pytest.mark.parametrize("drafts", [1, 3, 16])
def test_every_token_as_the_end_of_text(model, drafts):
    """Case H2: the turn ends at every place of a draft, with each length of drafts."""
    ids = model.tokenizer.encode(PROMPT)
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=7, repeat_penalty=1.2), Logged())
    text = run(model, ids, Decoder(model), sampler).tokens
    for token in sorted(set(text)):
        plain = two_turns(model, lambda: Decoder(model), ends=frozenset({token}))
        assert plain[0][2] == "stop" and token not in plain[0][1]
        fast = two_turns(model, lambda: perfect(model, ids + text, max_draft=drafts), ends=frozenset({token}))
        assert fast == plain


@pytest.mark.parametrize("drafts", [1, 3, 16])
def test_stop_texts_inside_an_accepted_draft(model, drafts):
    """Case H4: the match completes anywhere in a draft, across tokens too; all else, the next turn too, is plain decoding's."""
    ids = model.tokenizer.encode(PROMPT)
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=7, repeat_penalty=1.2), Logged())
    whole = run(model, ids, Decoder(model), sampler)
    stops = {whole.text[i : i + n] for i in range(1, len(whole.text) - 6, 3) for n in (1, 2, 5)}
    for stop in sorted(stops):
        plain = two_turns(model, lambda: Decoder(model), stops=(stop, "never"))
        assert plain[0][3] == stop and stop not in plain[0][0]
        assert (
            two_turns(model, lambda: perfect(model, ids + whole.tokens, max_draft=drafts), stops=(stop, "never"))
            == plain
        )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 33])
def test_max_tokens_and_context(model, n):
    """Case D6: the context ends a text with "length", and what there is stays."""
    ids = model.tokenizer.encode(PROMPT)
    text = model.generate(ids, max_tokens=60, ignore_eos=True).tokens
    fast = model.generate(ids, max_tokens=n, ignore_eos=True, speculative=perfect(model, ids + text))
    assert fast.tokens == text[:n] and fast.finish_reason == "length"
    long = list(np.arange(500) % 200)
    plain = model.generate(long, max_tokens=n, ignore_eos=True)
    fast = model.generate(long, max_tokens=n, ignore_eos=True, speculative=perfect(model, long + plain.tokens))
    assert fields(fast) == fields(plain)


def test_penalties_reach_every_token(model):
    """Case H6: frequency -2 and +2 differ from each other, and each is what plain decoding gives."""
    texts = []
    for penalty in (-2.0, 2.0):
        plain = model.generate("Repeat hello: hello", max_tokens=60, ignore_eos=True, frequency_penalty=penalty)
        ids = model.tokenizer.encode_prompt("Repeat hello: hello")
        for speculative in (True, perfect(model, ids + plain.tokens)):
            fast = model.generate(
                "Repeat hello: hello",
                max_tokens=60,
                ignore_eos=True,
                frequency_penalty=penalty,
                speculative=speculative,
            )
            assert fields(fast) == fields(plain)
        texts.append(plain.text)
    assert texts[0] != texts[1]


# --- streaming --------------------------------------------------------------------------------------------------------


def test_closing_early_keeps_what_was_shown(model):
    ids = model.tokenizer.encode(PROMPT)
    text = model.generate(ids, max_tokens=60, ignore_eos=True).tokens
    stream = model.generate(ids, max_tokens=60, ignore_eos=True, stream=True, speculative=perfect(model, ids + text))
    shown = next(stream) + next(stream)
    stream.close()
    assert stream.result.text == shown and stream.result.tokens == text[: len(stream.result.tokens)]
    assert len(stream.result.tokens) > 2


def test_an_error_comes_after_the_text_before_it(model):
    ids = model.tokenizer.encode(PROMPT)

    class Masks(Logged):
        def process(self, logits, history):
            if len(self.log) == 9:
                logits[:] = -np.inf

    pieces = {}
    text = model.generate(ids, max_tokens=60, ignore_eos=True).tokens
    for name, decoder in (("plain", Decoder(model)), ("fast", perfect(model, ids + text))):
        stream = GenerationStream(model, ids, 60, Sampler(SamplerOptions(), Masks()), (), frozenset(), None, decoder)
        pieces[name] = []
        with pytest.raises(AllTokensMasked):
            for piece in stream:
                pieces[name].append(piece)
        assert stream.result.tokens == text[:9]
    assert "".join(pieces["plain"]) == "".join(pieces["fast"]) != ""


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [1, "yes", None, object(), SpeculationIndex])
def test_what_speculative_may_be(model, bad):
    with pytest.raises(InvalidOption, match="speculative must be"):
        model.generate("a", speculative=bad)


def test_references_need_speculation(model):
    for speculative in (False, Replay([])):
        with pytest.raises(InvalidOption, match="references"):
            model.generate("a", references=["b"], speculative=speculative)
    with pytest.raises(TokenOutOfRange):
        model.generate("a", references=[[-4]], speculative=True)
    for bad in (5, None, [5], [None]):
        with pytest.raises(InvalidOption, match="reference"):
            model.generate("a", references=bad, speculative=True)


def test_a_source_or_a_decoder_of_ones_own(model):
    ids = model.tokenizer.encode(PROMPT)
    text = ids + model.generate(ids, max_tokens=30, ignore_eos=True).tokens
    source = Replay(text)
    result = model.generate(ids, max_tokens=30, ignore_eos=True, speculative=source)
    assert result.tokens == text[len(ids) :] and source.suggested > 0 and result.speculation.accepted > 0
    decoder = perfect(model, text)
    first = model.generate(ids, max_tokens=10, ignore_eos=True, speculative=decoder).speculation
    assert first.committed == 10 and decoder.stats.committed == 10
    decoder.source.seen.clear()
    assert model.generate(ids, max_tokens=10, ignore_eos=True, speculative=decoder).speculation.committed == 20
    assert first.committed == 10  # a result keeps its own counts


def test_references_draft(model):
    """A reference that holds what will be said is quoted."""
    ids = model.tokenizer.encode("Zebra crossing")
    text = model.generate(ids, max_tokens=60, ignore_eos=True, repeat_penalty=1.5).tokens
    result = model.generate(
        ids, max_tokens=60, ignore_eos=True, repeat_penalty=1.5, speculative=True, references=[ids + text]
    )
    assert result.tokens == text and result.speculation.accepted >= 40


# --- command line -----------------------------------------------------------------------------------------------------


def generate(capsys, *arguments):
    status = main(["generate", PROMPT, "-n", "40", "--ignore-eos", "--model", str(PATH), "--threads", "1", *arguments])
    return (status, *capsys.readouterr())


def test_command_line(capsys, tmp_path):
    document = tmp_path / "doc.txt"
    document.write_text("the cat sät", encoding="utf-8")
    plain = generate(capsys)
    status, out, err = generate(capsys, "--spec", "--spec-ref", str(document), "--spec-stats")
    assert (status, out) == (0, plain[1]) and plain[0] == 0
    lines = err.splitlines()
    assert lines[0].startswith("spec: steps=") and "committed=40" in lines[0]
    assert lines[1].startswith("spec sources: conversation ") and " ref0 " in lines[1] and " recycling " in lines[1]
    status, out, err = generate(capsys, "--spec", "--json")
    told = json.loads(out)
    assert told["text"] + "\n" == plain[1] and told["speculation"]["committed"] == 40
    assert set(told["speculation"]["sources"]) == {"conversation", "recycling"} and err == ""
    assert "speculation" not in json.loads(generate(capsys, "--json")[1])


def test_command_line_errors(capsys, tmp_path):
    bad = tmp_path / "latin.txt"
    bad.write_bytes(b"caf\xe9")
    for arguments, what in (
        (["--spec-stats"], "--spec-stats needs --spec"),
        (["--spec-ref", str(bad)], "--spec-ref needs --spec"),
        (["--spec", "--spec-ref", str(bad)], "0xE9 at 3"),
        (["--spec", "--spec-ref", str(tmp_path / "none.txt")], "none.txt"),
    ):
        status, out, err = generate(capsys, *arguments)
        assert (status, out) == (2, "") and what in err
