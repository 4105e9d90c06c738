"""The ops that a family's forward is written in: what each takes, returns and means.

A forward is called with an interpreter of this vocabulary: `ops/naive.py` computes at once in NumPy, `ops/native`
records what the kernels will do.  `T` is whatever the interpreter passes around: arrays, or symbols of a recording.
A tensor is always [rows, columns], float32; a row belongs to one token of one stream.  Before `output_rows` a tensor
has the m rows of the pass, after it the n rows whose logits were asked for.  Every op returns a new tensor (`split` may
return views: nothing is ever changed in place), and a row's result depends on nothing but that row, the weights, and
what its stream has stored before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..cache.parts import Part
from ..errors import ModelError
from ..gguf.weights import Matrix
from .rope import RopeSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How the rows of a layer look back.

    heads : query heads; each key head serves heads / kv_heads of them (grouped-query attention).
    scale : factor on every score before the softmax, usually 1 / sqrt(k_dim).
    window : positions that a row sees, its own included; 0 means all.
    """

    heads: int
    scale: float
    window: int = 0


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How the rows of a layer are sent to experts.

    top_k : experts of each row.
    gating : what makes odds of a row's scores: "softmax" over all experts, or "sigmoid" of each.
    normalise : the odds of the chosen experts are divided by their sum.
    scale : factor on the weights, after that.
    groups, groups_used : experts lie in so many groups of equal size, and a row chooses among those of its best
        `groups_used` groups.  A group is as good as its two best experts together.
    """

    top_k: int
    gating: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    def check(self, experts: int) -> None:
        """ModelError unless so many experts can be chosen from in this way."""
        if self.gating not in ("softmax", "sigmoid"):
            raise ModelError(f"gating {self.gating!r} is not implemented; implemented: softmax, sigmoid")
        size = experts // self.groups if 1 <= self.groups <= experts else 0
        if size * self.groups != experts or (self.groups > 1 and size < 2):
            raise ModelError(f"{experts} experts cannot form {self.groups} groups of one size, two at least in each")
        if not 1 <= self.groups_used <= self.groups:
            raise ModelError(f"a row can use 1 to {self.groups} groups of experts, got {self.groups_used}")
        if not 1 <= self.top_k <= size * self.groups_used:
            raise ModelError(f"a row can be sent to 1 to {size * self.groups_used} experts, got {self.top_k}")


class Ops(Protocol[T]):
    """The vocabulary.  Shapes are given as [m, columns]; `w` is a weight in its file's format.

    A recording interpreter raises ModelError at load for shapes that do not fit together.
    """

    # --- in and out ---------------------------------------------------------------------------------------------------

    def embed(self, w: Matrix, scale: float = 1.0) -> T:
        """Row `token` of the embedding matrix for every row of the pass, times `scale`.  w [vocab, dim] -> [m, dim]"""

    def output_rows(self, x: T) -> T:
        """The rows whose logits were asked for.  [m, dim] -> [n, dim]

        What depends on a row's position or stream (`rope`, `attention`, `conv`, `delta_rule`) must come before it.
        """

    # --- products -----------------------------------------------------------------------------------------------------

    def linear(self, x: T, w: Matrix) -> T:
        """x Wᵀ.  x [m, inputs], w [outputs, inputs] -> [m, outputs]"""

    def linear_heads(self, x: T, w: Matrix, heads: int) -> T:
        """Each head by its own matrix.  x [m, heads · inputs], w [heads, outputs, inputs] -> [m, heads · outputs]"""

    # --- number by number ---------------------------------------------------------------------------------------------

    def add(self, x: T, y: T) -> T:
        """x + y: the residual connection.  [m, n], [m, n] -> [m, n]"""

    def mul(self, x: T, y: T) -> T:
        """x · y, number by number; a y of one column is one factor for each row.  [m, n], [m, n] or [m, 1] -> [m, n]"""

    def scale(self, x: T, w: Matrix | float) -> T:
        """x · w, where w is a vector [n] that all rows share, or one number: a float, or a vector [1].

        [m, n] -> [m, n]
        """

    def bias(self, x: T, w: Matrix) -> T:
        """x + w.  x [m, n], w [n] -> [m, n]"""

    def sigmoid(self, x: T) -> T:
        """1 / (1 + exp(-x)).  [m, n] -> [m, n]"""

    def softplus(self, x: T) -> T:
        """log(1 + exp(x)): positive, close to x where x is large.  [m, n] -> [m, n]"""

    def softcap(self, x: T, cap: float) -> T:
        """cap · tanh(x / cap): close to x where x is small, never above `cap`.  [m, n] -> [m, n]"""

    def swiglu(self, gate: T, up: T) -> T:
        """silu(gate) · up, where silu(x) = x · sigmoid(x).  (Shazeer 2020, arXiv 2002.05202.)  [m, n] -> [m, n]"""

    def geglu(self, gate: T, up: T) -> T:
        """gelu(gate) · up, with the tanh form of gelu.  [m, n] -> [m, n]"""

    # --- heads --------------------------------------------------------------------------------------------------------

    def rms_norm(self, x: T, w: Matrix | None, eps: float, heads: int = 1) -> T:
        """Scale each row, or each of its `heads` parts, to a root mean square of 1, then by w [n / heads], if any.

        [m, n] -> [m, n].  (Zhang and Sennrich 2019, arXiv 1910.07467.)
        """

    def rope(self, x: T, heads: int, spec: RopeSpec) -> T:
        """Turn each head of each row by the row's position.  [m, heads · head_dim] -> the same shape"""

    def split(self, x: T, *widths: int, heads: int = 1) -> tuple[T, ...]:
        """Cut each head into parts of these widths.  [m, heads · sum(widths)] -> one [m, heads · width] per width"""

    def concat(self, x: T, y: T, heads: int = 1) -> T:
        """Per head: the numbers of x, then those of y.  [m, heads · a], [m, heads · b] -> [m, heads · (a + b)]"""

    # --- what a stream keeps ------------------------------------------------------------------------------------------

    def attention(self, slot: int, q: T, k: T | None, v: T | None, spec: AttentionSpec) -> T:
        """Store keys and values, then let each row look at its stream's positions up to its own.

        slot : index into the family's parts; it must be a `Kv` or a `Latent`.

        q [m, heads · k_dim], k [m, kv_heads · k_dim], v [m, kv_heads · v_dim] -> [m, heads · v_dim].

        k and v are stored first, each at its row's position, rounded to the dtype of the state.  v is None for a
        `Latent` slot, whose values lie inside its keys.  With k and v None nothing is stored: the rows look at what an
        earlier layer of the same pass stored in that slot.
        """

    def conv(self, slot: int, x: T, w: Matrix) -> T:
        """Causal convolution, each column by itself: a row sees the latest rows of its stream, its own included.

        slot : index into the family's parts; it must be a `Recurrent` of shape (taps - 1, n): the latest inputs, the
        oldest first, zeros before the first row.
        w [n, taps], the oldest tap first.  [m, n] -> [m, n]
        """

    def delta_rule(self, slot: int, q: T, k: T, v: T, decay: T, beta: T, heads: int) -> T:
        """Gated delta rule: a matrix per head instead of a cache.  (Yang and others 2024, arXiv 2412.06464.)

        slot : index into the family's parts; it must be a `Recurrent` of shape (heads, k_dim, v_dim).
        q, k [m, key_heads · k_dim], v [m, heads · v_dim], decay, beta [m, heads] -> [m, heads · v_dim].
        `heads` is a multiple of `key_heads`: head h has the query and the key of head h mod key_heads.
        For the rows of a stream in order, and each head with its matrix S [k_dim, v_dim]:

            S = exp(decay) · S
            S = S + k ⊗ (beta · (v - k S))
            out = q S
        """

    # --- experts ------------------------------------------------------------------------------------------------------

    def route(
        self, x: T, w: Matrix, spec: RouterSpec, bias: Matrix | None = None, scales: Matrix | None = None
    ) -> tuple[T, T]:
        """The experts that each row is sent to, best first, and their weights.

        x [m, dim], w [experts, dim] -> (experts [m, top_k], weights [m, top_k]).

        Scores x Wᵀ become odds (`spec.gating`).  The top_k experts with the largest odds + bias are chosen, ties to the
        lower number; `bias` [experts] takes part in the choice alone.  A chosen expert's weight is its odds, divided by
        the sum over the chosen ones (at least 2^-14) where `spec.normalise` says so, times `spec.scale`, times
        scales[expert] where there are `scales` [experts].
        """

    def moe_ffn(
        self, x: T, experts: T, weights: T, gate: Matrix, up: Matrix | None, down: Matrix, gating: str = "swiglu"
    ) -> T:
        """Sum over a row's experts e, best first, of weight · down[e] gated(gate[e] x, up[e] x).

        experts, weights : as `route` returns them.  gate, up [experts, ffn_dim, dim], down [experts, dim, ffn_dim].
        Without `up`, gate [experts, 2 · ffn_dim, dim] holds both, an expert's rows of the gate first.
        gating : the op that is meant by gated, "swiglu" or "geglu".
        [m, dim] -> [m, dim]
        """


@dataclass(frozen=True, slots=True)
class LoadedFamily:
    """A family whose file has been read: what an interpreter takes.

    forward : called as forward(ops, config, weights); returns the logits, [n, vocab].
    parts : what a stream keeps, one part per slot.
    """

    architecture: str
    config: Any
    weights: Any
    forward: Callable[..., Any]
    parts: tuple[Part, ...]

    @property
    def head(self) -> Matrix | None:
        """The output matrix: what it multiplies, of `output_rows`, are hidden states."""
        return getattr(self.weights, "output", None)
