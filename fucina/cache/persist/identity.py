"""What says whose rows are in a file: model, dtype, tokenizer, tenant."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, Protocol

from ...errors import KvFileInvalid
from ..parts import Part
from ..state import State


class StateMaker(Protocol):
    """What is needed of a model: `new_cache`, and, if it has one, the `fingerprint` of its `tokenizer`."""

    def new_cache(self, capacity: int | None = None) -> State: ...


class Identity(NamedTuple):
    """What rows must agree in before one state may hold those of another: everything that a file is checked for.

    parts, dtype, fingerprint : of the state.
    tokenizer : 16 bytes that name the tokenizer; zeros where it is not stated, then it is not compared.
    salt : 16 bytes that name a tenant; zeros for none.
    """

    parts: tuple[Part, ...]
    dtype: str
    fingerprint: bytes
    tokenizer: bytes = bytes(16)
    salt: bytes = bytes(16)

    @classmethod
    def of(cls, state: State, tokenizer: bytes = b"", salt: bytes = b"") -> Identity:
        """The identity of a state; `tokenizer` is hashed unless it has 16 bytes already, `salt` always."""
        if len(state.fingerprint) > 32:
            raise KvFileInvalid(
                f"a fingerprint of {len(state.fingerprint)} bytes cannot be stored; expected at most 32"
            )
        name = tokenizer if len(tokenizer) == 16 else _hashed(tokenizer, b"tokenizer")
        return cls(state.parts, state.dtype, state.fingerprint, name, salt_hash(salt))


def salt_hash(salt: bytes) -> bytes:
    """The 16 bytes by which files name a tenant: zeros for the empty salt."""
    return _hashed(salt, b"salt")


def _hashed(data: bytes, what: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16, person=b"fucina." + what).digest() if data else bytes(16)


def identity_of(model: StateMaker, salt: bytes = b"") -> Identity:
    """What files of a model's rows are checked for."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    return Identity.of(model.new_cache(1), tokenizer.fingerprint if tokenizer is not None else b"", salt)
