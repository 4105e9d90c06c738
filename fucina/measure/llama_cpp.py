"""llama.cpp as an engine under measurement, through the low-level C API of llama-cpp-python.

Runs in a Python that has `llama_cpp`; needs nothing of fucina but `questions`. Weights are repacked where llama.cpp
can (its default), keys and values are f16 (its default). Flash attention, and for models with a window the short
cache, are settings that the harness tries both ways; see `configure`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp as lc
import numpy as np

from .questions import USES, Request


@lc.llama_log_callback
def _silent(level: int, text: bytes, user_data: Any) -> None:
    pass


def _ggml(name: str) -> str | None:
    """A version string of ggml, or None where this build does not export it."""
    for path in sorted((Path(lc.__file__).parent / "lib").glob("*ggml-base*")):
        with contextlib.suppress(OSError, AttributeError):
            function = getattr(ctypes.CDLL(str(path)), name)
            function.restype = ctypes.c_char_p
            return function().decode()
    return None


class LlamaSession:
    """One llama_context; every stream is a sequence with a KV cache of its own."""

    def __init__(
        self, model: Any, threads: int, capacity: int, streams: int, outputs: int, settings: dict[str, bool]
    ) -> None:
        p = lc.llama_context_default_params()
        p.n_seq_max = streams
        p.n_ctx = streams * (-(-capacity // 256) * 256)  # llama.cpp rounds each stream's share up to 256 anyway
        p.n_threads = p.n_threads_batch = threads
        p.n_outputs_max_per_seq = outputs
        p.kv_unified = False
        p.flash_attn_type = int(settings["flash_attention"])
        p.swa_full = settings["full_window_cache"]
        self._context = lc.llama_init_from_model(model, p)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {p.n_ctx} positions")
        self._memory = lc.llama_get_memory(self._context)
        self._vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        self._limit = lc.llama_n_batch(self._context)
        self._batch = lc.llama_batch_init(self._limit, 0, 1)
        b, n = self._batch, self._limit
        self._token = np.ctypeslib.as_array(b.token, (n,))
        self._pos = np.ctypeslib.as_array(b.pos, (n,))
        self._logits = np.ctypeslib.as_array(b.logits, (n,))
        np.ctypeslib.as_array(b.n_seq_id, (n,))[:] = 1
        self._seq = [b.seq_id[i] for i in range(n)]
        self.lengths = [0] * streams
        self._history: list[list[int]] = [[] for _ in range(streams)]

    def rows(self, requests: Sequence[Request]) -> np.ndarray:
        """See `questions.Session`."""
        at, wanted = 0, 0
        for stream, tokens, want in requests:
            n, length = len(tokens), self.lengths[stream]
            if at + n > self._limit:
                raise ValueError(f"a pass of llama.cpp holds {self._limit} rows, asked for more")
            self._token[at : at + n] = tokens
            self._pos[at : at + n] = np.arange(length, length + n)
            self._logits[at : at + n] = want == "all"
            self._logits[at + n - 1] = want != "none"
            for i in range(at, at + n):
                self._seq[i][0] = stream
            wanted += {"all": n, "last": 1, "none": 0}[want]
            at += n
        self._batch.n_tokens = at
        code = lc.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        for stream, tokens, _ in requests:
            self.lengths[stream] += len(tokens)
            self._history[stream] += tokens
        out = lc.llama_get_logits(self._context)  # waits for the pass
        return np.ctypeslib.as_array(out, (max(wanted, 1), self._vocab))[:wanted]

    def truncate(self, stream: int, length: int) -> None:
        """See `questions.Session`.  A window's short cache may refuse; then the text is read again."""
        if length >= self.lengths[stream]:
            return
        keep = self._history[stream][:length]
        self._history[stream], self.lengths[stream] = keep, length
        if not lc.llama_memory_seq_rm(self._memory, stream, length, -1):
            lc.llama_memory_seq_rm(self._memory, stream, -1, -1)
            self._history[stream], self.lengths[stream] = [], 0
            for i in range(0, length, 512):
                self.rows([(stream, keep[i : i + 512], "last")])

    def close(self) -> None:
        """Free the context."""
        lc.llama_batch_free(self._batch)
        lc.llama_free(self._context)


class LlamaEngine:
    """A model loaded by llama.cpp.

    Parameters
    ----------
    path : the .gguf.
    threads : for decode and prefill alike.
    """

    def __init__(self, path: str, threads: int) -> None:
        lc.llama_log_set(_silent, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self._path, self._threads = path, threads
        self.settings = {use: {"flash_attention": True, "full_window_cache": True} for use in ("decode", "prefill")}
        start = perf_counter()
        self._model = self._load()
        self.load_seconds = perf_counter() - start
        self._vocab = lc.llama_model_get_vocab(self._model)
        self.n_vocab = lc.llama_vocab_n_tokens(self._vocab)

    def _load(self) -> Any:
        p = lc.llama_model_default_params()
        p.n_gpu_layers = 0
        p.use_extra_bufts = True  # repacked weights where it has them
        model = lc.llama_model_load_from_file(self._path.encode(), p)
        if not model:
            raise RuntimeError("llama.cpp could not load the model")
        return model

    def configure(self, use: str, settings: dict[str, bool]) -> None:
        """Settings of sessions opened from now on for "decode" or "prefill"."""
        self.settings[use] = dict(settings)

    def describe(self) -> dict[str, Any]:
        """See `questions.Engine`."""
        return {
            "engine": "llama.cpp",
            "version": f"llama-cpp-python {lc.__version__}",
            "ggml_version": _ggml("ggml_version"),
            "ggml_commit": _ggml("ggml_commit"),
            "system_info": lc.llama_print_system_info().decode().strip(" |\n"),
            "kv": "f16",
            "repacking": True,
            "settings": self.settings,
        }

    def settings_of(self, use: str) -> tuple[tuple[str, bool], ...]:
        """See `questions.Engine`."""
        return tuple(sorted(self.settings["prefill" if use == "prefill" else "decode"].items()))

    def session(self, use: str, capacity: int, streams: int) -> LlamaSession:
        """See `questions.Engine`."""
        return LlamaSession(self._model, self._threads, capacity, streams, USES[use], dict(self.settings_of(use)))

    def load(self, repeats: int) -> list[float]:
        """Seconds of loading the model again with a context of 1024, the file in memory."""
        times = []
        for _ in range(repeats):
            start = perf_counter()
            model = self._load()
            session = LlamaSession(model, self._threads, 1024, 1, 1, self.settings["decode"])
            times.append(perf_counter() - start)
            session.close()
            lc.llama_model_free(model)
        return times

    def tokenize(self, text: str) -> list[int]:
        """Ids with llama.cpp's own policy on BOS; markers are special."""
        raw = text.encode()
        out = (lc.llama_token * (len(raw) + 16))()
        n = lc.llama_tokenize(self._vocab, raw, len(raw), out, len(out), True, True)
        return list(out[:n])

    def piece(self, token: int) -> str:
        """Text of one token."""
        out = ctypes.create_string_buffer(256)
        n = lc.llama_token_to_piece(self._vocab, token, out, len(out), 0, True)
        return out.raw[:n].decode("utf-8", "replace")

    def quantize(self, target: str, format_name: str) -> None:
        """Write the model in another format (weights that are quantised already are converted from what they hold)."""
        p = lc.llama_model_quantize_default_params()
        p.ftype = getattr(lc, f"LLAMA_FTYPE_MOSTLY_{format_name}")
        p.allow_requantize = True
        p.nthread = self._threads
        if lc.llama_model_quantize(self._path.encode(), target.encode(), p):
            raise RuntimeError(f"llama.cpp could not write {format_name}")

    def close(self) -> None:
        """Free the model."""
        lc.llama_model_free(self._model)
