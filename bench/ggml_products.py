"""Matrix products by ggml, for `bench.formats`: run by a Python that has llama-cpp-python, asked on stdin in JSON lines.

    {"format": 12, "rows": 3072, "cols": 1024, "raw": "weights.bin", "counts": [1, 8]}   -> {"repacked": true}
    {"count": 8, "repetitions": 3}                                                       -> {"seconds": 0.001}

Weights go to ggml's buffer of repacked weights where it takes the format, as llama.cpp does it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

P, N, S = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t


class Init(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", S), ("mem_buffer", P), ("no_alloc", ctypes.c_bool))


class Ggml:
    """The functions that are needed, by name; pointers unless told otherwise."""

    def __init__(self) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        self.libraries = [
            ctypes.CDLL(str(next(folder.glob(f"*ggml{part}.*"))), ctypes.RTLD_GLOBAL) for part in ("-base", "-cpu")
        ]

    def __call__(self, name: str, *args, returns=P):
        for library in self.libraries:
            if hasattr(library, name):
                f = getattr(library, name)
                f.restype = returns
                return f(*args)
        raise AttributeError(name)


class Products:
    """y = x Wᵀ for one matrix and several numbers of rows."""

    def __init__(self, g: Ggml, kind: int, rows: int, cols: int, raw: bytes, counts: list[int], repack: bool) -> None:
        self.g, self.graphs = g, {}
        self.backend = P(g("ggml_backend_cpu_init"))
        g("ggml_backend_cpu_set_n_threads", self.backend, 1, returns=None)
        buffers = repacked(g) if repack else P(g("ggml_backend_cpu_buffer_type"))
        context = P(g("ggml_init", Init(1 << 20, None, True)))
        w = P(g("ggml_new_tensor_2d", context, kind, N(cols), N(rows)))
        g("ggml_backend_alloc_ctx_tensors_from_buft", context, buffers)
        g("ggml_backend_tensor_set", w, raw, S(0), S(len(raw)), returns=None)
        for count in counts:
            context = P(g("ggml_init", Init(1 << 20, None, True)))
            x = P(g("ggml_new_tensor_2d", context, 0, N(cols), N(count)))
            graph = P(g("ggml_new_graph", context))
            g("ggml_build_forward_expand", graph, P(g("ggml_mul_mat", context, w, x)), returns=None)
            g("ggml_backend_alloc_ctx_tensors", context, self.backend)
            numbers = (ctypes.c_float * (cols * count))(
                *[((i * 7919) % 2001 - 1000) / 1000 for i in range(cols * count)]
            )
            g("ggml_backend_tensor_set", x, numbers, S(0), S(ctypes.sizeof(numbers)), returns=None)
            self.graphs[count] = graph

    def seconds(self, count: int, repetitions: int) -> float:
        best = 1e9
        for _ in range(repetitions):
            start = time.thread_time()
            if self.g("ggml_backend_graph_compute", self.backend, self.graphs[count], returns=ctypes.c_int) != 0:
                raise RuntimeError("ggml did not compute")
            best = min(best, time.thread_time() - start)
        return best


def repacked(g: Ggml) -> ctypes.c_void_p:
    """The type of ggml's buffers of repacked weights."""
    cpu = P(g("ggml_backend_cpu_reg"))
    address = g("ggml_backend_reg_get_proc_address", cpu, b"ggml_backend_dev_get_extra_bufts")
    found = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(address)(P(g("ggml_backend_reg_dev_get", cpu, S(0))))
    for i in range(9):
        if not found[i]:
            break
        if g("ggml_backend_buft_name", P(found[i]), returns=ctypes.c_char_p) == b"CPU_REPACK":
            return P(found[i])
    raise RuntimeError("this ggml repacks no weights")


def works(make) -> bool:
    """Whether a child process survives it: repacking a format that cannot be repacked ends the process."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            make().seconds(1, 1)
        except Exception:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    g = Ggml()
    products: Products | None = None
    answer: dict[str, float]
    for line in sys.stdin:
        asked = json.loads(line)
        if "format" in asked:
            raw = Path(asked["raw"]).read_bytes()
            kind, rows, cols, counts = (asked[name] for name in ("format", "rows", "cols", "counts"))
            make = partial(Products, g, kind, rows, cols, raw)
            repack = works(partial(make, [1], True))
            products = make(counts, repack)
            answer = {"repacked": repack}
        elif products is not None:
            answer = {"seconds": products.seconds(asked["count"], asked["repetitions"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
