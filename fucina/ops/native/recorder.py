"""The recorder: the op vocabulary, run once over symbolic tensors, leaves a schedule of kernel calls.

A family's forward is called with a `Recorder` in place of an interpreter.  Nothing is computed: every op adds one or
more records to the schedule and returns the `Value` that they will write.  What the ops mean says `ops/vocabulary.py`.
"""

from __future__ import annotations

from typing import Any

from ...cache.dtypes import DTYPES
from ...cache.parts import Kv, Latent, Layout, Recurrent, Slot
from ...errors import ModelError
from ...gguf.weights import Matrix
from ...kernels import attention as attention_kernels
from ...kernels import record as R
from ...kernels.delta import CONV_COLUMNS
from ...kernels.panels import SCRATCH_BYTES
from ..override import Overrides
from ..rope import RopeSpec
from ..vocabulary import AttentionSpec
from .products import Products
from .recording import Ones, Sources
from .schedule import Value
from .spaces import OUTPUT, PASS, STREAMS

PARTIAL = "partial results"  # the resource that split attention writes and combine reads
LATENT_HEADS = 8  # query heads, at most, that read the keys of a latent together


class Recorder(Products):
    """Interpreter of the op vocabulary that records instead of computing.

    Parameters
    ----------
    sources : addresses of weights and tables.
    layout : where the parts of a stream's state lie.
    cache_dtype : "f16", "q8_0" or "f32".
    overrides : functions that take the place of ops.
    head : see `Recording`.

    Attributes
    ----------
    scratch, part : bytes that kernels need per thread, and attention per partial result.
    """

    def __init__(
        self,
        sources: Sources,
        layout: Layout,
        cache_dtype: str = "f16",
        overrides: Overrides | None = None,
        head: Matrix | None = None,
    ) -> None:
        super().__init__(sources, overrides, head)
        self.scratch, self.part = SCRATCH_BYTES, 64
        self._layout, self._dtype = layout, cache_dtype
        DTYPES[cache_dtype].check(layout.parts)
        self._item = -(-DTYPES[cache_dtype].nbytes(32) // 32)  # bytes of a number, rounded up

    # --- in and out ---------------------------------------------------------------------------------------------------

    def embed(self, w: Matrix, scale: float = 1.0) -> Value:
        packed = self._sources.matrix(w)
        out = self.value("embedding", w.shape[1])
        params = {"w": packed.address, "cols": out.cols, "out": out, "scale": float(scale)}
        self.rows(f"embed.{packed.format}", params, PASS, writes=[out], cost=2 * out.cols, weight=w)
        return out

    def output_rows(self, x: Value) -> Value:
        self.needs_every_row(x, "output_rows")
        x = self.joined(x)
        out = self.value("output rows", x.cols, OUTPUT)
        params = {"x": x, "x_step": x.step, "out": out, "cols": x.cols}
        self.rows("gather_rows", params, OUTPUT, whole=[x], writes=[out], cost=x.cols)
        return out

    # --- number by number ---------------------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        return self.columnwise("add", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        if y.cols == 1 != x.cols and y.space == x.space:
            y = self.joined(y)
            return self.one_input("mul_rows", x, [y], y=y, y_step=y.step)
        return self.columnwise("mul", x, y)

    def swiglu(self, gate: Value, up: Value) -> Value:
        return self.replaced("swiglu", [gate, up], gate.cols) or self.columnwise("swiglu", gate, up)

    def geglu(self, gate: Value, up: Value) -> Value:
        return self.replaced("geglu", [gate, up], gate.cols) or self.columnwise("geglu", gate, up)

    def scale(self, x: Value, w: Matrix | float) -> Value:
        if isinstance(w, (int, float)):
            return self.one_input("mul", x, y=self._sources.constant(float(w), x.cols), y_step=0)
        if w.shape == (1,) != (x.cols,):
            return self.scale(x, float(w.float32()[0]))
        return self.one_input("mul", x, y=self._shared(x, w), y_step=0)

    def bias(self, x: Value, w: Matrix) -> Value:
        return self.one_input("add", x, y=self._shared(x, w), y_step=0)

    def _shared(self, x: Value, w: Matrix) -> int:
        """Address of a vector that all rows of x share."""
        if w.shape != (x.cols,):
            raise ModelError(f"{w.name} has shape {list(w.shape)}, expected [{x.cols}]")
        return self._sources.vector(w)

    def sigmoid(self, x: Value) -> Value:
        return self.one_input("sigmoid", x)

    def softplus(self, x: Value) -> Value:
        return self.one_input("softplus", x)

    def softcap(self, x: Value, cap: float) -> Value:
        return self.one_input("softcap", x, cap=float(cap))

    # --- heads --------------------------------------------------------------------------------------------------------

    def rms_norm(self, x: Value, w: Matrix | None, eps: float, heads: int = 1) -> Value:
        width = x.cols // heads
        if width * heads != x.cols or (w is not None and w.shape != (width,)):
            got = "a norm" if w is None else f"{w.name} has shape {list(w.shape)}"
            raise ModelError(f"{got}, expected [{x.cols}] / {heads} heads")
        host = self.replaced("rms_norm", [x], x.cols, w or Ones(width), eps, heads)
        if host is not None:
            return host
        x, head = self.by_head(x, heads)
        out = self.value(f"norm({x.name})", x.cols, x.space)
        params = {"x": x, "x_step": x.step, "x_head": head, "out": out}
        params["w"] = self._sources.constant(1.0, width) if w is None else self._sources.vector(w)
        params |= {"n": width, "heads": heads, "eps": float(eps)}
        self.rows("rms_norm", params, x.space, local=[x], writes=[out], cost=x.cols, weight=w)
        return out

    def rope(self, x: Value, heads: int, spec: RopeSpec) -> Value:
        width = x.cols // heads
        self.needs_every_row(x, "rope")
        if width * heads != x.cols or spec.dims > width:
            raise ModelError(f"RoPE of {spec.dims} numbers does not fit {heads} heads in {x.cols} columns")
        host = self.replaced("rope", [x], x.cols, None, heads, spec)
        if host is not None:
            return host
        x, head = self.by_head(x, heads)
        out = self.value(f"rope({x.name})", x.cols)
        params = {"x": x, "x_step": x.step, "x_head": head, "out": out, "heads": heads, "head_dim": width}
        params |= {"dims": spec.dims, "table": self._sources.rope(spec)}
        self.rows(f"rope.{spec.pairing}", params, PASS, local=[x], writes=[out], cost=x.cols)
        return out

    def split(self, x: Value, *widths: int, heads: int = 1) -> tuple[Value, ...]:
        if sum(widths) * heads != x.cols or min(widths, default=0) < 1:
            raise ModelError(f"{x.cols} columns cannot be split into {heads} heads of {' + '.join(map(str, widths))}")
        return self.views(x, widths, heads)

    def concat(self, x: Value, y: Value, heads: int = 1) -> Value:
        if x.space != y.space or x.cols % heads or y.cols % heads:
            raise ModelError(f"{x.cols} and {y.cols} columns cannot be joined head by head, {heads} heads")
        (x, x_head), (y, y_head) = self.by_head(x, heads), self.by_head(y, heads)
        out = self.value(f"concat({x.name}, {y.name})", x.cols + y.cols, x.space)
        params = {"x": x, "x_step": x.step, "x_head": x_head, "x_cols": x.cols // heads, "out": out, "heads": heads}
        params |= {"y": y, "y_step": y.step, "y_head": y_head, "y_cols": y.cols // heads}
        self.rows("concat", params, x.space, local=[x, y], writes=[out], cost=out.cols)
        return out

    # --- what a stream keeps ------------------------------------------------------------------------------------------

    def attention(self, slot: int, q: Value, k: Value | None, v: Value | None, spec: AttentionSpec) -> Value:
        s = self._slot(slot, q, Kv | Latent, "attention")
        part: Any = s.part
        latent, k_dim, v_dim = isinstance(part, Latent), part.k_dim, part.v_dim
        kv_heads, window = (1, 0) if latent else (part.kv_heads, part.window)
        if k is not None:
            self._append(slot, s, k, v, kv_heads)
        if spec.heads % kv_heads or q.cols != spec.heads * k_dim:
            raise ModelError(
                f"slot {slot}: {spec.heads} heads in {q.cols} columns do not fit {kv_heads} heads of {k_dim}"
            )
        if window and not 0 < spec.window <= window:
            raise ModelError(f"slot {slot} keeps {window} positions, a row cannot see {spec.window or 'all'}")
        host = self.replaced("attention", [q], spec.heads * v_dim, None, slot, spec, uses=[rows_of(slot)])
        if host is not None:
            return host
        q, group = self.joined(q), spec.heads // kv_heads
        if latent:  # its query heads are cut into parts, which threads share like kv heads
            group = max(g for g in range(1, LATENT_HEADS + 1) if spec.heads % g == 0)
        units, shape = spec.heads // group, f"{self._dtype}.{group}.{k_dim}.{v_dim}"
        self.scratch = max(self.scratch, attention_kernels.scratch_bytes(group, k_dim, v_dim))
        self.part = max(self.part, attention_kernels.part_bytes(group, v_dim))
        out = self.value("attention", spec.heads * v_dim)
        params = {"q": q, "q_step": q.step, "out": out, "kv_heads": units, "area": R.area_word(s.area)}
        params |= {"k_offset": s.k_offset, "v_offset": s.v_at if latent else s.v_offset}
        params |= {"window": int(spec.window), "scale": float(spec.scale)}
        # a position costs its key and value, and some arithmetic per query head
        cost = (k_dim + v_dim) * (self._item + group // 2)
        at: dict[str, Any] = {
            "whole": [q],
            "writes": [out],
            "uses": [rows_of(slot)],
            "changes": [PARTIAL],
            "cost": cost,
        }
        self.attends(f"{'latent' if latent else 'attention'}.{shape}", params, units, **at)
        after: dict[str, Any] = {"local": [out], "writes": [out], "uses": [PARTIAL], "cost": 4 * group * v_dim}
        self.rows(f"combine.{shape}", params, PASS, units, **after)
        return out

    def _append(self, slot: int, s: Slot, k: Value, v: Value | None, heads: int) -> None:
        """Store each row's key and value at its position."""
        part: Any = s.part
        k_dim, v_dim = part.k_dim, 0 if isinstance(part, Latent) else part.v_dim
        self.needs_every_row(k, "attention")
        if (k.cols, v.cols if v else 0) != (heads * k_dim, heads * v_dim):
            got = f"{k.cols} and {v.cols if v else 'none'}"
            raise ModelError(f"slot {slot} keeps {heads} heads of {k_dim} and {v_dim}, got {got}")
        if k_dim % 8 or v_dim % 8:
            raise ModelError(f"slot {slot}: the fast engine needs heads of a multiple of 8, got {k_dim} and {v_dim}")
        k, v = self.joined(k), self.joined(v) if v else None
        params = {"key": k, "key_step": k.step, "value": v or 0, "value_step": v.step if v else 0, "heads": heads}
        params |= {"k_dim": k_dim, "v_dim": v_dim, "k_offset": s.k_offset, "v_offset": s.v_offset}
        params["area"] = R.area_word(s.area)
        reads = [k, v] if v else [k]
        cost = sum(x.cols for x in reads)
        self.rows(f"kv_append.{self._dtype}", params, PASS, local=reads, changes=[rows_of(slot)], cost=cost)

    def delta_rule(self, slot: int, q: Value, k: Value, v: Value, decay: Value, beta: Value, heads: int) -> Value:
        s = self._slot(slot, q, Recurrent, "delta_rule")
        part: Any = s.part
        k_dim, v_dim = part.shape[-2:] if len(part.shape) == 3 else (1, 1)
        key_heads = max(q.cols // k_dim, 1)
        got = (q.cols, k.cols, v.cols, decay.cols, beta.cols)
        expected = (key_heads * k_dim, key_heads * k_dim, heads * v_dim, heads, heads)
        if part.shape != (heads, k_dim, v_dim) or got != expected or heads % key_heads:
            raise ModelError(f"slot {slot} keeps {part.shape}, got {heads} heads in {got} columns")
        inputs = {"q": q, "key": k, "value": v, "decay": decay, "beta": beta}
        inputs = {name: self.joined(x) for name, x in inputs.items()}
        steps = {f"{name}_step": x.step for name, x in inputs.items()}
        out = self.value("delta rule", heads * v_dim)
        params = {**inputs, **steps, "out": out, "heads": heads, "k_dim": k_dim, "v_dim": v_dim}
        params |= {"key_heads": key_heads, "offset": s.k_offset, "area": R.area_word(s.area)}
        more: dict[str, Any] = {"whole": list(inputs.values()), "writes": [out], "changes": [rows_of(slot)]}
        self.rows("delta_rule", params, STREAMS, heads, cost=k_dim * v_dim, **more)
        return out

    def conv(self, slot: int, x: Value, w: Matrix) -> Value:
        s = self._slot(slot, x, Recurrent, "conv")
        part: Any = s.part
        if len(w.shape) != 2 or w.shape[0] != x.cols or part.shape != (w.shape[1] - 1, x.cols):
            raise ModelError(f"slot {slot} keeps {part.shape}, got {x.cols} columns and {w.name} {list(w.shape)}")
        x = self.joined(x)
        out = self.value("conv", x.cols)
        parts = -(-x.cols // CONV_COLUMNS)
        params = {"x": x, "x_step": x.step, "w": self._sources.vector(w), "out": out, "cols": x.cols, "parts": parts}
        params |= {"taps": w.shape[1], "offset": s.k_offset, "area": R.area_word(s.area)}
        more: dict[str, Any] = {"whole": [x], "writes": [out], "changes": [rows_of(slot)]}
        self.rows("conv", params, STREAMS, parts, cost=8 * w.shape[1] * CONV_COLUMNS, weight=w, **more)
        return out

    def _slot(self, slot: int, q: Value, kind: Any, op: str) -> Slot:
        self.needs_every_row(q, op)
        if not 0 <= slot < len(self._layout.slots) or not isinstance(self._layout.slots[slot].part, kind):
            raise ModelError(f"{op}: slot {slot} is not a part of the family that {op} can use")
        return self._layout.slots[slot]


def rows_of(slot: int) -> str:
    """Name of the resource that a slot of the state is."""
    return f"state of slot {slot}"
