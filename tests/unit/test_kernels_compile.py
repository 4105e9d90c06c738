"""Choosing an instruction set, naming kernels, keeping them on disk."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fucina.errors import IsaError, UnknownKernel
from fucina.kernels import cache_folder, catalogue, isa, registry
from fucina.kernels import compile as compiling
from fucina.kernels import record as R
from fucina.kernels.disassembly import assembly
from fucina.kernels.formats import NAMES

ROOT = Path(__file__).parents[2]
CHILD = """
import numpy as np
from fucina.kernels import cache_folder, compile as c
from fucina.kernels.invoke import invoke
told = []
c.on_compile(lambda name, seconds: told.append(name))
x, out = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
words = {"x": x.ctypes.data, "x_step": 8, "y": x.ctypes.data, "y_step": 8, "out": out.ctypes.data, "cols": 8}
invoke("add", words, units=(0, 1), unit=8, job={0: 1})
assert (out == 2).all()
print(len(told), cache_folder.folder())
"""


def child(code=CHILD, **env):
    """A fresh Python; returns (exit code, stdout, stderr)."""
    base = {k: v for k, v in os.environ.items() if k not in ("FUCINA_CACHE_DIR", "NUMBA_CACHE_DIR", "FUCINA_ISA")}
    base.update({k: str(v) for k, v in env.items()}, PYTHONPATH=str(ROOT))
    p = subprocess.run([sys.executable, "-c", code], env=base, capture_output=True, text=True, timeout=300)
    return p.returncode, p.stdout, p.stderr


def test_names():
    assert catalogue.find("linear.q4_1")[1] == ("q4_1",)
    assert catalogue.find("attention.f16.3.64.64")[1] == ("f16", 3, 64, 64)
    for wrong in ("linear", "linear.q9", "linear.q4_1.2", "nothing", "attention.f16.3.64.x", "add.f32"):
        with pytest.raises(UnknownKernel, match=re.escape(repr(wrong))):
            compiling.address(wrong)


def test_the_catalogue_lists_every_kernel_with_its_parameters():
    table = catalogue.describe()
    assert "| linear.fmt | columns | w cols x x_step d s out n | out[r, n] = " in table
    assert "| rope.interleaved|half | rows |" in table and "scale:f32" in table
    for name, kernel in registry.KERNELS.items():
        assert f"| {name}" in table and kernel.emit.__doc__, name
    assert catalogue.word("attention", "window") == R.P0 + [
        p.name for p in catalogue.find("attention.f16.1.8.8")[0].params
    ].index("window")


def test_a_kernel_is_declared_with_a_rule_and_parameters_of_different_names():
    for wrong in ({"rule": "cells", "params": "x"}, {"rule": "rows", "params": "x x"}):
        with pytest.raises(ValueError, match="kernel odd"):
            registry.kernel("odd", **wrong)
    assert "odd" not in registry.KERNELS


def test_address_is_stable_and_a_lowering_can_be_forced():
    a = compiling.address("test.noop")
    assert a and a == compiling.address("test.noop")
    assert compiling.address("test.noop", "generic") != a or isa.choose().name == "generic"


def test_choosing_an_instruction_set(monkeypatch):
    have = isa.supported()
    assert have[-1] == "generic" and set(have) <= set(isa.LOWERINGS)
    monkeypatch.delenv("FUCINA_ISA", raising=False)
    assert isa.choose().name == have[0]
    monkeypatch.setenv("FUCINA_ISA", "generic")
    assert isa.choose().name == "generic" and isa.choose(have[0]).name == have[0]
    for wrong in ("sse9", *(set(isa.LOWERINGS) - set(have))):
        with pytest.raises(IsaError, match=re.escape(repr(wrong))):
            isa.choose(wrong)


def test_features_that_numba_is_told_not_to_use_are_not_used(monkeypatch):
    from numba.core import config

    monkeypatch.setattr(config, "CPU_NAME", "generic")
    assert isa.supported() == ("generic",)
    monkeypatch.setattr(config, "CPU_NAME", None)
    monkeypatch.setattr(config, "CPU_FEATURES", "")
    assert isa.supported() == ("generic",)


@pytest.mark.parametrize("fmt", NAMES)
def test_arm_products_use_sdot_and_call_nothing(fmt):
    """This CPU cannot run it, but LLVM can compile it: the instruction is selected, no library function is called."""
    try:
        text = assembly(f"linear.{fmt}", "neon", "aarch64-linux-gnu", features="+neon,+dotprod")
    except IsaError as e:
        pytest.skip(str(e))
    assert not re.findall(r"\bblr?\s", text)
    assert ("sdot" in text) == (fmt not in ("f32", "f16", "bf16"))
    assert "fmla" in text


@pytest.mark.parametrize(
    "lowering,cpu,wanted", [("avx2", "haswell", "vpmaddubsw"), ("avxvnni", "alderlake", "vpdpbusd")]
)
def test_x86_products_use_their_instruction(lowering, cpu, wanted):
    try:
        text = assembly("linear.q4_1", lowering, "x86_64-linux-gnu", cpu)
    except IsaError as e:
        pytest.skip(str(e))
    assert wanted in text and "vfmadd" in text and not re.findall(r"\bcallq?\s", text)


def test_compiled_once_and_kept(tmp_path):
    first, second = (child(FUCINA_CACHE_DIR=tmp_path) for _ in range(2))
    assert first[0] == second[0] == 0, first + second
    assert first[1].split()[0] == "2" and second[1].split()[0] == "0"  # told before and after; then nothing
    assert first[1].split()[1] == second[1].split()[1]
    assert re.fullmatch("k-[0-9a-f]{12}", Path(first[1].split()[1]).name)


def test_one_line_says_that_kernels_are_compiled(tmp_path):
    quiet = CHILD.replace("c.on_compile(lambda name, seconds: told.append(name))", "")
    first, second = (child(quiet, FUCINA_CACHE_DIR=tmp_path) for _ in range(2))
    assert first[2].count("\n") == 1 and "compiling kernels" in first[2] and second[2] == ""


def test_several_processes_compile_at_once(tmp_path):
    code = """
from fucina.kernels import compile as c
c.on_compile(lambda *a: None)
for name in ("add", "swiglu", "gather_rows"):
    c.address(name)
"""
    env = dict(os.environ, FUCINA_CACHE_DIR=str(tmp_path), PYTHONPATH=str(ROOT))
    ps = [subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(p.wait(timeout=300), p.communicate()[1]) for p in ps] == [(0, "")] * 3
    status, out, err = child(FUCINA_CACHE_DIR=tmp_path)
    assert (status, out.split()[0]) == (0, "0"), err
    index = list(tmp_path.glob("*/*/*.nbi"))
    assert len(index) == 3 and len(list(tmp_path.glob("*/*/*.nbc"))) == 3  # a file of its own each


def test_no_writable_folder_at_all(tmp_path):
    """HOME and the cache folder cannot be written: a private folder in the temporary one, and one warning."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    temp = tmp_path / "temp"
    temp.mkdir()
    env = {"HOME": blocked, "XDG_CACHE_HOME": blocked, "LOCALAPPDATA": blocked, "FUCINA_CACHE_DIR": blocked / "x"}
    env |= {"TMPDIR": temp, "TEMP": temp, "TMP": temp, "USERPROFILE": blocked}
    if sys.platform == "darwin":
        pytest.skip("the user's cache folder of macOS follows HOME alone")
    status, out, err = child(**env)
    assert status == 0, err
    used = Path(out.split(maxsplit=1)[1].strip())
    assert temp in used.parents and err.count("cannot be kept") == 1
    if os.name == "posix":
        assert stat.S_IMODE(used.parent.stat().st_mode) == 0o700
    assert child(**env)[1].split()[0] == "0"  # and it is found again


def test_a_temporary_folder_that_others_can_write_is_not_trusted(tmp_path, monkeypatch):
    if os.name != "posix":
        pytest.skip("modes of folders are a matter of POSIX")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    assert cache_folder._private(shared)
    shared.chmod(0o777)
    assert not cache_folder._private(shared)


def test_the_stamp_covers_versions_and_the_lowering(monkeypatch):
    stamps = set()
    try:
        for version, lowering in (("0.0.1", "generic"), ("0.0.2", "generic"), ("0.0.2", isa.supported()[0])):
            monkeypatch.setattr(cache_folder.numba, "__version__", version)
            monkeypatch.setenv("FUCINA_ISA", lowering)
            cache_folder.stamp.cache_clear()
            stamps.add(cache_folder.stamp())
    finally:
        monkeypatch.undo()
        cache_folder.stamp.cache_clear()
    assert len(stamps) == (2 if isa.supported() == ("generic",) else 3)


BITS = """
import hashlib, numpy as np
from fucina.cache import State
from fucina.cache.parts import Kv
from fucina.kernels import compile as c, isa
from tests.unit import one_op
from tests.unit.kernel_inputs import packed, rows, weights
c.on_compile(lambda *a: None)
h, rng = hashlib.sha256(), np.random.default_rng(0)
for fmt in ("q4_1", "q8_0", "f16"):
    h.update(one_op.linear(rows(rng, 3, 64), packed(weights(rng, fmt, 13, 64), fmt)).tobytes())
x = rng.standard_normal((4, 72)).astype(np.float32)
h.update(one_op.elementwise("geglu", x, x).tobytes())
h.update(one_op.rms_norm(x, np.ones(72, np.float32), 1e-5).tobytes())
state, key = State([Kv(2, 16, 8)], 80), rng.standard_normal((70, 32)).astype(np.float32)
one_op.append(state, key, key[:, :16].copy(), range(70))
for plane in state.planes(0):
    h.update(plane.tobytes())
h.update(one_op.attention(state, key[:4].copy(), 2, 0.3, [3, 9, 66, 69]).tobytes())
print(isa.choose().name, h.hexdigest())
"""


def test_a_cpu_without_vector_extensions_computes_the_same_bits(tmp_path):
    """Compiled for the oldest CPU of this architecture, where even a fused multiply-add is a call of the C library."""
    baseline = "x86-64" if isa.platform.machine().lower() in ("x86_64", "amd64") else "generic"
    results = [child(BITS, FUCINA_CACHE_DIR=tmp_path), child(BITS, FUCINA_CACHE_DIR=tmp_path, NUMBA_CPU_NAME=baseline)]
    assert [r[0] for r in results] == [0, 0], results
    (best, bits), (oldest, same) = (r[1].split() for r in results)
    assert (best, oldest) == (isa.supported()[0], "generic") and bits == same
