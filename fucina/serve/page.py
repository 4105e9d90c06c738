"""The page at `/`: one file, which needs nothing from elsewhere and may run nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

KIND = "text/html; charset=utf-8"


@cache
def page() -> bytes:
    """The page as it is sent, UTF-8."""
    return resources.files(__package__).joinpath("page.html").read_bytes()


@cache
def page_headers() -> dict[str, str]:
    """Headers of the page.

    Its policy allows the script and the style sheet that the file holds, by their hashes, and requests to this server.
    Text of a model that became markup by a fault could so neither run nor load anything.
    """
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash('script')}",
            f"style-src {_hash('style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return {
        "content-type": KIND,
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hash(tag: str) -> str:
    """The source expression of the one element with this tag."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page(), re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
