"""Ops that multiply with weights: matrices, a matrix per head, and experts."""

from __future__ import annotations

from typing import Any

from ...errors import ModelError
from ...gguf.weights import Matrix
from ...kernels.formats import FORMATS
from ..vocabulary import RouterSpec
from .recording import UNIT, Recording
from .schedule import Value
from .spaces import LOGITS, OUTPUT, PASS, routed


class Products(Recording):
    """The part of the op vocabulary that multiplies."""

    # --- products -----------------------------------------------------------------------------------------------------

    def linear(self, x: Value, w: Matrix) -> Value:
        n = self._fits(x, w, 2)[0]
        if w is self.head and x.space == OUTPUT:
            x = self.hidden = self.joined(x)
        return self.replaced("linear", [x], n, w) or self._product(x, w)

    def _product(self, x: Value, w: Matrix) -> Value:
        n, cols = self._fits(x, w, 2)
        packed = self._sources.matrix(w)
        fmt = FORMATS[packed.format]
        source, data = self.product_input(x, fmt)
        space = LOGITS if x is self.hidden else x.space  # rows that want no logits come last, and are left out
        out = self.value(w.name.removesuffix(".weight"), n, space)
        params = {"w": packed.address, "cols": cols, **data, "out": out, "n": n}
        more: dict[str, Any] = {"whole": [source], "writes": [out], "cost": cols // fmt.cols * fmt.raw, "weight": w}
        self.columns(f"linear.{packed.format}", params, space, n, **more)
        return out

    def linear_heads(self, x: Value, w: Matrix, heads: int) -> Value:
        count, n, cols = self._fits(x, w, 3, heads)
        packed = self._sources.matrix(w)
        fmt = FORMATS[packed.format]
        if count != heads or cols % fmt.cols:
            raise ModelError(
                f"{w.name} has {count} matrices of {cols} columns, expected {heads} in blocks of {fmt.cols}"
            )
        source, data = self.product_input(x, fmt)
        out = self.value(w.name.removesuffix(".weight"), heads * n, x.space)
        params = {"w": packed.address, "cols": cols, **data, "out": out, "n": n, "heads": heads}
        more: dict[str, Any] = {"whole": [source], "writes": [out], "cost": cols // fmt.cols * fmt.raw, "weight": w}
        self.columns(f"linear_heads.{packed.format}", params, x.space, heads * (-(-n // 8) * 8), **more)
        return out

    @staticmethod
    def _fits(x: Value, w: Matrix, dimensions: int, heads: int = 1) -> tuple[int, ...]:
        """Shape of a weight that x is multiplied with."""
        if len(w.shape) != dimensions:
            raise ModelError(f"{w.name} has shape {list(w.shape)}, expected {dimensions} dimensions")
        if w.shape[-1] * heads != x.cols:
            per_head = f" in {heads} heads" if heads > 1 else ""
            raise ModelError(f"{w.name} has {w.shape[-1]} columns, its input {x.cols}{per_head}")
        return w.shape

    # --- experts ------------------------------------------------------------------------------------------------------

    def route(
        self, x: Value, w: Matrix, spec: RouterSpec, bias: Matrix | None = None, scales: Matrix | None = None
    ) -> tuple[Value, Value]:
        scores = self._product(x, w)
        n, top_k = scores.cols, spec.top_k
        spec.check(n)
        for v in (bias, scales):
            if v is not None and v.shape != (n,):
                raise ModelError(f"{v.name} has shape {list(v.shape)}, expected [{n}], one number per expert")
        sizes = {"room": 2 * n + spec.groups, "experts": top_k, "weights": top_k}
        room, experts, weights = (self.value(name, cols, x.space) for name, cols in sizes.items())
        params = {"x": scores, "x_step": scores.step, "room": room, "experts": experts, "weights": weights}
        params |= {"n": n, "top_k": top_k, "sigmoid": int(spec.gating == "sigmoid"), "scale": float(spec.scale)}
        params |= {"normalise": int(spec.normalise), "groups": spec.groups, "groups_used": spec.groups_used}
        params |= {name: self._sources.vector(v) if v else 0 for name, v in (("bias", bias), ("scales", scales))}
        self.rows("route", params, x.space, local=[scores], writes=[room, experts, weights], cost=8 * n + 4 * n * top_k)
        return experts, weights

    def moe_ffn(
        self,
        x: Value,
        experts: Value,
        weights: Value,
        gate: Matrix,
        up: Matrix | None,
        down: Matrix,
        gating: str = "swiglu",
    ) -> Value:
        self.needs_every_row(x, "moe_ffn")
        count, space = gate.shape[0], routed(experts.cols)
        order, counts = self.value("order", 1, space), self.value("rows per expert", count, nbytes=4 * count)
        params = {"experts": experts, "order": order, "counts": counts, "n": count}
        self.columns("gather_experts", params, space, 1, 1, whole=[experts], writes=[order, counts], cost=8)
        one = lambda source, w: self._routed(source, w, experts, order, counts)
        first = one(x, gate)
        pair = (first, one(x, up)) if up else self.views(first, [first.cols // 2] * 2, 1)
        y = one(self.columnwise(gating, *pair), down)
        out = self.value("experts' sum", y.cols)
        params = {"x": y, "weights": weights, "out": out, "cols": y.cols, "top_k": experts.cols}
        more: dict[str, Any] = {"whole": [y, weights], "writes": [out], "cost": 4 * experts.cols}
        self.columns("sum_routed", params, PASS, y.cols, **more)
        return out

    def _routed(self, x: Value, w: Matrix, experts: Value, order: Value, counts: Value) -> Value:
        """Each routed row by the matrix of its expert; x has the rows of the pass, or the routed ones."""
        stack, n, cols = self._fits(x, w, 3)
        packed = self._sources.matrix(w)
        fmt = FORMATS[packed.format]
        if stack != counts.cols:
            raise ModelError(f"{w.name} has {stack} experts, expected {counts.cols}")
        source, data = self.product_input(x, fmt)
        out = self.value(w.name.removesuffix(".weight"), n, order.space)
        params = {"w": packed.address, "w_step": packed.step, "cols": cols, **data, "out": out, "n": n}
        params |= {
            "experts": experts,
            "order": order,
            "ends": counts,
            "per_row": experts.cols if x.space == PASS else 1,
        }
        more: dict[str, Any] = {
            "whole": [source, experts, order, counts],
            "writes": [out],
            "cost": cols // fmt.cols * fmt.raw,
            "weight": w,
        }
        self.columns(f"linear_routed.{packed.format}", params, order.space, n, UNIT, **more)
        return out
