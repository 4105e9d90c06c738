"""A loaded model: the one object that most programs need.

`Model` checks everything that comes from outside, cuts work into passes of at most 128 rows, and moves caches forward
only when every pass of a call has succeeded.  `loading.py` makes it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .cache import KvCache
from .errors import (
    DuplicateCache,
    EmptyInput,
    InvalidOption,
    KvCacheOverflow,
    KvCacheShapeMismatch,
    ReentrantForward,
    TokenOutOfRange,
)
from .generation import Generation, GenerationStream, generate
from .gguf import GgufFile
from .models import LoadedFamily
from .ops.rows import MAX_ROWS, RowBatch
from .tokenizers import Tokenizer

Tokens = Sequence[int] | np.ndarray
Request = tuple[KvCache, Tokens, str]

_WANTS = ("all", "last", "none")
_OVERRIDABLE = ("rms_norm", "linear", "rope", "attention", "swiglu", "geglu")


def _fingerprint(file: GgufFile) -> bytes:
    """16 bytes that tell two models apart: every tensor's name, shape, type and first bytes."""
    h = hashlib.blake2b(digest_size=16)
    for t in file.tensors.values():
        h.update(f"{t.name}|{t.shape}|{int(t.ggml_type)}|".encode())
        h.update(t.data[:32].tobytes())
    return h.digest()


class Model:
    """A model ready to run; made by `fucina.load`.

    Attributes
    ----------
    config : sizes of the family's model (`vocab_size`, `n_layers`, `dim`, …).
    weights : its tensors, by the names that the family gives them.
    tokenizer : text to ids and back.
    chat_template : Jinja source of the model's chat template, or None.
    path : the file.  context : positions that a cache may hold.  cache_dtype : "f16" or "f32".
    """

    def __init__(
        self,
        file: GgufFile,
        family: LoadedFamily,
        tokenizer: Tokenizer,
        interpreter: Any,
        context: int,
        cache_dtype: str,
    ) -> None:
        self.config, self.weights, self.tokenizer = family.config, family.weights, tokenizer
        self.context, self.cache_dtype = context, cache_dtype
        self.path: Path = file.path
        self.metadata = file.metadata
        self.chat_template: str | None = file.metadata.str("tokenizer.chat_template", default=None)
        self._file, self._interpreter = file, interpreter
        self._geometry = family.config.cache_geometry()
        self._fingerprint = _fingerprint(file)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Model({self.path.name}, backend={self.backend}, context={self.context}, cache={self.cache_dtype})"

    @property
    def backend(self) -> str:
        """Name of the interpreter: "native" or "naive"."""
        return self._interpreter.name

    @property
    def threads(self) -> int:
        """Threads that a pass uses."""
        return self._interpreter.threads

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that name the weights; caches carry them."""
        return self._fingerprint

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one decoded token reads: every tensor once, an embedding that is not the output not at all."""
        tied = self.weights.output is self.weights.embedding
        return sum(t.nbytes for t in self._file.tensors.values() if tied or t.name != self.weights.embedding.name)

    def explain(self) -> str:
        """What runs in a pass, readable."""
        return self._interpreter.explain()

    def close(self) -> None:
        """End the threads and let go of the file.  The model cannot be used afterwards."""
        with self._own():
            self._interpreter.close()

    # --- state --------------------------------------------------------------------------------------------------------

    def new_cache(self, capacity: int | None = None) -> KvCache:
        """An empty cache for one stream of this model; `capacity` defaults to the context.

        Raises
        ------
        KvCacheOverflow : capacity below 1, or above the context (load with a larger `context=` for that).
        """
        capacity = self.context if capacity is None else capacity
        if isinstance(capacity, (int, np.integer)) and capacity > self.context:
            raise KvCacheOverflow(
                f"capacity {capacity} is above the context of {self.context}; load with context={capacity}"
            )
        return KvCache(self._geometry, capacity, self.cache_dtype, self._fingerprint)

    # --- passes -------------------------------------------------------------------------------------------------------

    def logits(self, tokens: Tokens) -> np.ndarray:
        """Logits after every position of a fresh stream: float32 [len(tokens), vocab]."""
        ids = self.check_tokens(tokens)
        return self.forward(ids, self.new_cache(len(ids)))

    def forward(self, tokens: Tokens, cache: KvCache) -> np.ndarray:
        """Run the next tokens of one stream and advance its cache: logits float32 [len(tokens), vocab].

        Raises the errors of `forward_rows`.
        """
        return self.forward_rows([(cache, tokens, "all")])[0]

    def forward_rows(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Run the next tokens of several streams together.

        Every row has the same bits as if it ran alone.  Everything is checked before anything runs, and a failure
        advances no cache.

        Parameters
        ----------
        requests : (cache, tokens, want) of each stream; want is "all", "last" or "none": which rows' logits to return.

        Returns
        -------
        One float32 array [rows wanted, vocab] a request.

        Raises
        ------
        EmptyInput : no request, or one without tokens.
        TokenOutOfRange : an id outside the vocabulary.
        DuplicateCache : one cache in two requests.
        KvCacheShapeMismatch : a cache of another model, geometry or dtype.
        KvCacheOverflow : the tokens do not fit.
        InvalidOption : another `want`.
        ReentrantForward : called from inside a pass of this model.
        """
        checked = self._check_requests(requests)
        tokens = np.concatenate([ids for _, ids, _ in checked])
        positions = np.concatenate([np.arange(c.len, c.len + len(ids)) for c, ids, _ in checked])
        stream = np.repeat(np.arange(len(checked)), [len(ids) for _, ids, _ in checked])
        caches = [c for c, _, _ in checked]
        wanted = np.zeros(len(tokens), bool)
        counts, end = [], 0
        for _, ids, want in checked:
            end += len(ids)
            counts.append({"all": len(ids), "last": 1, "none": 0}[want])
            wanted[end - counts[-1] : end] = True
        with self._own():
            if len(tokens) <= MAX_ROWS:
                out = self._interpreter.run(RowBatch(tokens, positions, stream, caches, np.flatnonzero(wanted)))
            else:
                out = np.empty((sum(counts), self.config.vocab_size), np.float32)
                done = 0
                for start in range(0, len(tokens), MAX_ROWS):
                    part = slice(start, start + MAX_ROWS)
                    rows = np.flatnonzero(wanted[part])
                    batch = RowBatch(tokens[part], positions[part], stream[part], caches, rows)
                    out[done : done + len(rows)] = self._interpreter.run(batch)
                    done += len(rows)
            for cache, ids, _ in checked:
                cache.advance(len(ids))
        return np.split(out, np.cumsum(counts)[:-1]) if len(counts) > 1 else [out]

    def check_tokens(self, tokens: Tokens) -> np.ndarray:
        """Token ids as int64 [n]; EmptyInput if there are none, TokenOutOfRange if one is no id of this vocabulary."""
        ids = np.asarray(tokens)
        if ids.size == 0:
            raise EmptyInput("a pass needs at least one token, got none")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise TokenOutOfRange(
                f"tokens must be a flat sequence of integers, got {ids.dtype} of shape {list(ids.shape)}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            bad = low if low < 0 else high
            raise TokenOutOfRange(f"token id {bad} is outside the vocabulary of {self.config.vocab_size}")
        return ids.astype(np.int64)

    def _check_requests(self, requests: Sequence[Request]) -> list[tuple[KvCache, np.ndarray, str]]:
        if not requests:
            raise EmptyInput("a pass needs at least one stream, got none")
        checked = []
        for i, (cache, tokens, want) in enumerate(requests):
            if not isinstance(cache, KvCache):
                raise KvCacheShapeMismatch(f"stream {i}: expected a KvCache, got {type(cache).__name__}")
            if want not in _WANTS:
                raise InvalidOption(f"stream {i}: want must be one of {', '.join(_WANTS)}, got {want!r}")
            if cache.geometry != self._geometry or cache.dtype != self.cache_dtype:
                raise KvCacheShapeMismatch(
                    f"stream {i}: the cache was not made by this model (geometry or dtype differ)"
                )
            if cache.fingerprint != self._fingerprint:
                raise KvCacheShapeMismatch(
                    f"stream {i}: the cache belongs to another model; use this model's new_cache()"
                )
            ids = self.check_tokens(tokens)
            if cache.len + len(ids) > min(cache.capacity, self.context):
                raise KvCacheOverflow(
                    f"stream {i}: {len(ids)} tokens at position {cache.len} pass the capacity of {cache.capacity}"
                    + ("" if cache.capacity <= self.context else f" or the context of {self.context}")
                )
            checked.append((cache, ids, want))
        if len({id(c) for c, _, _ in checked}) != len(checked):
            raise DuplicateCache("one cache appears in two streams of a pass; every stream needs its own")
        return checked

    @contextmanager
    def _own(self) -> Iterator[None]:
        """One thread at a time; the same thread twice would wait for itself, so that is an error."""
        if self._process != os.getpid():  # forked, perhaps while a thread that does not exist here held the lock
            self._lock, self._owner, self._process = threading.Lock(), None, os.getpid()
        me = threading.get_ident()
        if self._owner == me:
            raise ReentrantForward(
                "this model is in the middle of a pass; an op or host stage cannot start another one"
            )
        with self._lock:
            self._owner = me
            try:
                yield
            finally:
                self._owner = None

    @contextmanager
    def override(self, op: str, function: Callable[..., np.ndarray]) -> Iterator[Model]:
        """Inside the `with`, `function` takes the place of an op.

        The signatures are those of the functions in `fucina.ops.naive`: rms_norm(x [n], weight [n], eps),
        linear(matrix [rows, cols], x [cols]), rope(x [heads, head_dim], cos, sin, pairing),
        attention(q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim], scale), swiglu(gate, up),
        geglu(gate, up).  Wrong shapes or values that are not finite come back as a ModelError that names the function.
        """
        if op not in _OVERRIDABLE:
            raise InvalidOption(f"op must be one of {', '.join(_OVERRIDABLE)}, got {op!r}")
        with self._own():
            restore = self._interpreter.override(op, function)
        try:
            yield self
        finally:
            with self._own():
                restore()

    # --- text ---------------------------------------------------------------------------------------------------------

    def generate(self, prompt: str | bytes | Tokens, **options: Any) -> Generation | GenerationStream:
        """Continue a prompt; see `fucina.generation.generate` for the options."""
        return generate(self, prompt, **options)
