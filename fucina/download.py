"""One file over https, complete and with the right hash, or an error."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import HashMismatch, ModelNotFound

SCHEMES = ("https",)
_TIMEOUT = 30  # seconds without a byte
_BLOCK = 1 << 20


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within SCHEMES, and keeps the hash that the hub gives before it redirects."""

    def __init__(self) -> None:
        self.linked_etag = ""

    def redirect_request(
        self, request: urllib.request.Request, file: Any, code: int, message: str, headers: Any, url: str
    ) -> urllib.request.Request | None:
        _check_scheme(url)
        self.linked_etag = headers.get("X-Linked-Etag", self.linked_etag)
        return super().redirect_request(request, file, code, message, headers, url)


def download(
    url: str,
    target: Path,
    size: int | None = None,
    sha256: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Write the file at `url` to `target`, overwriting it.

    Parameters
    ----------
    url : str
        https only, redirects included.
    target : Path
        After an error it is incomplete: give a temporary name.
    size, sha256 : optional
        What the file must be.  Without `sha256` the Hugging Face hub's own (the X-Linked-Etag of a large file) counts.
    progress : callable, optional
        Called with the bytes so far and the bytes in all (None if unknown).

    Raises
    ------
    ModelNotFound
        The server cannot be reached, refuses, or breaks off.
    HashMismatch
        Size or hash are wrong, or nothing says what the hash should be.
    """
    _check_scheme(url)
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    request = urllib.request.Request(url, headers={"User-Agent": "fucina", "Accept-Encoding": "identity"})
    digest, done = hashlib.sha256(), 0
    try:
        with opener.open(request, timeout=_TIMEOUT) as response:
            etag = (response.headers.get("X-Linked-Etag") or redirects.linked_etag).strip('W/"').lower()
            expected = sha256 or (etag if re.fullmatch("[0-9a-f]{64}", etag) else None)
            if expected is None:
                raise HashMismatch(f"{url}: neither the registry nor the server says what SHA-256 the file should have")
            announced = response.headers.get("Content-Length", "")
            total = int(announced) if announced.isdigit() else size
            if size is not None and total != size:
                raise HashMismatch(f"{url}: the server has {total} bytes, expected {size}")
            with target.open("wb") as out:
                while block := response.read(_BLOCK):
                    out.write(block)
                    digest.update(block)
                    done += len(block)
                    if total is not None and done > total:
                        raise HashMismatch(f"{url}: more than the {total} bytes expected")
                    if progress is not None:
                        progress(done, total)
    except urllib.error.HTTPError as error:
        raise ModelNotFound(f"{url}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ModelNotFound(f"cannot reach {urlsplit(url).hostname}: {error.reason}") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise ModelNotFound(f"{url}: the connection broke after {done} bytes ({type(error).__name__})") from error
    if total is not None and done != total:
        raise HashMismatch(f"{url}: {done} bytes arrived, expected {total}")
    if digest.hexdigest() != expected:
        raise HashMismatch(f"{url}: the file that arrived has SHA-256 {digest.hexdigest()}, expected {expected}")


def _check_scheme(url: str) -> None:
    if urlsplit(url).scheme not in SCHEMES:
        raise ModelNotFound(f"{url}: only {' and '.join(SCHEMES)} addresses are fetched")
