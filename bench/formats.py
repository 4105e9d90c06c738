"""Matrix products in every format beside ggml's: one thread, the same bytes of weights, 1, 8 and 512 rows of activations.

    python -m bench.formats [--formats q4_k,iq2_s] [--counts 1,8,512] [--rounds 15] [--json]

Each side turns float32 activations into its integers and multiplies.  They take turns, a few repetitions each.  Time is
that of the thread on a processor, and the fastest repetition counts: on a busy machine, the one that nobody disturbed.
`ratio` above 1 means that fucina is faster.  ggml comes from the Python that FUCINA_LLAMA_PYTHON names, or this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from fucina.kernels import record as R
from fucina.kernels.formats import FORMATS, Format, activation_bytes
from fucina.kernels.invoke import function, record_words
from fucina.kernels.memory import aligned
from fucina.kernels.packing import pack
from fucina.kernels.panels import SCRATCH_BYTES
from fucina.measure.duel import find_peer

from .kernels import some_rows


class Ours:
    """x Wᵀ: quantise, then multiply, on this thread."""

    def __init__(self, f: Format, raw: np.ndarray, cols: int, isa: str | None) -> None:
        self.f, self.isa = f, isa
        self.w = pack(raw, f.ggml_type, len(raw), cols)
        self.calls: dict[int, list] = {}

    def prepare(self, count: int) -> None:
        f, w = self.f, self.w
        x = np.random.default_rng(1).standard_normal((count, w.cols)).astype(np.float32)
        out, job = np.empty((count, w.rows), np.float32), np.zeros(R.JOB_WORDS, np.int64)
        scratch = aligned(SCRATCH_BYTES)
        job[R.M], job[R.SCRATCH] = count, scratch.ctypes.data
        params = {"w": w.addr, "cols": w.cols, "x_step": w.cols, "out": out.ctypes.data, "n": w.rows}
        params |= {"x": x.ctypes.data, "d": 0, "s": 0}
        calls, keep = [], [x, out, job, scratch]
        if f.sums:
            arrays = {n: aligned(size) for n, size in activation_bytes(f.activations, count, w.cols).items()}
            given = {"x": x.ctypes.data, "x_step": w.cols, "cols": w.cols}
            given |= {n: a.ctypes.data for n, a in arrays.items()}
            record = record_words(f"quantise.{f.activations}.rows", given, unit=1)
            record[R.UNITS] = 1
            calls.append((function(f"quantise.{f.activations}.rows", self.isa), record, count))
            params |= {name: arrays[source].ctypes.data for name, source in (("x", "q"), ("d", "d"), ("s", f.sums))}
            keep += arrays.values()
        record = record_words(f"linear.{f.name}", params, unit=32)
        calls.append((function(f"linear.{f.name}", self.isa), record, w.rows // 32))
        self.calls[count] = [calls, job, keep]

    def seconds(self, count: int, repetitions: int) -> float:
        calls, job, _ = self.calls[count]
        best = 1e9
        for _ in range(repetitions):
            start = time.thread_time()
            for call, record, units in calls:
                call(record.ctypes.data, job.ctypes.data, 0, units, 0)
            best = min(best, time.thread_time() - start)
        return best


class Theirs:
    """A process of `ggml_products`."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("ggml_products.py")
        self.process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, **question) -> dict:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--formats", default=",".join(FORMATS))
    p.add_argument("--counts", default="1,8,512")
    p.add_argument("--rows", type=int, default=6144)
    p.add_argument("--cols", type=int, default=2048)
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--isa", default=None)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    counts = [int(c) for c in a.counts.split(",")]
    theirs = Theirs(find_peer())
    if not a.json:
        print(
            f"{'format':8} {'in file':>8} {'packed':>8}  bits per weight;  per number of rows: GB/s of weights, ratio"
        )
    for name in a.formats.split(","):
        f = FORMATS[name]
        raw = np.ascontiguousarray(np.tile(some_rows(f, a.cols), (a.rows // 64, 1)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.bin"
            path.write_bytes(raw.tobytes())
            shape = {"rows": a.rows, "cols": a.cols, "raw": str(path), "counts": counts}
            repacked = theirs.ask(format=f.ggml_type, **shape)["repacked"]
        ours = Ours(f, raw, a.cols, a.isa)
        best = {c: [1e9, 1e9] for c in counts}
        for c in counts:
            ours.prepare(c)
        for _ in range(a.rounds):
            for c in counts:
                repetitions = 4 if c < 16 else 1
                best[c][0] = min(best[c][0], ours.seconds(c, repetitions))
                best[c][1] = min(best[c][1], theirs.ask(count=c, repetitions=repetitions)["seconds"])
        bits = 8 * f.raw / f.cols, f.packed / f.cols
        if a.json:
            print(json.dumps({"format": name, "bits": bits, "repacked": repacked, "seconds": best}), flush=True)
            continue
        cells = [f"{c:4}: {ours.w.nbytes / s[0] / 1e9:6.2f} {s[1] / s[0]:5.2f}" for c, s in best.items()]
        print(f"{name:8} {bits[0]:8.3f} {bits[1]:8.3f}  {'  '.join(cells)}{'  (repacked)' * repacked}", flush=True)
    theirs.close()


if __name__ == "__main__":
    main()
