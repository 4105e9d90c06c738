"""A stream's state: what a forward pass leaves behind so that the next one need not recompute it."""

from .parts import MAX_ROWS, Area, Kv, Latent, Layout, Part, Recurrent, Slot
from .state import State, StateSnapshot


class KvCache(State):
    """Temporary: the names that the engine used, until it uses `State`."""

    can_truncate = True

    @property
    def geometry(self) -> tuple[Part, ...]:
        return self.parts

    @property
    def address(self) -> int:
        return self._buffers[0].ctypes.data

    @property
    def stride(self) -> int:
        return self._strides[0]

    def append(self, layer, k, v) -> None:
        for i in range(len(k)):
            self.write(layer, self.len + i, k[i], v[i])

    def advance(self, m: int) -> None:
        self.begin(m)
        self.commit(m)


LayerGeometry, CacheSnapshot = Kv, StateSnapshot

__all__ = ["MAX_ROWS", "Area", "Kv", "Latent", "Layout", "Part", "Recurrent", "Slot", "State", "StateSnapshot"]
