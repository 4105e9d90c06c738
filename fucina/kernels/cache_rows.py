"""Rows of keys and values, from a pass into the planes of a state, in the state's number format."""

from __future__ import annotations

from ..cache.dtypes import TINY
from . import record as R
from .lang import F8, F32, I8, I32, Emitter, Value, vec
from .quantise import largest
from .registry import kernel
from .shapes import numbers_bytes


@kernel(
    "kv_append",
    ("f16", "f32", "q8_0"),
    rule="rows",
    params="key key_step value value_step heads k_dim v_dim k_offset v_offset area",
)
def kv_append(k: Emitter, dtype: str) -> None:
    """Writes each row's keys and values at its position of its stream's planes.  k_dim and v_dim are multiples of 8 (of
    32 in q8_0), v_dim is 0 where values are a part of the keys."""
    p = k.p
    with k.range(k.u0, k.u1) as r:
        base, stride = k.area(k.stream(k.row(r, R.STREAM)), p.area)
        position = k.row(r, R.POS) % stride
        sides = ((p.key, p.key_step, p.k_dim, p.k_offset), (p.value, p.value_step, p.v_dim, p.v_offset))
        for x, step, dim, offset in sides:
            with k.range(0, p.heads) as h:
                source = x + (r * step + h * dim) * 4
                to = base + numbers_bytes(dtype, stride * (offset + h * dim) + position * dim)
                with k.range(0, dim, 32 if dtype == "q8_0" else 8) as j:
                    at = to + numbers_bytes(dtype, j)
                    if dtype == "q8_0":
                        block(k, source + j * 4, at)
                    else:
                        v = k.load(F8, source + j * 4)
                        k.store(k.isa.to_half(k, v) if dtype == "f16" else v, at)


def block(k: Emitter, x: Value, to: Value) -> None:
    """32 numbers as a block of Q8_0; see `fucina.cache.dtypes`, which has the same bits."""
    ints = vec(I32, 8)
    d = largest(k, x).bits(F32) / 127.0
    inverse = k.splat(k.where(d > TINY, k.const(F32, 1.0) / d, 0.0))
    k.store(k.isa.to_half(k, k.splat(d)).lane(0), to)
    whole = []
    for j in range(4):
        y = k.load(F8, x + 32 * j) * inverse
        y = k.min(k.max(k.const(F8, -127.0), y), 127.0)  # in this order a NaN becomes -127
        q = y.int()
        rest = y - q.float()  # exact; halves go away from zero
        up, down = (k.where(which, k.const(ints, 1), 0) for which in (rest >= 0.5, rest <= -0.5))
        whole.append(q + up - down)
    k.store(k.concat([k.concat(whole[:2]), k.concat(whole[2:])]).narrow(I8), to + 2)
