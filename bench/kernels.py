"""Speed of single kernels: GB/s of weights for few rows, multiply-adds per second for many.

    python bench/kernels.py [--formats q4_1,q8_0] [--rows 1,4,8,128] [--isa avx2] [--threads 2] [--json]
    python bench/kernels.py --attention 3.64.64 --context 1024

Each figure is the best of several rounds; formats and row counts take turns, so that a busy moment of the machine
hits all of them.  `plain read` is the same memory summed up by NumPy, in the same threads.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np

from fucina.gguf import WRITABLE, GgmlType, dequantize, quantize
from fucina.kernels import record as R
from fucina.kernels.attention import scratch_bytes
from fucina.kernels.formats import FORMATS, Format
from fucina.kernels.invoke import function, record_words
from fucina.kernels.memory import aligned
from fucina.kernels.packing import PackedWeight, pack
from fucina.kernels.reference import quantise


def in_threads(threads: int, work) -> float:
    """Seconds for work(0), … at the same time."""
    gate = threading.Barrier(threads + 1)

    def one(i: int) -> None:
        gate.wait()
        work(i)
        gate.wait()

    ts = [threading.Thread(target=one, args=(i,)) for i in range(threads)]
    for t in ts:
        t.start()
    gate.wait()
    start = time.perf_counter()
    gate.wait()
    seconds = time.perf_counter() - start
    for t in ts:
        t.join()
    return seconds


def some_rows(f: Format, cols: int) -> np.ndarray:
    """64 rows of a file; of a format that is only read, rows of bytes that stand for finite numbers."""
    if GgmlType(f.ggml_type) in WRITABLE:
        return quantize(np.random.default_rng(0).standard_normal((64, cols)).astype(np.float32), f.ggml_type)
    raw = np.random.default_rng(0).integers(0, 64, (64, cols // f.cols, f.raw), dtype=np.uint8)
    if f.exponent:
        raw[..., 0] = 124  # near one: subnormal numbers are slow
    raw = raw.reshape(64, -1)
    assert np.isfinite(dequantize(raw, f.ggml_type)).all()
    return raw


def matrix(fmt: str, cols: int, megabytes: float) -> PackedWeight:
    """A packed matrix of about `megabytes` MB: a few random rows, repeated."""
    f = FORMATS[fmt]
    rows = max(64, int(megabytes * 2**20 / (cols // f.cols * f.packed / 8)) // 64 * 64)
    few = some_rows(f, cols)
    p = pack(few, f.ggml_type, 64, cols)
    data = aligned(p.nbytes * (rows // 64))
    data.reshape(rows // 64, -1)[:] = p.data
    return PackedWeight(data, data.ctypes.data, fmt, rows, cols)


class Product:
    """x Wᵀ with prepared activations, cut between threads."""

    def __init__(self, w: PackedWeight, m: int, threads: int, isa: str | None) -> None:
        f = FORMATS[w.format]
        x = np.random.default_rng(1).standard_normal((m, w.cols)).astype(np.float32)
        self.out = np.empty((m, w.rows), np.float32)
        params = {"w": w.addr, "cols": w.cols, "x_step": w.cols, "out": self.out.ctypes.data, "n": w.rows}
        if f.sums is None:
            self.keep = {"x": x}
            params |= {"x": x.ctypes.data, "d": 0, "s": 0}
        else:
            self.keep = quantise(x, f.activations)
            params |= {name: self.keep[source].ctypes.data for name, source in (("x", "q"), ("d", "d"), ("s", f.sums))}
        self.record, self.job = record_words(f"linear.{w.format}", params, unit=32), np.zeros(R.JOB_WORDS, np.int64)
        self.job[R.M] = m
        self.call = function(f"linear.{w.format}", isa)
        self.units, self.threads, self.w, self.m = w.rows // 32, threads, w, m

    def seconds(self) -> float:
        cut = [self.units * i // self.threads for i in range(self.threads + 1)]

        def work(i: int) -> None:
            for u in range(cut[i], cut[i + 1], 64):
                self.call(self.record.ctypes.data, self.job.ctypes.data, u, min(u + 64, cut[i + 1]), i)

        return in_threads(self.threads, work)


def attention(shape: str, context: int, rows: int, isa: str | None) -> dict:
    """Seconds of one attention layer for the last `rows` positions of a context, one thread."""
    group, k_dim, v_dim = (int(x) for x in shape.split("."))
    kv_heads, rng = 3, np.random.default_rng(0)
    cache = rng.standard_normal(context * kv_heads * (k_dim + v_dim)).astype(np.float16)
    q = rng.standard_normal((rows, group * kv_heads * k_dim)).astype(np.float32)
    out, positions = np.empty((rows, group * kv_heads * v_dim), np.float32), np.arange(context - rows, context)
    table, streams = np.zeros((rows, R.ROW_WORDS), np.int64), np.zeros((1, R.STREAM_WORDS), np.int64)
    table[:, R.POS], streams[0, R.STREAM_STATE : R.STREAM_STATE + 2] = positions, (cache.ctypes.data, context)
    scratch = aligned(scratch_bytes(group, k_dim, v_dim))
    params = {"q": q.ctypes.data, "q_step": q.shape[1], "out": out.ctypes.data, "kv_heads": kv_heads, "k_offset": 0}
    params |= {"v_offset": kv_heads * k_dim, "area": R.area_word(0), "window": 0, "scale": 0.1}
    record, job = record_words(f"attention.f16.{shape}", params), np.zeros(R.JOB_WORDS, np.int64)
    job[R.M], job[R.ROW_TABLE], job[R.STREAM_TABLE] = rows, table.ctypes.data, streams.ctypes.data
    job[R.SCRATCH], job[R.SCRATCH_STEP] = scratch.ctypes.data, scratch.size
    call = function(f"attention.f16.{shape}", isa)
    best, begin = 1e9, time.perf_counter()
    while time.perf_counter() - begin < 2:
        start = time.perf_counter()
        call(record.ctypes.data, job.ctypes.data, 0, rows * kv_heads, 0)
        best = min(best, time.perf_counter() - start)
    macs = float((positions + 1).sum()) * group * kv_heads * (k_dim + v_dim)
    return {"attention": shape, "context": context, "rows": rows, "ms": best * 1e3, "gmac_s": macs / best / 1e9}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--formats", default="f32,f16,q8_0,q4_0,q4_1,q5_0,q4_k,q6_k")
    p.add_argument("--rows", default="1,2,4,8,16,128")
    p.add_argument("--cols", type=int, default=1536)
    p.add_argument("--isa", default=None)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--megabytes", type=float, default=96)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--attention", default=None, metavar="HEADS.K.V")
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    if a.attention:
        results = [attention(a.attention, a.context, m, a.isa) for m in (int(m) for m in a.rows.split(","))]
    else:
        plain = np.ones(int(a.megabytes * 2**20 / 4), np.float32)
        part = np.array_split(plain, a.threads)
        cases = {
            (fmt, m): Product(w, m, a.threads, a.isa)
            for fmt in a.formats.split(",")
            for w in [matrix(fmt, a.cols, a.megabytes)]
            for m in (int(m) for m in a.rows.split(","))
        }
        best, read = dict.fromkeys(cases, 1e9), 1e9
        for _ in range(a.rounds):
            read = min(read, in_threads(a.threads, lambda i: part[i].max()))
            for key, case in cases.items():
                best[key] = min(best[key], case.seconds())
        results = [{"format": "plain read", "rows": 0, "gb_s": plain.nbytes / read / 1e9, "gmac_s": 0.0}]
        for (fmt, m), s in best.items():
            w = cases[fmt, m].w
            results.append(
                {"format": fmt, "rows": m, "gb_s": w.nbytes / s / 1e9, "gmac_s": m * w.rows * w.cols / s / 1e9}
            )
    for r in results:
        text = (f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items())
        print(json.dumps(r) if a.json else "  ".join(text))


if __name__ == "__main__":
    main()
