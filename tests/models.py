"""Where tests find models: tiny ones in tests/data, real ones where they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
TINY = DATA / "models"


def _known(name: str) -> Path | None:
    from fucina import hub
    from fucina.errors import ModelNotFound

    try:
        return hub.find(name)
    except ModelNotFound:
        return None


def smollm2_path() -> Path | None:
    """SmolLM2-135M-Instruct Q4_1, or None where it is not installed."""
    return _known("smollm2")


def gemma3_path() -> Path | None:
    """Gemma3-270M Q4_K_M, or None where it is not installed."""
    return _known("gemma3-270m")


def need_smollm2() -> Path:
    """The path, or a skip with its reason."""
    path = smollm2_path()
    if path is None:
        pytest.skip("SmolLM2 is not installed (dependency group 'model')")
    return path


def need_gemma3() -> Path:
    """The path, or a skip with its reason."""
    path = gemma3_path()
    if path is None:
        pytest.skip("Gemma3-270M is not installed (dependency group 'gemma')")
    return path
