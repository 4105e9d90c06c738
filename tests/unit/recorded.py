"""Forwards recorded without weights, and an oracle of the order of their records."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations

from fucina.cache.parts import Layout
from fucina.gguf import GgmlType
from fucina.kernels.formats import FORMATS
from fucina.models import llama
from fucina.ops.native.buffers import place
from fucina.ops.native.recorder import Recorder
from fucina.ops.native.recording import Packed
from fucina.ops.native.schedule import Record, Schedule, Value
from fucina.ops.rope import RopeSpec


def check_order(schedule: Schedule, values: list[Value]) -> None:
    """Every pair of records that touch the same memory, one of them writing, runs in a safe order.

    Memory is bytes of buffers (as they will really be reused) and named resources.  Two records are ordered if they are
    in different steps, or in one chain and need only what the same unit of it wrote.  And every reader sees its value:
    between the value's writer and its reader nobody else writes to that buffer.
    """
    offsets, _ = place(values)
    where: dict[int, tuple[int, int, int]] = {}  # step, chain, place in the chain
    for step, chains in enumerate(schedule.steps):
        assert chains, "an empty step"
        for c, chain in enumerate(chains):
            assert chain.step == step
            for place_, record in enumerate(chain.records):
                where[id(record)] = (step, c, place_)
    assert len(where) == len(schedule.records)

    def touches(record: Record) -> list[tuple[str, bool, object, int, int]]:
        """(kind, writes, what, first byte, end) of everything that a record touches."""
        found: list[tuple[str, bool, object]] = [("local", False, v) for v in record.local]
        found += [("whole", False, v) for v in record.whole]
        found += [("local", True, v) for v in record.writes]  # a kernel writes its own unit's part
        found += [("whole", False, name) for name in record.uses] + [("whole", True, name) for name in record.changes]
        return [
            (kind, writes, x, *((0, 0) if isinstance(x, str) else (offsets[id(x)], offsets[id(x)] + x.nbytes)))
            for kind, writes, x in ((k, w, x if isinstance(x, str) else x.root) for k, w, x in found)
        ]

    touched = [(record, touches(record)) for record in schedule.records]
    for (a, of_a), (b, of_b) in combinations(touched, 2):  # a comes before b in the forward
        for kind_a, writes_a, x, x0, x1 in of_a:
            for kind_b, writes_b, y, y0, y1 in of_b:
                if not (writes_a or writes_b):
                    continue
                (sa, ca, pa), (sb, cb, pb) = where[id(a)], where[id(b)]
                if isinstance(x, str) or isinstance(y, str):
                    if x == y:
                        assert sa < sb, (a.kernel, b.kernel, x)
                elif x is y:
                    if sa == sb:
                        assert ca == cb and pa < pb and kind_a == kind_b == "local", (a.kernel, b.kernel, x.name)
                    else:
                        assert sa < sb, (a.kernel, b.kernel, x.name)
                elif x0 < y1 and y0 < x1:
                    # one buffer, two values: all of one before all of the other
                    assert sa != sb, (a.kernel, b.kernel, x.name, y.name)
                    one, two = (x, y) if sa < sb else (y, x)
                    assert one.last < two.first, (one.name, two.name)
    for record in schedule.records:
        for value in (*record.local, *record.whole):
            assert value.root.first <= where[id(record)][0] <= value.root.last


class FakeWeight:
    def __init__(self, name: str, *shape: int, fmt: str = "q4_1") -> None:
        self.name, self.shape = name, shape
        self.ggml_type = GgmlType(FORMATS[fmt].ggml_type) if len(shape) > 1 else GgmlType.F32


class FakeSources:
    def matrix(self, w):
        return Packed(0, next(f.name for f in FORMATS.values() if f.ggml_type == int(w.ggml_type)))

    def vector(self, w):
        return 0

    def constant(self, x, n):
        return 0

    def rope(self, spec):
        return 0


def fake(cls: type, config, prefix: str, fmt, **given):
    """A table of tensors without data."""
    for f in fields(cls):
        if f.name not in given:
            shape = [getattr(config, n) for n in f.metadata["shape"]]
            given[f.name] = FakeWeight(prefix + f.metadata["tensor"].removesuffix(".weight"), *shape, fmt=fmt(f.name))
    return cls(**given)


def record(family, config, fmt) -> tuple[Recorder, Value]:
    """A forward, recorded without weights; `fmt`: from a field's name to its format."""
    layers = tuple(fake(cls, config, f"blk.{i}.", fmt) for i, cls in enumerate(family.layers(config)))
    embedding = FakeWeight("token_embd", config.vocab_size, config.dim, fmt=fmt("embedding"))
    weights = fake(family.weights, config, "", fmt, layers=layers, embedding=embedding, output=embedding)
    recorder = Recorder(FakeSources(), Layout(family.parts(config)))
    return recorder, family.forward(recorder, config, weights)


def record_llama(layers: int = 3, dim: int = 576, ffn: int = 1536, heads: int = 9, kv: int = 3, fmt: str = "q4_1"):
    d = dim // heads
    config = llama.Config(
        n_layers=layers, dim=dim, ffn_dim=ffn, heads=heads, kv_heads=kv, head_dim=d, vocab_size=1000, context_length=512,
        eps=1e-5, rope=RopeSpec(d, 1e4, "interleaved"),
    )  # fmt: skip
    return record(llama.FAMILY, config, lambda name: fmt)
