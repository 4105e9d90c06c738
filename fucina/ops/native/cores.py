"""How many threads a team takes when nobody says: the physical cores that this process may use.

Two threads of one core share its arithmetic units, so a second one adds synchronisation and no speed; and a thread
beyond the processor time that a container grants makes all of them wait.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def default_threads() -> int:
    """Physical cores that this process may use, at least 1."""
    allowed = _allowed()
    cores = _physical(allowed)
    quota = _quota()
    if quota is not None:
        cores = min(cores, int(quota))
    return max(1, cores)


def _allowed() -> set[int] | None:
    """Logical processors that this process may run on, or None where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return None


def _physical(allowed: set[int] | None) -> int:
    try:
        if sys.platform == "linux":
            return _linux_cores(allowed or set(range(os.cpu_count() or 1)))
        if sys.platform == "darwin":
            return _macos_cores()
        if sys.platform == "win32":
            return _windows_cores()
    except (OSError, ValueError, AttributeError):
        pass  # no such file or function on this version of the system: count logical processors
    return len(allowed) if allowed else os.cpu_count() or 1


def _linux_cores(allowed: set[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Distinct cores among the allowed processors; a processor without topology counts as a core."""
    cores = set()
    for cpu in allowed:
        siblings = str(cpu)
        for name in ("core_cpus_list", "thread_siblings_list"):
            file = root / f"cpu{cpu}" / "topology" / name
            if file.is_file():
                siblings = file.read_text(encoding="ascii").strip()
                break
        cores.add(siblings)
    return len(cores)


def _macos_cores() -> int:
    """Performance cores where there are two kinds, else all cores."""
    libc = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        value, size = ctypes.c_int(0), ctypes.c_size_t(4)
        if (
            libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0
            and value.value > 0
        ):
            return value.value
    raise OSError("sysctl does not know the number of cores")


def _windows_cores() -> int:
    """Cores with at least one processor in this process's affinity mask."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    word = ctypes.c_size_t

    class Entry(ctypes.Structure):
        _fields_ = (("mask", word), ("relation", ctypes.c_int), ("detail", ctypes.c_ulonglong * 2))

    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    mine, system = word(0), word(0)
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    if not kernel.GetProcessAffinityMask(process, ctypes.byref(mine), ctypes.byref(system)):
        raise OSError("GetProcessAffinityMask failed")
    size = ctypes.c_ulong(0)
    kernel.GetLogicalProcessorInformation(None, ctypes.byref(size))
    entries = (Entry * (size.value // ctypes.sizeof(Entry)))()
    if not kernel.GetLogicalProcessorInformation(entries, ctypes.byref(size)):
        raise OSError("GetLogicalProcessorInformation failed")
    found = sum(e.relation == 0 and bool(e.mask & mine.value) for e in entries)  # 0: a core
    if found == 0:
        raise OSError("no core in the affinity mask")
    return found


def _quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors' worth of time that the container grants, or None without a limit."""
    if sys.platform != "linux":
        return None
    smallest: float | None = None
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            granted = _quota_of(folder)
            if granted is not None and (smallest is None or granted < smallest):
                smallest = granted
            if folder == base:
                break
    return smallest


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():  # version 2
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None
