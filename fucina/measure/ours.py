"""fucina as an engine under measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..cache import Kv, Latent
from ..cache.dtypes import DTYPES
from ..loading import load
from ..model import Model
from .questions import Request


class FucinaSession:
    """Streams with caches of one capacity."""

    def __init__(self, model: Model, capacity: int, streams: int) -> None:
        self._model = model
        self._caches = [model.new_cache(capacity) for _ in range(streams)]

    @property
    def lengths(self) -> list[int]:
        """Positions that each stream holds."""
        return [c.len for c in self._caches]

    def rows(self, requests: Sequence[Request]) -> np.ndarray:
        """See `questions.Session`."""
        out = self._model.forward_rows([(self._caches[stream], tokens, want) for stream, tokens, want in requests])
        return out[0] if len(out) == 1 else np.concatenate(out)

    def truncate(self, stream: int, length: int) -> None:
        """See `questions.Session`."""
        self._caches[stream].truncate(length)

    def close(self) -> None:
        """Drop the caches."""
        self._caches.clear()


class FucinaEngine:
    """A model loaded by fucina.

    Parameters
    ----------
    path : the .gguf.
    options : of `fucina.load`.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self._path, self._options = path, options
        start = perf_counter()
        self.model = load(path, **options)
        self.load_seconds = perf_counter() - start
        self.n_vocab = self.model.n_tokens

    def describe(self) -> dict[str, Any]:
        """See `questions.Engine`."""
        from .. import __version__
        from ..kernels.isa import choose

        return {
            "engine": "fucina",
            "version": __version__,
            "backend": self.model.backend,
            "kv": self.model.cache_dtype,
            "instruction_set": choose().name if self.model.backend == "native" else None,
            "weight_bytes": self.model.weight_bytes,
            "kv_reads": self._kv_reads(),
        }

    def _kv_reads(self) -> list[list[int]]:
        """[layers, bytes per position, window or 0] of each kind of layer that looks back at positions."""
        size = DTYPES[self.model.cache_dtype].nbytes
        kinds: Counter[tuple[int, int]] = Counter()
        for part in self.model.family.parts:
            if isinstance(part, Kv):
                kinds[size(part.kv_heads * (part.k_dim + part.v_dim)), part.window] += 1
            elif isinstance(part, Latent):
                kinds[size(part.k_dim), 0] += 1
        return [[count, width, window] for (width, window), count in kinds.items()]

    def settings_of(self, use: str) -> None:
        """Always the same ones."""

    def session(self, use: str, capacity: int, streams: int) -> FucinaSession:
        """See `questions.Engine`."""
        return FucinaSession(self.model, capacity, streams)

    def load(self, repeats: int) -> list[float]:
        """Seconds of loading the model again, kernels compiled and the file in memory."""
        times = []
        for _ in range(repeats):
            start = perf_counter()
            model = load(self._path, **self._options)
            model.new_cache(1024)
            times.append(perf_counter() - start)
            model.close()
        return times

    def close(self) -> None:
        """End the threads."""
        self.model.close()
