"""What is seen of a stream from outside: text that is closed early, slow readers, wrong prompts, warm starts."""

import array
import gc
import signal
import threading
import time

import numpy as np
import pytest

import fucina
from fucina.chat import Conversation, WarmState, send_batch, send_batch_tokens_reuse
from fucina.engine.text import StreamText
from fucina.errors import (
    ContextFull,
    EmptyInput,
    FucinaError,
    InvalidOption,
    KvCacheShapeMismatch,
    TokenOutOfRange,
)
from fucina.gguf import Metadata
from fucina.tokenizers import load_tokenizer
from tests.chat_model import write_chat_model
from tests.conversations import FailAt, Script, check_state
from tests.models import TINY
from tests.toy_families import toy_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=128)
    yield model
    model.close()


def letters(model, text):
    return model.tokenizer.encode(text)


# --- generate closed early, or failing --------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [0, 1, 2])
@pytest.mark.parametrize("how", ["close", "cancel", "drop"])
def test_text_that_is_held_back_is_not_lost(model, pieces, how):
    script = Script(letters(model, "it was so"))
    stream = model.generate("x", stream=True, stop="was here", processor=script, ignore_eos=True, max_tokens=6)
    shown = [next(stream) for _ in range(pieces)]
    if how == "close":
        stream.close()
    elif how == "cancel":
        stream.cancel()
        shown += stream
        assert "".join(shown) == stream.result.text
    result = stream.result
    assert (
        result.text == model.tokenizer.decode(result.tokens) and result.text.startswith("".join(shown))
    ) or how == "drop"
    assert result.finish_reason == "cancelled" and len(result.tokens) == script.commits


def test_an_error_keeps_text_that_is_held_back(model):
    stream = model.generate("x", stream=True, stop="abz", processor=FailAt(3), ignore_eos=True, max_tokens=6)
    shown = []
    with pytest.raises(RuntimeError, match="no"):
        for piece in stream:
            shown.append(piece)
    result = stream.result
    assert result.finish_reason == "error" and len(result.tokens) == 2
    assert result.text == model.tokenizer.decode(result.tokens) == "".join(shown)


def test_an_empty_stop_text_stops_nothing(model):
    script = Script(letters(model, "abc"))
    assert model.generate("x", stop=["", "c"], processor=script, max_tokens=9).text == "ab"
    assert model.generate("x", stop="", processor=script, max_tokens=9).text == "abc"


def test_prompts_that_fill_the_context(model):
    full = model.generate([65] * 128, max_tokens=9, ignore_eos=True)
    assert (full.finish_reason, len(full.tokens)) == ("length", 1)
    with pytest.raises(ContextFull, match="129 tokens"):
        model.generate([65] * 129)
    c = Conversation(model, template="chatml")
    c.send_tokens_reuse([65] * 20)
    before = list(c.history), list(c.messages)
    for n in (128, 129):
        with pytest.raises(ContextFull):
            c.send_tokens_reuse([65] * n)
        assert (c.history, c.messages) == before
    check_state(c)
    assert len(c.send_tokens_reuse([65] * 127).tokens) == 1


WRONG = [
    (bytearray(b"The"), InvalidOption),
    (memoryview(b"The"), InvalidOption),
    ([True, False], TokenOutOfRange),
    (np.array([True]), TokenOutOfRange),
    (np.array([1.0]), TokenOutOfRange),
    (True, InvalidOption),
    (7, InvalidOption),
    (None, InvalidOption),
    ({1, 2}, InvalidOption),
    ({1: 2}, InvalidOption),
    (["a"], TokenOutOfRange),
    ([1 << 70], TokenOutOfRange),
    (np.zeros((2, 2), int), InvalidOption),
    (np.array(3), InvalidOption),
    ([], EmptyInput),
    (b"", EmptyInput),
]


@pytest.mark.parametrize(("prompt", "error"), WRONG, ids=lambda value: repr(value).partition(" at 0x")[0][:25])
def test_prompts_that_are_none(model, prompt, error):
    with pytest.raises(error):
        model.generate(prompt)
    if error is not EmptyInput:
        with pytest.raises(FucinaError):
            model.generate("x", speculative=True, references=[prompt])
        with pytest.raises(FucinaError):
            Conversation(model, template="chatml").send_tokens_reuse(prompt)


def test_arrays_of_ids_are_prompts(model):
    want = model.generate([65, 66], max_tokens=3).tokens
    for ids in (array.array("i", [65, 66]), np.array([65, 66], np.uint8), (65, 66), range(65, 67)):
        assert model.generate(ids, max_tokens=3).tokens == want


def test_a_continuation_keeps_its_first_space():
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁Rome", "▁was"]
    tokenizer = load_tokenizer(
        Metadata.from_dict(
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
                "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1, 1], np.int32),
                "tokenizer.ggml.add_space_prefix": True,
            }
        )
    )
    rome = tokenizer.token_id(" Rome")
    assert tokenizer.decode([rome]) == "Rome"  # at the beginning of a text
    text = StreamText(tokenizer)
    assert not any(text.take(token) for token in (rome, rome)) and text.text == " Rome Rome"
    stopped = StreamText(tokenizer, [" Rome"])
    assert stopped.take(rome) and (stopped.text, stopped.fired) == ("", " Rome")


# --- slow readers -----------------------------------------------------------------------------------------------------


def three(model, **options):
    return [Conversation(model, template="chatml", max_tokens=6, **options) for _ in range(3)]


def writers_left():
    gc.collect()
    deadline = time.monotonic() + 5
    while (left := [t for t in threading.enumerate() if t.name == "fucina-writer"]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def test_a_blocked_writer_holds_up_nobody(model):
    cs, gate, got = three(model), threading.Event(), [[], [], []]
    prompts = [[65 + i] * 5 for i in range(3)]
    want = send_batch_tokens_reuse(three(model), prompts)

    def blocked(piece):
        assert gate.wait(10)
        got[0].append(piece)

    seen = []

    def watch():
        while not all(len(c.history) == 5 + len(r.tokens) and c._story.turn is None for c, r in zip(cs[1:], want[1:])):
            time.sleep(0.002)
        seen.append((cs[0]._story.turn is not None, list(got[0])))
        gate.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    replies = send_batch_tokens_reuse(cs, prompts, [blocked, got[1].append, got[2].append])
    watcher.join()
    assert seen == [(True, [])]  # the others were complete while the first one waited
    assert [r.tokens for r in replies] == [r.tokens for r in want]
    assert ["".join(pieces) for pieces in got] == [r.text for r in want]
    assert not writers_left()


def test_a_failing_writer_ends_its_stream(model):
    cs = three(model)

    def broken(piece):
        raise OSError("gone")

    replies = send_batch_tokens_reuse(cs, [[65], [66], [67]], [None, broken, None])
    assert [r.finish_reason for r in replies] == ["length", "error", "length"]
    assert str(replies[1].error) == "gone"
    with pytest.raises(OSError, match="gone"):
        send_batch(cs, ["a", "b", "c"], [None, broken, lambda piece: None])
    for c in cs:
        check_state(c, complete=False)
        assert c.send("d").finish_reason == "length"
    assert not writers_left()


def test_ctrl_c_does_not_wait_for_a_writer(model):
    cs, gate = three(model), threading.Event()
    started = []

    def blocked(piece):
        started.append(time.monotonic())
        gate.wait(10)
        raise OSError("too late")

    def press():
        while not all(c._story.turn is None or c._story.turn.stream.finish for c in cs) or not started:
            time.sleep(0.002)
        time.sleep(0.05)  # the batch waits for the writer now
        started.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        send_batch(cs, ["a", "b", "c"], [blocked, None, None])
    assert time.monotonic() - started[-1] < 2
    presser.join()
    for c in cs:
        assert c._story.turn is None and len(c.messages) == 2
        check_state(c)
    later = cs[0].send("more", stream=True)
    next(later)
    gate.set()  # the writer of the reply before fails now: that is not this reply's business
    assert not writers_left()
    list(later)
    assert later.result.finish_reason == "length"


# --- warm starts ------------------------------------------------------------------------------------------------------


def test_a_cache_of_another_model_is_refused_at_once(model):
    others = [
        fucina.load(TINY / "llama.gguf", context=128),  # other weights
        fucina.load(model.path, context=128, cache_dtype="f16" if model.cache_dtype == "f32" else "f32"),
        toy_model("ring"),
    ]
    for other in others:
        state = other.new_cache(64)
        other.forward_rows([(state, [1, 2, 3], "none")])
        with pytest.raises(KvCacheShapeMismatch):
            Conversation.init_warm(model, WarmState(state, [1, 2, 3]))
        other.close()
    for wrong in (None, model.new_cache(8), (model.new_cache(8), [1])):
        with pytest.raises(InvalidOption, match="WarmState"):
            Conversation.init_warm(model, wrong)
    for wrong in (None, "state", [1]):
        with pytest.raises(KvCacheShapeMismatch):
            Conversation.init_warm(model, WarmState(wrong, [1]))
