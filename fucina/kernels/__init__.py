"""Compiled kernels: a small vector language, its lowerings, and the kernels written in it."""
