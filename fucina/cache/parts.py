"""What a stream keeps between passes, as a family lists it: one part per slot, usually one slot per layer.

`Layout` decides where each part lies.  Slots are grouped into *areas*: one for all planes that keep every position, one
per distinct window, one for all recurrent parts.  The grouping depends on the family alone, so a kernel learns a slot's
area and offsets once, and per stream only the address and stride of each area (`State.words`).

In an area of planes with `stride` rows per plane, with `row = position % stride`:

    key of (head, position)    at  base + (stride * (k_offset + head * k_dim) + row * k_dim)         * itemsize
    value of (head, position)  at  base + (stride * (v_offset + head * v_dim) + row * v_step + v_at) * itemsize

In q8_0 that many numbers take 34 bytes for each 32 of them; all counts are multiples of 32 then.

`stride` is a multiple of 64, so the 64 positions from a multiple of 64 on are contiguous in a plane.  A plane that keeps
every position has `stride >= capacity`: its row is the position.  A plane with a window is a *ring*: its rows are used
again as soon as no later pass can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..checks import integer, shown
from ..errors import KvCacheShapeMismatch

MAX_ROWS = 128
"""Rows of one pass at most."""

MAX_AREAS = 7
"""Areas of one family at most: a stream's entry in the native pass holds the words of that many."""

CHUNK = 64
"""Positions that a kernel reads at once; strides are multiples of it."""

_LINE = 16  # float32 numbers of one cache line: recurrent parts start on one


def _check_counts(part: Part, **least: int) -> None:
    """Check fields of a part: integers of at least so much."""
    for name, low in least.items():
        value = integer(f"{type(part).__name__} {name}", getattr(part, name), low, error=KvCacheShapeMismatch)
        object.__setattr__(part, name, value)


@dataclass(frozen=True, slots=True)
class Kv:
    """Keys and values of every position.

    kv_heads : key/value heads.  k_dim, v_dim : numbers of one head's key and of its value.
    window : 0, or the number of positions that a query reads, its own included; older ones are not kept.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, kv_heads=1, k_dim=1, v_dim=1, window=0)


@dataclass(frozen=True, slots=True)
class Latent:
    """One row per position that serves all heads: the key is the whole row, the value lies inside it.

    k_dim : numbers of the row.  v_dim, v_at : the value is `row[v_at : v_at + v_dim]`.
    """

    k_dim: int
    v_dim: int
    v_at: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, k_dim=1, v_dim=1, v_at=0)
        if self.v_at + self.v_dim > self.k_dim:
            raise KvCacheShapeMismatch(
                f"a latent's value must lie inside its key: {self.v_dim} numbers from {self.v_at} on of {self.k_dim}"
            )


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A float32 array of this shape that every pass replaces; zeros before the first position."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or not self.shape:
            raise KvCacheShapeMismatch(f"Recurrent shape must be a tuple of at least one size, got {shown(self.shape)}")
        sizes = tuple(integer("a size of Recurrent shape", n, 1, error=KvCacheShapeMismatch) for n in self.shape)
        object.__setattr__(self, "shape", sizes)


Part = Kv | Latent | Recurrent


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a part lies; see the formulas at the top of this module.

    Attributes
    ----------
    part : what it is.
    area : index of its area.
    k_offset, v_offset : in numbers per position.  Of a recurrent part, `k_offset` counts numbers from a bank's start.
    v_step : numbers from a position's value to the next position's: `v_dim`, of a latent `k_dim`.
    v_at : where the value begins inside its row: 0 but for latents.
    """

    part: Part
    area: int
    k_offset: int
    v_offset: int = 0
    v_step: int = 0
    v_at: int = 0

    @property
    def kind(self) -> str:
        """`"kv"`, `"latent"` or `"recurrent"`."""
        return type(self.part).__name__.lower()


@dataclass(frozen=True, slots=True)
class Area:
    """Parts that lie in one buffer.

    kind : "full" (every position is kept), "ring" (only a window) or "recurrent".
    window : of a ring.
    width : numbers per position of all slots; of the recurrent area, numbers of a bank.
    """

    kind: str
    window: int
    width: int

    def stride(self, capacity: int, max_rows: int) -> int:
        """Rows per plane for `capacity` positions; `max_rows` are those that one pass may write."""
        full = _round_up(capacity, CHUNK)
        return min(full, _round_up(self.window + max_rows - 1, CHUNK)) if self.kind == "ring" else full

    def first_read(self, position: int) -> int:
        """The first position that a query at `position` reads."""
        return max(0, position - self.window + 1) if self.kind == "ring" else 0

    def holds(self, point: int, low: int) -> bool:
        """Whether a query at `point` finds the positions before it, when they are held from `low` on."""
        return self.first_read(point) >= min(low, point)


class Layout:
    """Where the parts of a family lie.

    Parameters
    ----------
    parts : one per slot.
    max_rows : rows of one pass at most: a ring holds its window and that many new rows.

    Attributes
    ----------
    slots : tuple of Slot, one per part.
    areas : tuple of Area: the full one first, rings by ascending window, the recurrent one last; those in use only.

    Raises
    ------
    KvCacheShapeMismatch : no part, something that is no part, or more than 7 areas.
    """

    def __init__(self, parts: Sequence[Part], max_rows: int = MAX_ROWS) -> None:
        self.parts = tuple(parts)
        if not self.parts:
            raise KvCacheShapeMismatch("a state needs at least one part, got none")
        for i, part in enumerate(self.parts):
            if not isinstance(part, Part):
                raise KvCacheShapeMismatch(f"slot {i}: expected Kv, Latent or Recurrent, got {type(part).__name__}")
        self.max_rows = integer("max_rows", max_rows, 1, error=KvCacheShapeMismatch)
        keys = sorted({_area_key(part) for part in self.parts})
        if len(keys) > MAX_AREAS:
            raise KvCacheShapeMismatch(
                f"parts need {len(keys)} areas (one per window), at most {MAX_AREAS} are possible"
            )
        widths = dict.fromkeys(keys, 0)
        slots = []
        for part in self.parts:
            key = _area_key(part)
            area, at = keys.index(key), widths[key]
            match part:
                case Kv(heads, k_dim, v_dim):
                    slots.append(Slot(part, area, at, at + heads * k_dim, v_dim))
                    widths[key] += heads * (k_dim + v_dim)
                case Latent(k_dim, _, v_at):
                    slots.append(Slot(part, area, at, at, k_dim, v_at))
                    widths[key] += k_dim
                case Recurrent(shape):
                    slots.append(Slot(part, area, at))
                    widths[key] += _round_up(prod(shape), _LINE)
        self.slots = tuple(slots)
        self.areas = tuple(Area(_KINDS[kind], window, widths[kind, window]) for kind, window in keys)

    @property
    def recurrent(self) -> bool:
        """Whether there are recurrent parts."""
        return self.areas[-1].kind == "recurrent"

    def strides(self, capacity: int) -> tuple[int, ...]:
        """Rows per plane of each area of planes, in order."""
        return tuple(a.stride(capacity, self.max_rows) for a in self.areas if a.kind != "recurrent")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.parts == other.parts and self.max_rows == other.max_rows

    def __hash__(self) -> int:
        return hash((self.parts, self.max_rows))

    def __repr__(self) -> str:
        return f"Layout({len(self.slots)} slots, {', '.join(a.kind for a in self.areas)})"


_KINDS = ("full", "ring", "recurrent")


def _area_key(part: Part) -> tuple[int, int]:
    """Kind (an index of `_KINDS`) and window of the area of a part; sorted, they are the areas in order."""
    if isinstance(part, Recurrent):
        return 2, 0
    window = part.window if isinstance(part, Kv) else 0
    return (1, window) if window else (0, 0)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
