"""Pieces of the native interpreter: counting cores, tables, memory, what it says about itself."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fucina
from fucina.errors import InvalidOption, KvCacheOverflow
from fucina.kernels.memory import aligned
from fucina.ops import functions
from fucina.ops.native import cores
from fucina.ops.native.weights import RopeTable
from fucina.ops.rope import RopeSpec, rope_table

from ..models import TINY
from .tiny_models import FAMILIES, native, new_cache, run


def test_thread_counts_that_make_no_sense():
    tiny = FAMILIES["gemma3"]()
    for threads in (0, -1, 257):
        with pytest.raises(InvalidOption, match="threads must be 1 to 256"):
            fucina.ops.native.Native(tiny, threads=threads, context=64)


def test_cores_count_siblings_once(tmp_path):
    for cpu, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / ("core_cpus_list" if cpu % 2 else "thread_siblings_list")).write_text(siblings + "\n")
    assert cores._linux_cores(set(range(8)), tmp_path) == 4
    assert cores._linux_cores({0, 4}, tmp_path) == 1
    assert cores._linux_cores({0, 1, 5}, tmp_path) == 2
    assert cores._linux_cores({0, 99}, tmp_path) == 2  # a processor that the system does not describe
    assert cores.default_threads() >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_quota_of_a_container(tmp_path):
    groups, root = tmp_path / "groups", tmp_path / "fs"
    (root / "a" / "b").mkdir(parents=True)
    groups.write_text("0::/a/b\n")
    assert cores._quota(root, groups) is None
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cores._quota(root, groups) is None
    (root / "a" / "cpu.max").write_text("250000 100000\n")  # the parent's limit counts too
    assert cores._quota(root, groups) == 2.5
    (root / "cpu" / "c").mkdir(parents=True)
    (root / "cpu" / "c" / "cpu.cfs_quota_us").write_text("150000\n")
    (root / "cpu" / "c" / "cpu.cfs_period_us").write_text("100000\n")
    groups.write_text("3:cpu,cpuacct:/c\n2:memory:/a\n")
    assert cores._quota(root, groups) == 1.5
    (root / "cpu" / "c" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores._quota(root, groups) is None
    assert cores._quota(root, tmp_path / "missing") is None


def test_rope_tables_are_filled_as_far_as_needed():
    spec = RopeSpec(8, 1e4, "half", (1.0, 2.0, 4.0, 8.0), 0.5)
    table = RopeTable(spec, 1500)
    assert table.filled == 0
    for positions, filled in ((1, 1024), (1024, 1024), (1025, 1500), (1500, 1500)):
        table.fill(positions)
        assert table.filled == filled
    cos, sin = rope_table(spec, 0, 1500)
    assert table.table.tobytes() == np.concatenate([cos, sin], axis=1).tobytes()


def test_positions_outside_the_context_are_refused():
    engine, tiny = native("gemma3", 1, context=100), FAMILIES["gemma3"]()
    kv = new_cache(tiny, 200)
    run(engine, [(kv, [1] * 100)])
    with pytest.raises(KvCacheOverflow, match="position 100 is outside the context of 100"):
        run(engine, [(kv, [1])])
    engine.close()


def test_aligned_memory():
    for nbytes in (0, 1, 64, 1000):
        for zero in (True, False):
            block = aligned(nbytes, zero)
            assert block.nbytes == nbytes and (nbytes == 0 or block.ctypes.data % 128 == 0)


def test_explain_shows_the_real_thing():
    model = fucina.load(TINY / "llama.gguf", threads=2)
    text = model.explain()
    assert text.isascii() and "attention.f32" in text and "token_embd.weight" in text
    with model.override("rms_norm", functions.rms_norm):
        assert "rms_norm (Python)" in model.explain()
    assert model.explain() == text
    model.close()
