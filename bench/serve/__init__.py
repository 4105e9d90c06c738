"""Servers under load: `fucina serve` and llama-server answer the same clients, in turn."""
