"""What stands before every request: who may ask, from where, and how many at once."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .problems import Problem

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CORS = {
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization, x-api-key, anthropic-version, anthropic-beta",
    "vary": "Origin",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask.

    Attributes
    ----------
    keys : one of these must come with a request; none: anybody may ask.
    hosts : names that a request may be addressed to; None: any.  Against web pages that have their own name point here.
    origin : the web origin that browsers may ask from; None: none but the server's own.
    connections : how many requests may be under way.
    """

    keys: Sequence[str] = ()
    hosts: frozenset[str] | None = None
    origin: str | None = None
    connections: int = 32

    def check_host(self, header: str | None) -> None:
        """Refuse a request that is addressed to another name; one without a name passes.  Raises Problem."""
        if self.hosts is not None and header is not None and host_of(header) not in self.hosts:
            raise Problem(403, "this server does not answer to that name (Host)", "permission_error")

    def tenant(self, authorization: str | None, api_key: str | None) -> str:
        """Who asks, as a name that does not give the key away.

        Raises
        ------
        Problem : a key is needed, and this is none.
        """
        if not self.keys:
            return ""
        scheme, _, bearer = (authorization or "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" and bearer.strip() else api_key or ""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in self.keys]
        if not any(found):  # all keys are compared, whichever fits
            raise Problem(401, "the API key is missing or wrong", code="invalid_api_key")
        return digest.hex()[:16]

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {} if self.origin is None else {"access-control-allow-origin": self.origin, **CORS}


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).rstrip(".")


def guarded_hosts(bound: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """The names that a server answers to: all, unless it listens on this machine alone or names were given."""
    names = [name.lower() for name in allowed]
    if not names and bound.lower() not in LOOPBACK:
        return None
    return frozenset([*LOOPBACK, bound.lower(), *names])
