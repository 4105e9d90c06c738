"""A stream's state: what a forward pass leaves behind so that the next one need not recompute it."""

from .parts import MAX_ROWS, Area, Kv, Latent, Layout, Part, Recurrent, Slot
from .state import State, StateSnapshot

__all__ = ["MAX_ROWS", "Area", "Kv", "Latent", "Layout", "Part", "Recurrent", "Slot", "State", "StateSnapshot"]
