"""Side by side: what the table says is what the engines did, and a bad function harms nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import course.parity as parity_module
import fucina
from course.parity import NATIVE, REFERENCE, Parity
from course.parity_report import HEADER, blame, origin
from fucina.errors import InvalidOption
from fucina.gguf import GgmlType, GgufFile, dequantize, write_gguf
from fucina.ops import naive
from tests.models import TINY

OPS = {"rms_norm": naive.rms_norm, "rope": naive.rotate, "attention": naive.attention, "swiglu": naive.swiglu}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama with its matrices in Q4_1."""
    path = tmp_path_factory.mktemp("parity") / "tiny.gguf"
    file = GgufFile(TINY / "llama.gguf")
    entries = {key: file.metadata.entry(key) for key in file.metadata}
    write_gguf(
        path,
        entries,
        {
            t.name: (t.numbers(), GgmlType.Q4_1 if len(t.shape) == 2 and t.shape[1] % 32 == 0 else GgmlType.F32)
            for t in file.tensors.values()
        },
    )
    return path


@pytest.fixture(scope="module")
def parity(quantised: Path) -> Parity:
    found = Parity(fucina.load(quantised, threads=2), prompt="ab", tokens=6, peer=False)
    yield found
    found.close()
    found.native.close()


@pytest.mark.parametrize("op", OPS)
def test_right_functions_stand_beside_ours(parity: Parity, op: str) -> None:
    told = parity.op(op, OPS[op])
    assert [row.who for row in told.rows] == [REFERENCE, "yours, in NumPy", NATIVE, "yours, in the compiled engine"]
    reference, mine, native, mine_native = told.rows
    assert (reference.agree, reference.rms) == (6, 0.0)
    assert mine.rms == 0.0 and mine.agree == mine.positions == 6
    assert mine_native.rms < 2 * native.rms + 1e-3
    assert all(row.rate > 0 for row in told.rows)
    assert told.notes == []


def test_the_error_is_that_of_the_logits(parity: Parity) -> None:
    told = parity.op("swiglu", lambda gate, up: naive.swiglu(gate, up) + np.float32(0.01))
    ids = [*parity.ids, *parity._said[:-1]]
    with parity.naive.override("swiglu", lambda gate, up: naive.swiglu(gate, up) + np.float32(0.01)):
        mine = parity.naive.logits(ids)
    difference = mine - parity.naive.logits(ids)
    assert told.row("yours, in NumPy").largest == pytest.approx(float(np.abs(difference).max()), rel=1e-3)
    assert told.row("yours, in NumPy").rms == pytest.approx(float(np.sqrt(np.mean(difference**2))), rel=1e-3)


def test_another_text_is_counted_and_told(parity: Parity) -> None:
    told = parity.op("linear", lambda matrix, x: -(matrix @ x))
    row = told.row("yours, in NumPy")
    assert row.agree < row.positions and row.different
    assert any("where it first differs" in line for line in told.lines())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x, weight, eps: x[:-1], r"<lambda>() in place of rms_norm returned float32 ["),
        (lambda x, weight, eps: x * np.nan, "values that are not finite"),
        (lambda x, weight, eps: undefined_name, "raises NameError"),  # noqa: F821
        (lambda x, weight: x, "raises TypeError"),
        (lambda x, weight, eps: sys.exit(), "raises SystemExit"),
        (lambda x, weight, eps: "text", "in place of rms_norm returned"),
    ],
)
def test_a_bad_function_is_named_and_the_engine_unharmed(parity: Parity, wrong, said: str) -> None:
    before = parity.native.logits(parity.ids).tobytes()
    told = parity.op("rms_norm", wrong)
    text = "\n".join(told.lines())
    assert said in text and "<lambda>()" in text
    assert "The engine itself is unharmed" in text
    assert text.count("did not run") == 2 and "Traceback" not in text
    assert parity.native.logits(parity.ids).tobytes() == before
    assert parity.op("rms_norm", naive.rms_norm).notes == []


def test_a_name_that_is_no_op_is_no_fault_of_the_function(parity: Parity) -> None:
    with pytest.raises(InvalidOption, match="op must be one of 'rms_norm'"):
        parity.op("rmsnorm", naive.rms_norm)


def test_decoders(parity: Parity) -> None:
    told = parity.decoder("Q4_1", lambda raw: dequantize(raw, "Q4_1"))
    assert told.row("yours, in NumPy").rms == 0.0
    assert "largest difference from ours 0." in told.notes[0]
    told = parity.decoder("Q4_1", lambda raw: dequantize(raw, "Q4_1") * 1.5)
    assert told.row("yours, in NumPy").rms > 0.0
    told = parity.decoder("Q4_1", lambda raw: dequantize(raw, "Q4_1")[:, :-1])
    assert "<lambda>() returned shape" in told.notes[0] and "unharmed" in told.notes[1]
    told = parity.decoder("Q4_1", lambda raw: raw + None)
    assert "<lambda>() raises TypeError" in told.notes[0] and told.rows == []
    with pytest.raises(ValueError, match=r"holds no Q6_K; it holds .*Q4_1"):
        parity.decoder("Q6_K", dequantize)


def test_a_decoder_that_would_take_minutes_is_not_run(parity: Parity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_module, "PATIENCE", 0.0)
    told = parity.decoder("Q4_1", lambda raw: dequantize(raw, "Q4_1"))
    assert told.rows == [] and "without a Python loop" in told.notes[0]


def test_a_forward_of_ones_own(parity: Parity) -> None:
    def open_mine():
        seen = []

        def rows(tokens):
            seen.extend(tokens)
            return parity.naive.logits(seen)[-len(tokens) :]

        return rows

    told = parity.stream(open_mine)
    assert told.rows[1].agree == 6 and told.rows[1].rms < 1e-3
    told = parity.stream(lambda: lambda tokens: np.zeros((1, 3), np.float32))
    assert "expected float32" in told.notes[0]


def test_shown_as_html_and_as_plain_text(parity: Parity) -> None:
    told = parity.op("swiglu", naive.swiglu)
    bundle = told._repr_mimebundle_()
    text = bundle["text/plain"]
    assert text.isascii() and all(word in text for word in HEADER)
    for row in told.rows:
        for cell in row.cells():
            assert cell in text and cell in bundle["text/html"]


def test_without_llama_cpp_a_note_says_so(quantised: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(python: str | None = None) -> str:
        raise parity_module.PeerNotFound("no")

    monkeypatch.setattr(parity_module, "find_peer", missing)
    model = fucina.load(quantised, threads=1)
    told = Parity(model, prompt="ab", tokens=2).op("swiglu", naive.swiglu)
    assert told.notes == ["llama.cpp is not installed here, so it has no row."]
    model.close()


def test_whose_code_it_is() -> None:
    assert origin(naive.swiglu).startswith("swiglu() of fucina/ops/functions.py (ours")
    assert "<lambda>() of tests/unit/test_course_parity.py" in origin(lambda: 0)
    assert origin(max) == "max(), built in"

    nothing: list[int] = []

    def fails():
        return nothing[3]

    try:
        fails()
    except IndexError as error:
        assert blame(fails, error) == "fails() raises IndexError: list index out of range, at `return nothing[3]`"


def test_needs_two_tokens() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        Parity("smollm2", tokens=1)
