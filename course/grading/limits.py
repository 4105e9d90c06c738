"""What running code may use: address space where the system can limit it, time and memory watched everywhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

psutil = None
if sys.platform != "linux":  # Linux tells through /proc
    with contextlib.suppress(ImportError):
        import psutil  # type: ignore[no-redef]

PERIOD = 0.05  # seconds between two looks of the watchdog


def memory_in_use() -> tuple[int, int]:
    """(address space, resident) bytes of this process; zeros where nothing can tell."""
    if sys.platform == "linux":
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        page = resource.getpagesize()
        return int(fields[0]) * page, int(fields[1]) * page
    if psutil is not None:
        info = psutil.Process().memory_info()
        return info.vms, info.rss
    return 0, 0


def limit_address_space(extra: int) -> bool:
    """Let this process take `extra` bytes more than now; True where the system enforces it (Linux)."""
    if sys.platform != "linux":
        return False
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = memory_in_use()[0] + extra
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    return True


def limit_cpu(seconds: float) -> None:
    """End this process `seconds` of CPU time from now: the way out of a loop that never lets another thread run."""
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = int(time.process_time() + seconds) + 1
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted, hard))


def limit_files(size: int) -> None:
    """Refuse files that grow beyond `size` bytes, and core dumps; where the system can (POSIX)."""
    if resource is None:
        return
    for kind, wanted in ((resource.RLIMIT_FSIZE, size), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (wanted, wanted))


class Watchdog(threading.Thread):
    """Looks at CPU time, wall time and resident memory while it is armed, and calls `bark(kind)` once."""

    def __init__(self, bark: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="watchdog")
        self._bark = bark
        self._armed = threading.Event()
        self._limits = (0.0, 0.0, 0)
        self.start()

    def arm(self, cpu_seconds: float, wall_seconds: float, memory: int) -> None:
        """Begin to watch one request."""
        self._limits = (time.process_time() + cpu_seconds, time.monotonic() + wall_seconds, memory_in_use()[1] + memory)
        self._armed.set()

    def disarm(self) -> None:
        """The request has ended."""
        self._armed.clear()

    def run(self) -> None:
        """The thread's loop."""
        while True:
            self._armed.wait()
            time.sleep(PERIOD)
            if not self._armed.is_set():
                continue
            cpu, wall, memory = self._limits
            kind = ""
            if memory_in_use()[1] > memory:
                kind = "memory"
            elif time.process_time() > cpu or time.monotonic() > wall:
                kind = "time"
            if kind and self._armed.is_set():
                self._armed.clear()
                self._bark(kind)
