"""C functions that the team calls by address, and CPython's thread locks, which work without the GIL."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import NamedTuple


class SystemCalls(NamedTuple):
    """Addresses of `int yield(void)`, `int acquire(lock, wait)` and `void release(lock)`."""

    yield_slice: int
    acquire: int
    release: int


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type, return-value]


@cache
def system_calls() -> SystemCalls:
    """Addresses of the functions of this process."""
    if os.name == "nt":
        yield_slice = ctypes.WinDLL("kernel32").SwitchToThread  # type: ignore[attr-defined]
    else:
        yield_slice = ctypes.CDLL(None).sched_yield
    api = ctypes.pythonapi
    return SystemCalls(_address(yield_slice), _address(api.PyThread_acquire_lock), _address(api.PyThread_release_lock))


class Locks:
    """Locks to sleep on, held from the start: a thread that acquires one sleeps until another releases it."""

    def __init__(self, count: int) -> None:
        api = ctypes.pythonapi
        allocate, acquire = api.PyThread_allocate_lock, api.PyThread_acquire_lock
        allocate.restype, allocate.argtypes = ctypes.c_void_p, []
        acquire.restype, acquire.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]
        self._free = api.PyThread_free_lock
        self._free.restype, self._free.argtypes = None, [ctypes.c_void_p]
        self.addresses: list[int] = []
        for _ in range(count):
            address = allocate()
            if not address:
                raise MemoryError("the system gave no lock for a thread")
            acquire(address, 0)
            self.addresses.append(address)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for address in self.addresses:
                self._free(address)
            self.addresses = []
