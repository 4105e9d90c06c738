"""`generate(speculative=True)` and the command line: what plain decoding gives, with everything that may end a text."""

import json

import numpy as np
import pytest

import fucina
from fucina.cli import main
from fucina.engine import Scheduler, Stream
from fucina.engine.text import StreamText
from fucina.errors import AllTokensMasked, InvalidOption, TokenOutOfRange
from fucina.sampling import Sampler, SamplerOptions
from fucina.speculative import Options, SourceDrafter, SpeculationIndex, Stats
from tests.models import TINY
from tests.spec_toys import Logged, Replay, rows_of

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
    return SourceDrafter(model, Replay(text), options)


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
    drafter = SourceDrafter(model, SpeculationIndex(256), Options(min_speedup=0))
    result = model.generate([1, 2, 3] * 30, max_tokens=200, ignore_eos=True, speculative=drafter, repeat_penalty=0.05)
    plain = model.generate([1, 2, 3] * 30, max_tokens=200, ignore_eos=True, repeat_penalty=0.05)
    assert result.tokens == plain.tokens
    assert result.speculation.accepted > 100 and result.speculation.steps < 100


# --- ends -------------------------------------------------------------------------------------------------------------


def run(model, ids, drafter, sampler, stops=(), ends=frozenset(), max_tokens=40, state=None):
    """Run one stream: returns (text, tokens, how it ended, stop text), and the stream."""
    state = model.new_cache(len(ids) + max_tokens) if state is None else state
    text = StreamText(model.tokenizer, stops)
    stream = Stream(
        state, list(ids), sampler, drafter, stop_tokens=ends, max_tokens=max_tokens, on_token=text.take
    )  # fmt: skip
    scheduler = Scheduler(model)
    scheduler.add(stream)
    pieces = [text.unread() for _ in scheduler.run(stream)]
    if stream.error is not None:
        raise stream.error
    text.finish()
    assert "".join([*pieces, text.unread()]) == text.text
    return (text.text, stream.tokens[stream.prompt_end :], stream.finish, text.fired), stream


def two_turns(model, make_drafter, stops=(), ends=frozenset(), seed=7):
    """A turn that is ended from inside, then another on the same state and sampler: all that must be equal."""
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=seed, repeat_penalty=1.2), Logged())
    ids = model.tokenizer.encode(PROMPT)
    drafter = make_drafter()
    first, stream = run(model, ids, drafter, sampler, stops, ends, state=model.new_cache(200))
    after = sampler.rng.position, list(sampler.processor.log), stream.state.len
    rows = rows_of(stream.state)
    tokens = [*stream.tokens, 17, 18]
    second, _ = run(model, tokens, drafter, sampler, max_tokens=10, state=stream.state)
    return first, after, rows, second, sampler.rng.position


@pytest.mark.parametrize("drafts", [1, 3, 16])
def test_every_token_as_the_end_of_text(model, drafts):
    """The turn ends at every place of a draft, with each length of drafts."""
    ids = model.tokenizer.encode(PROMPT)
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=7, repeat_penalty=1.2), Logged())
    text = run(model, ids, None, sampler)[0][1]
    for token in sorted(set(text)):
        plain = two_turns(model, lambda: None, ends=frozenset({token}))
        assert plain[0][2] == "stop_token" and token not in plain[0][1]
        fast = two_turns(model, lambda: perfect(model, ids + text, max_draft=drafts), ends=frozenset({token}))
        assert fast == plain


@pytest.mark.parametrize("drafts", [1, 3, 16])
def test_stop_texts_inside_an_accepted_draft(model, drafts):
    """The match completes anywhere in a draft, across tokens too; all else, the next turn too, is plain decoding's."""
    ids = model.tokenizer.encode(PROMPT)
    sampler = Sampler(SamplerOptions(temperature=0.9, seed=7, repeat_penalty=1.2), Logged())
    text, tokens, *_ = run(model, ids, None, sampler)[0]
    stops = {text[i : i + n] for i in range(1, len(text) - 6, 3) for n in (1, 2, 5)}
    for stop in sorted(stops):
        plain = two_turns(model, lambda: None, stops=(stop, "never"))
        assert plain[0][3] == stop and stop not in plain[0][0]
        assert two_turns(model, lambda: perfect(model, ids + tokens, max_draft=drafts), stops=(stop, "never")) == plain


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 33])
def test_max_tokens_and_context(model, n):
    """The context ends a text with "length", and what there is stays."""
    ids = model.tokenizer.encode(PROMPT)
    text = model.generate(ids, max_tokens=60, ignore_eos=True).tokens
    fast = model.generate(ids, max_tokens=n, ignore_eos=True, speculative=perfect(model, ids + text))
    assert fast.tokens == text[:n] and fast.finish_reason == "length"
    long = list(np.arange(500) % 200)
    plain = model.generate(long, max_tokens=n, ignore_eos=True)
    fast = model.generate(long, max_tokens=n, ignore_eos=True, speculative=perfect(model, long + plain.tokens))
    assert fields(fast) == fields(plain)


def test_penalties_reach_every_token(model):
    """Frequency -2 and +2 differ from each other, and each is what plain decoding gives."""
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
    assert len(stream.result.tokens) > 2 and stream.result.finish_reason == "cancelled"


def test_an_error_comes_after_the_text_before_it(model):
    ids = model.tokenizer.encode(PROMPT)

    class Masks(Logged):
        def process(self, logits, history):
            if len(self.log) == 10:  # "reset" and nine tokens
                logits[:] = -np.inf

    pieces = {}
    text = model.generate(ids, max_tokens=60, ignore_eos=True).tokens
    for name, drafter in (("plain", False), ("fast", perfect(model, ids + text))):
        stream = model.generate(
            ids, max_tokens=60, ignore_eos=True, processor=Masks(), speculative=drafter, stream=True
        )  # fmt: skip
        pieces[name] = []
        with pytest.raises(AllTokensMasked):
            for piece in stream:
                pieces[name].append(piece)
        assert stream.result.tokens == text[:9] and stream.result.finish_reason == "error"
        assert stream.result.text == "".join(pieces[name])
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


def test_a_source_or_a_drafter_of_ones_own(model):
    ids = model.tokenizer.encode(PROMPT)
    text = ids + model.generate(ids, max_tokens=30, ignore_eos=True).tokens
    source = Replay(text)
    result = model.generate(ids, max_tokens=30, ignore_eos=True, speculative=source)
    assert result.tokens == text[len(ids) :] and source.suggested > 0 and result.speculation.accepted > 0
    drafter = perfect(model, text)
    first = model.generate(ids, max_tokens=10, ignore_eos=True, speculative=drafter).speculation
    assert first.committed == 10 and drafter.stats.committed == 10
    drafter.source.seen.clear()
    assert model.generate(ids, max_tokens=10, ignore_eos=True, speculative=drafter).speculation.committed == 20
    assert first.committed == 10  # a result keeps its own counts


def test_references_draft(model):
    """A reference that holds the reply is quoted."""
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
