"""Beyond one machine: the server as replicas, requests routed by the beginnings of their prompts, and a simulation of both.

`affinity`, `trace` and `simulate` need nothing but Python.  `deploy` needs the extra `fucina[cluster]`.
"""

from __future__ import annotations

import importlib.util

from ..errors import ClusterNotEnabled

INSTALL = 'pip install "fucina[cluster]"'


def check_packages() -> None:
    """Raise ClusterNotEnabled where Ray Serve is not installed."""
    missing = [name for name in ("ray", "fastapi", "starlette", "uvicorn", "prometheus_client") if _missing(name)]
    if missing:
        raise ClusterNotEnabled(f"a cluster needs {', '.join(missing)}; {INSTALL} installs what is missing")


def _missing(name: str) -> bool:
    return importlib.util.find_spec(name) is None
