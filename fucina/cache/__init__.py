"""A stream's state: what a forward pass leaves for the next one, so that nothing is computed twice."""

from .parts import MAX_ROWS, Area, Kv, Latent, Layout, Part, Recurrent, Slot
from .state import State, StateSnapshot

__all__ = ["MAX_ROWS", "Area", "Kv", "Latent", "Layout", "Part", "Recurrent", "Slot", "State", "StateSnapshot"]
