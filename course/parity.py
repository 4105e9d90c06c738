"""Your code inside the real engine, side by side with ours and with llama.cpp.

`Parity` holds one model, opened by every engine that is here.  All of them read the same prompt and then the same
continuation, token by token; what is compared is what each of them would have said next::

    parity = Parity("smollm2")
    parity.op("swiglu", mine)              # your function in place of an op
    parity.decoder("Q4_1", mine)           # your block decoder under every matrix of that format
    parity.stream(open_mine)               # a whole forward of your own

The float32 reference is our NumPy interpreter.  Speed is that of the fastest step: whatever else the machine does only ever
makes a step slower.  A function that returns a wrong shape, returns NaN or raises comes
back as a message that names it, and the engine is shown to give the same bits as before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from course.parity_report import Comparison, Row, blame, origin
from fucina import Model, load
from fucina.errors import PeerNotFound, WorkerFailed
from fucina.gguf import dequantize
from fucina.measure.duel import Side, Worker, find_peer

Rows = Callable[[Sequence[int]], np.ndarray]  # the next tokens of one stream -> logits [tokens, vocab]
REFERENCE, NATIVE, PEER = "ours, NumPy in float32", "ours, compiled", "llama.cpp"
PATIENCE = 60.0  # seconds that a block decoder may take for a whole model


class Parity:
    """One model in several engines.

    Parameters
    ----------
    model : Model or str
        A model of the native backend, or a name or path that `fucina.load` knows.
    prompt : str
    tokens : int
        How many tokens of the continuation are compared, from 2 on.
    peer : bool
        Look for llama.cpp too (in this Python, or in the one that FUCINA_LLAMA_PYTHON names).
    """

    def __init__(
        self,
        model: Model | str = "smollm2",
        prompt: str = "The capital of France is",
        tokens: int = 8,
        peer: bool = True,
    ) -> None:
        if tokens < 2:
            raise ValueError(f"tokens must be 2 or more, got {tokens}")
        self.native = load(model) if isinstance(model, str) else model
        self.ids = self.native.tokenizer.encode_prompt(prompt)
        self.prompt, self.tokens, self.peer = prompt, tokens, peer
        self._naive: Model | None = None
        self._said: list[int] = []  # what the reference says, token by token
        self._logits = np.empty((0, 0), np.float32)  # of the reference, [positions, vocab]
        self._ours: list[Row] = []
        self._bits = b""  # of the compiled engine's logits
        self._notes: list[str] = []

    @property
    def naive(self) -> Model:
        """The same model in our NumPy interpreter, opened when it is first needed."""
        if self._naive is None:
            self._naive = load(
                self.native.path, backend="naive", context=self.native.context, cache_dtype=self.native.cache_dtype
            )
        return self._naive

    # --- what can be compared -----------------------------------------------------------------------------------------

    def op(self, op: str, function: Callable[..., np.ndarray]) -> Comparison:
        """`function` in place of an op (see `Model.override`), in NumPy and in the compiled engine."""
        with self.naive.override(op, function):
            pass  # a name that is no op is no fault of the function
        self._measure_ours()
        rows: list[Row] = []
        troubles: list[str] = []
        for who, model in (("yours, in NumPy", self.naive), ("yours, in the compiled engine", self.native)):
            row, trouble = self._try(who, function, _stream_of(model), partial(model.override, op, function))
            rows, troubles = [*rows, row], [*troubles, *trouble]
        return self._told(f"{origin(function)} in place of {op}", rows, troubles)

    def decoder(self, format: str, function: Callable[[np.ndarray], np.ndarray]) -> Comparison:
        """`function` as the decoder of every matrix stored in `format`, in NumPy."""
        title = f"{origin(function)} as decoder of {format}"
        chosen = [t for t in self.native._file.tensors.values() if t.ggml_type.name == format]
        if not chosen:
            there = sorted({t.ggml_type.name for t in self.native._file.tensors.values()})
            raise ValueError(f"{self.native.path.name} holds no {format}; it holds {', '.join(there)}")
        least = min(chosen, key=lambda t: t.nbytes)
        few = least.rows()[:64]
        start = perf_counter()
        try:
            function(few)
        except (Exception, SystemExit) as error:
            return Comparison(title, "", [], [blame(function, error)])
        whole = (perf_counter() - start) * sum(t.nbytes for t in chosen) / few.nbytes
        if whole > PATIENCE:
            note = (
                f"{origin(function)} would take about {whole / 60:.0f} minutes for this model. Let NumPy work on "
                "all rows and blocks at once, without a Python loop over them."
            )
            return Comparison(title, "", [], [note])
        self._measure_ours()
        mine = load(
            self.native.path,
            backend="naive",
            context=self.native.context,
            cache_dtype=self.native.cache_dtype,
            dequantize={format: function},
        )
        row, troubles = self._try("yours, in NumPy", function, _stream_of(mine), nullcontext)
        mine.close()
        if row.ran:
            worst = np.abs(np.asarray(function(few), np.float64) - dequantize(few, format)).max()
            troubles = [f"{len(few)} rows of {least.name} decoded: largest difference from ours {worst:.3g}."]
        return self._told(title, [row], troubles)

    def stream(self, open_mine: Callable[[], Rows], name: str = "yours, your own forward") -> Comparison:
        """A forward of your own.  `open_mine()` begins a stream: a function from next tokens to logits [n, vocab]."""
        self._measure_ours()
        row, troubles = self._try(name, open_mine, open_mine, nullcontext)
        return self._told(origin(open_mine), [row], troubles)

    def close(self) -> None:
        """Let go of the NumPy model and its float32 weights."""
        if self._naive is not None:
            self._naive.close()
            self._naive = None

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _measure_ours(self) -> None:
        """The engines that need nothing of the learner: measured once."""
        if self._ours:
            return
        _stream_of(self.naive)()(self.ids[:1])  # decodes the weights: not part of anybody's time
        reference, _ = self._run(REFERENCE, _stream_of(self.naive))
        native, logits = self._run(NATIVE, _stream_of(self.native))
        self._ours, self._bits = [reference, native], logits.tobytes()
        if self.peer:
            try:
                self._ours.append(self._run_peer(find_peer()))
            except PeerNotFound:
                self._notes.append("llama.cpp is not installed here, so it has no row.")
            except WorkerFailed as error:
                self._notes.append(f"llama.cpp has no row: {error}")

    def _run(self, who: str, open_stream: Callable[[], Rows]) -> tuple[Row, np.ndarray]:
        """Read the prompt, then the reference's continuation token by token; the first run makes the reference."""
        rows = open_stream()
        got = [_checked(rows, self.ids, self.native.config.vocab_size)]
        seconds = []
        for i in range(self.tokens - 1):
            token = self._said[i] if i < len(self._said) else int(got[-1][-1, : self.native.n_tokens].argmax())
            start = perf_counter()
            got.append(_checked(rows, [token], self.native.config.vocab_size))
            seconds.append(perf_counter() - start)
        logits = np.concatenate(got)
        if not self._said:
            self._logits = logits
            self._said = self._likeliest(logits)
        return self._row(who, logits, min(seconds)), logits

    def _likeliest(self, logits: np.ndarray) -> list[int]:
        """The likeliest token after the prompt and after each token said; a padded vocabulary has more logits than tokens."""
        return [int(t) for t in logits[len(self.ids) - 1 :, : self.native.n_tokens].argmax(axis=1)]

    def _row(self, who: str, logits: np.ndarray, seconds: float) -> Row:
        said = self._likeliest(logits)
        agree = [a == b for a, b in zip(said, self._said, strict=True)]
        error = (logits - self._logits).astype(np.float64)
        first = "" if all(agree) else self.native.tokenizer.decode([said[agree.index(False)]])
        return Row(
            who,
            sum(agree),
            len(agree),
            first,
            float(np.sqrt(np.mean(error**2))),
            float(np.abs(error).max()),
            1 / seconds,
        )

    def _run_peer(self, python: str) -> Row:
        worker = Worker(Side(PEER, "llama.cpp", str(self.native.path), {"threads": self.native.threads}, python))
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder, "logits.npy"))
                worker.ask("logits", ids=[*self.ids, *self._said[:-1]], path=path, capacity=256)
                logits = np.load(path)
            seconds = worker.ask("decode", context=len(self.ids), steps=self.tokens - 1, capacity=256)
        finally:
            worker.close()
        return self._row(PEER, logits, min(seconds))

    def _try(
        self, who: str, function: Any, open_stream: Callable[[], Rows], inside: Callable[[], Any]
    ) -> tuple[Row, list[str]]:
        """Run the learner's code; what goes wrong becomes a message, and then the engine shows that it is unharmed."""
        try:
            with inside():
                return self._run(who, open_stream)[0], []
        except (Exception, SystemExit) as error:
            _, again = self._run(NATIVE, _stream_of(self.native))
            after = (
                "The engine itself is unharmed: it gives the same bits as before."
                if again.tobytes() == self._bits
                else "The engine gives different bits than before: that is a fault of ours, please report it."
            )
            return Row(who), [blame(function, error), after]

    def _told(self, title: str, mine: list[Row], troubles: list[str]) -> Comparison:
        reference, *others = self._ours
        rows = [reference, mine[0], others[0], *mine[1:], *others[1:]]
        text = self.prompt + self.native.tokenizer.decode(self._said)
        return Comparison(title, text, rows, [*dict.fromkeys(troubles), *self._notes])


def _stream_of(model: Model) -> Callable[[], Rows]:
    def open_stream() -> Rows:
        cache = model.new_cache(256 if model.context >= 256 else None)
        return lambda tokens: model.forward(tokens, cache)

    return open_stream


def _checked(rows: Rows, tokens: Sequence[int], vocab: int) -> np.ndarray:
    logits = np.asarray(rows(list(tokens)))
    if logits.shape != (len(tokens), vocab) or logits.dtype.kind != "f":
        raise ValueError(
            f"the logits of {len(tokens)} tokens are {logits.dtype} {list(logits.shape)}, "
            f"expected float32 {[len(tokens), vocab]}"
        )
    if not np.isfinite(logits).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(logits))} logits are not finite")
    return logits.astype(np.float32)
