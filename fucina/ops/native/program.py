"""A recorded forward, ready to run: the static tables, and what is needed to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HostFunction = Callable[[int, int, Any], None]


@dataclass(slots=True)
class Program:
    """What a team runs.

    Attributes
    ----------
    records : int64 [records, 32], see `fucina.kernels.record`.
    chains : int64 [chains, 2], first record and index behind the last.
    steps : int64 [steps, 2], first chain and index behind the last.
    hosts : (step, function(m, n_out, context)) of the host stages, ascending.
    result : (record, word) of every word that takes the address of the pass's result.
    result_address : that address once more, for host stages; one element.
    kv_heads : most key heads of any attention.
    keep : what the tables point into.
    """

    records: np.ndarray
    chains: np.ndarray
    steps: np.ndarray
    hosts: list[tuple[int, HostFunction]] = field(default_factory=list)
    result: list[tuple[int, int]] = field(default_factory=list)
    result_address: list[int] = field(default_factory=lambda: [0])
    kv_heads: int = 0
    keep: list[Any] = field(default_factory=list)

    def direct(self, address: int) -> None:
        """Let the next pass write its result at this address."""
        self.result_address[0] = address
        for record, word in self.result:
            self.records[record, word] = address
