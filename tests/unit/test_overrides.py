"""Functions in place of ops: what they are given, how their results are checked, and how they are taken out again."""

import numpy as np
import pytest

from fucina.cache import State
from fucina.errors import ModelError
from fucina.gguf import GgufFile
from fucina.models import read_family
from fucina.ops import functions
from fucina.ops.naive import Naive
from fucina.ops.override import OVERRIDES
from fucina.ops.rows import RowBatch
from tests.models import TINY

TOKENS = np.arange(5, 12)
OWN = {
    "rms_norm": functions.rms_norm,
    "linear": np.dot,
    "rope": functions.rotate,
    "attention": functions.attention,
    "swiglu": functions.swiglu,
    "geglu": functions.geglu,
}


def logits(interpreter, family, out_rows=None):
    state, rows = State(family.parts, 16, "f32"), np.arange(len(TOKENS))
    state.begin(len(TOKENS))
    wanted = rows if out_rows is None else np.asarray(out_rows, np.int64)
    return interpreter.run(RowBatch(TOKENS, rows, 0 * rows, [state], wanted))


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def family(request):
    return read_family(GgufFile(TINY / f"{request.param}.gguf"))


def test_every_op_of_the_table_is_here():
    assert set(OWN) == set(OVERRIDES)


@pytest.mark.parametrize("op", OWN)
def test_the_own_function_gives_the_same_logits(family, op):
    naive, calls = Naive(family), []

    def counted(*arguments):
        calls.append(arguments)
        return OWN[op](*arguments)

    expected = logits(naive, family)
    restore = naive.override(op, counted)
    np.testing.assert_allclose(logits(naive, family), expected, atol=1e-5)
    used = op != {"llama": "geglu", "gemma3": "swiglu"}[family.architecture]
    assert bool(calls) == used
    logits(naive, family, out_rows=[])  # a pass that wants no logits
    restore()
    calls.clear()
    assert logits(naive, family).tobytes() == expected.tobytes() and not calls


def test_a_wrong_result_is_named(family):
    naive = Naive(family)
    for wrong, message in [
        (lambda x, w, eps: x[:-1], "returned float32"),
        (lambda x, w, eps: x * np.nan, "not finite"),
        (lambda x, w, eps: None, "returned object"),
    ]:
        restore = naive.override("rms_norm", wrong)
        with pytest.raises(ModelError, match=f"in place of rms_norm {message}|{message}"):
            logits(naive, family)
        restore()


def test_each_restore_takes_out_its_own_function(family):
    """Whatever the order: the newest that is still there is in force."""
    naive, said = Naive(family), []

    def saying(name):
        def norm(x, weight, eps):
            said.append(name)
            return functions.rms_norm(x, weight, eps)

        return naive.override("rms_norm", norm)

    def in_force():
        said.clear()
        logits(naive, family)
        return set(said)

    first, second, third = saying("first"), saying("second"), saying("third")
    assert in_force() == {"third"}
    second()
    assert in_force() == {"third"}
    third()
    assert in_force() == {"first"}
    third()  # once more: nothing happens
    assert in_force() == {"first"}
    first()
    assert in_force() == set()
