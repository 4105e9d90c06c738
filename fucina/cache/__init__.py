"""A stream's state: what a forward pass leaves behind so that the next one need not recompute it."""

from .kv_cache import CacheSnapshot, KvCache, LayerGeometry

__all__ = ["CacheSnapshot", "KvCache", "LayerGeometry"]
