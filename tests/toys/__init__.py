"""Toy families: one small model for each kind of state or op that the real families here do not use."""
