"""Where results are kept: one file of JSON a machine."""

from __future__ import annotations

from pathlib import Path

from fucina.measure.machine import describe_machine, slug

RESULTS = Path(__file__).resolve().parent / "results"


def own_file() -> Path:
    """The file of this machine."""
    return RESULTS / f"{slug(describe_machine())}.json"
