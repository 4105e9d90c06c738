"""The native interpreter as a whole: overrides, interruptions, processes, threads, memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina.errors import EngineClosed, ModelError
from fucina.ops import functions

from ..models import TINY
from .tiny_models import FAMILIES, native, new_cache, run

ROOT = Path(__file__).parents[2]
FUNCTIONS = {
    "rms_norm": functions.rms_norm,
    "linear": np.dot,
    "rope": functions.rotate,
    "attention": functions.attention,
    "swiglu": functions.swiglu,
    "geglu": functions.geglu,
}


# --- overrides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(FAMILIES))
def test_functions_in_place_of_ops(family):
    """Each op replaced by its NumPy form gives nearly the same logits, and the old bits come back afterwards."""
    engine, tiny = native(family, 2), FAMILIES[family]()
    ids = np.random.default_rng(0).integers(0, tiny.config.vocab_size, 80).tolist()

    def logits() -> np.ndarray:
        kv = new_cache(tiny)
        return np.concatenate([run(engine, [(kv, ids[:70])]), run(engine, [(kv, ids[70:])])])

    plain = logits()
    for op, function in FUNCTIONS.items():
        calls = []
        restore = engine.override(op, lambda *a, f=function, c=calls: (c.append(1), f(*a))[1])
        used = any(r.host for r in engine._current.schedule.records)
        mine = logits()
        assert used == bool(calls)
        assert np.abs(mine - plain).max() < 0.1 * np.abs(plain).max(), op
        if op == "linear":  # one that does not round its input gives other numbers: it is really used
            assert mine.tobytes() != plain.tobytes()
        restore()
        assert logits().tobytes() == plain.tobytes()
    engine.close()


def test_overrides_are_undone_in_any_order():
    engine, tiny = native("llama", 2), FAMILIES["llama"]()
    kv = new_cache(tiny)

    def hosts() -> set[str]:
        run(engine, [(kv, [1, 2])])
        kv.truncate(0)
        return {r.kernel for r in engine._current.schedule.records if r.host}

    undo_norm = engine.override("rms_norm", functions.rms_norm)
    undo_gate = engine.override("swiglu", functions.swiglu)
    assert hosts() == {"rms_norm (Python)", "swiglu (Python)"}
    undo_norm()
    assert hosts() == {"swiglu (Python)"}
    undo_gate()
    assert hosts() == set()
    engine.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, w, eps: x[:-1], r"in place of rms_norm returned float32 \[255\], expected float32 \[256\]"),
        (lambda x, w, eps: x * np.nan, "values that are not finite"),
        (lambda x, w, eps: 1 / 0, "division by zero"),
    ],
)
def test_a_wrong_function_leaves_everything_usable(wrong, message):
    engine, tiny = native("llama", 2), FAMILIES["llama"]()
    kv = new_cache(tiny)
    run(engine, [(kv, list(range(60)))])
    want = run(engine, [(kv, [5, 6, 7])])
    kv.truncate(60)
    restore = engine.override("rms_norm", wrong)
    with pytest.raises((ModelError, ZeroDivisionError), match=message):
        run(engine, [(kv, [5, 6, 7])])
    restore()
    assert kv.len == 60
    assert run(engine, [(kv, [5, 6, 7])]).tobytes() == want.tobytes()
    engine.close()


def test_inputs_of_a_function_cannot_be_changed():
    engine, tiny = native("llama", 1), FAMILIES["llama"]()

    def spoil(gate, up):
        gate[...] = 0
        return gate

    engine.override("swiglu", spoil)
    with pytest.raises(ValueError, match="read-only"):
        run(engine, [(new_cache(tiny), [1])])
    engine.close()


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals on this system")
def test_signals_in_the_middle_of_passes():
    """Ctrl-C at any moment, many times: caches and model stay usable, with the same bits."""
    engine, tiny = native("llama", 3), FAMILIES["llama"]()
    ids = np.random.default_rng(3).integers(0, tiny.config.vocab_size, 40).tolist()
    kv = new_cache(tiny)
    want = run(engine, [(kv, ids)])
    hits = 0

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(60):
            kv.truncate(0)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0004 + 0.0002 * (i % 20))
                while True:
                    kv.truncate(0)
                    run(engine, [(kv, ids)])
            except KeyboardInterrupt:
                hits += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits == 60
    kv.truncate(0)
    assert run(engine, [(kv, ids)]).tobytes() == want.tobytes()
    engine.close()


# --- threads and processes -------------------------------------------------------------------------------------------


def test_two_threads_generate_on_one_model():
    model = fucina.load(TINY / "llama.gguf", threads=2)
    want = model.generate([3, 4, 5], max_tokens=12).tokens
    got: list[list[int]] = []

    def work():
        for _ in range(5):
            got.append(model.generate([3, 4, 5], max_tokens=12).tokens)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 15
    model.close()
    with pytest.raises(EngineClosed):
        model.forward([1], model.new_cache())


def _python(code: str, **env: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **env},
        timeout=200, capture_output=True, text=True,
    )  # fmt: skip


def test_threading_layer_of_numba_does_not_matter():
    """Two Python threads at once under the layer that aborts the process on concurrent parallel kernels."""
    done = _python(
        "import fucina, threading\n"
        f"m = fucina.load({str(TINY / 'llama.gguf')!r}, threads=2)\n"
        "ts = [threading.Thread(target=m.generate, args=([3, 4],), kwargs=dict(max_tokens=8)) for _ in range(4)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n"
        "print(m.generate([3, 4], max_tokens=8).finish_reason)",
        NUMBA_THREADING_LAYER="workqueue",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["length"] or done.stdout.split() == ["stop"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_a_pass():
    """The child's model starts a team of its own; the parent's goes on."""
    model = fucina.load(TINY / "llama.gguf", threads=2)
    want = model.logits([1, 2, 3])
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            same = model.logits([1, 2, 3]).tobytes() == want.tobytes()
        except BaseException:
            same = False
        os._exit(0 if same else 1)
    assert model.logits([1, 2, 3]).tobytes() == want.tobytes()
    assert os.waitpid(child, 0)[1] == 0
    model.close()


def test_a_dropped_model_frees_its_weights_and_threads():
    before = threading.active_count()
    model = fucina.load(TINY / "llama.gguf", threads=3)
    model.logits([1, 2, 3])
    assert threading.active_count() == before + 2
    gone = weakref.ref(model._interpreter._store)
    del model
    gc.collect()
    assert gone() is None
    for t in [t for t in threading.enumerate() if t.name.startswith("fucina-")]:
        t.join(10)
    assert threading.active_count() == before
