"""What a measurement was taken on: the machine and the versions, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

_FEATURES = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "dotprod", "i8mm", "sve")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cpu_model() -> str:
    """Name of the processor; with family and model numbers on x86 Linux, where names of virtual CPUs say little."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    info = _read("/proc/cpuinfo")
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info.split("\n\n")[0], re.M))
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']} model {fields.get('model', '?')})"
    return name


def usable_cpus() -> int:
    """Logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def caches() -> dict[str, str]:
    """Sizes of the first processor's caches, e.g. {"L1d": "32K", "L2": "1024K", "L3": "32768K"}; {} if unknown."""
    found = {}
    for i in range(8):
        base = f"/sys/devices/system/cpu/cpu0/cache/index{i}"
        level, kind, size = _read(f"{base}/level"), _read(f"{base}/type"), _read(f"{base}/size")
        if level and kind != "Instruction":
            found[f"L{level}" + ("d" if kind == "Data" else "")] = size
    return found


def memory_bytes() -> int | None:
    """Bytes of memory in the machine, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def cpu_features() -> list[str]:
    """Of the instruction sets that matter to the kernels, those that this CPU has."""
    from llvmlite import binding

    has = binding.get_host_cpu_features()
    return [f for f in _FEATURES if has.get(f)]


def describe_machine() -> dict[str, object]:
    """The machine, as stored beside every result."""
    from ..ops.native.cores import default_threads

    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "features": cpu_features(),
        "usable_cpus": usable_cpus(),
        "cores": default_threads(),
        "caches": caches(),
        "memory_bytes": memory_bytes(),
        "os": f"{platform.system()} {platform.release()}",
    }


def slug(machine: dict[str, object]) -> str:
    """A short file name for a machine: its CPU and how many cores were there to use."""
    name = re.sub(r"[^a-z0-9]+", "-", str(machine["cpu"]).lower()).strip("-")
    return f"{name}-{machine['cores']}-cores"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """Commit of a checkout, with "-dirty" if tracked files differ from it; None outside of one."""
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(git, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def describe_versions() -> dict[str, str | None]:
    """Versions of what ran."""
    from .. import __version__

    root = Path(__file__).resolve().parents[2]
    return {
        "fucina": __version__,
        "commit": git_commit(root) if (root / "pyproject.toml").exists() else None,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
    }
