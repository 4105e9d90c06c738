"""Rotary position embedding: which numbers are turned together, and by which angle.

Pair i of a head is turned by `position · base^(-2i/dims)`: slow pairs carry far distances, fast pairs near ones.
`interleaved` turns neighbours (0,1), (2,3), …; `half` turns (0, d/2), (1, d/2+1), ….  GGUF files of the llama family
are permuted for the first, most others use the second.  (Su et al. 2021, arXiv 2104.09864.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How a layer's queries and keys are turned.

    dims : numbers of each head that are turned (the first ones), an even count.
    base : base of the geometric series of frequencies.
    pairing : "interleaved" or "half".
    freq_factors : divides each pair's frequency (llama 3 long-context scaling), or None.
    freq_scale : multiplies every frequency (linear scaling; 1/8 means eight times the context).
    magnitude : multiplies what is turned (YaRN: keys and queries grow with the logarithm of the scaling).
    """

    dims: int
    base: float
    pairing: str
    freq_factors: tuple[float, ...] | None = None
    freq_scale: float = 1.0
    magnitude: float = 1.0


def rope_table(spec: RopeSpec, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of positions [start, stop): two float32 arrays [stop - start, dims // 2].

    Angles are computed in float64, so that far positions are as exact as near ones.
    """
    frequency = spec.base ** (-np.arange(0, spec.dims, 2) / spec.dims) * spec.freq_scale  # [dims / 2]
    if spec.freq_factors is not None:
        frequency = frequency / np.asarray(spec.freq_factors, np.float64)
    angle = np.arange(start, stop)[:, None] * frequency[None, :]
    cos, sin = np.cos(angle) * spec.magnitude, np.sin(angle) * spec.magnitude
    return cos.astype(np.float32), sin.astype(np.float32)


def yarn_factors(dims: int, base: float, factor: float, context: int, fast: float, slow: float) -> tuple[float, ...]:
    """YaRN: by how much each pair's frequency is divided, between 1 and `factor`.

    A pair that turns more than `fast` times within the `context` positions of the original training keeps its
    frequency; one that turns less than `slow` times is stretched by `factor`, so that no new angle occurs; between the
    two, shares of both frequencies are added.  (Peng et al. 2023, arXiv 2309.00071.)
    """

    def pair(turns: float) -> float:
        """The pair that turns so many times."""
        return dims * np.log(context / (turns * 2 * np.pi)) / (2 * np.log(base))

    low, high = max(0.0, np.floor(pair(fast))), min(dims - 1.0, np.ceil(pair(slow)))
    stretched = np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0, 1)
    return tuple((1 / (stretched / factor + (1 - stretched))).tolist())
