"""How far the fast engines are from the mathematics, and from each other.

Two questions. *Error*: the logits of native and of llama.cpp against `naive` in float32, on the same text.
*Agreement*: on text that llama.cpp wrote greedily, how often native's likeliest token is the one that llama.cpp
chose, and by what margin llama.cpp preferred its own where they differ.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fucina.measure.duel import Side, Worker, workers

_FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "data" / "greedy.json"
_CAPACITY = 512
MARGIN = 1.0  # logits: a lead that rounding to 8 bits does not overturn


def fixtures(model: str) -> list[dict[str, Any]]:
    """Prompts with llama.cpp's greedy continuation: [{"prompt_ids", "ids", …}, …]."""
    data = json.loads(_FIXTURES.read_text(encoding="utf-8"))
    return data[next(k for k in data if k.startswith(model))]["cases"]


def rms(x: np.ndarray, reference: np.ndarray) -> float:
    """Root mean square of the difference, over all positions and the whole vocabulary."""
    return float(np.sqrt(np.mean((x.astype(np.float64) - reference) ** 2)))


def lead(logits: np.ndarray) -> np.ndarray:
    """By how much each row's best logit leads the second."""
    best = np.partition(logits, -2, axis=1)[:, -2:]
    return best[:, 1] - best[:, 0]


def agreement(ours: Sequence[int], theirs: Sequence[int], margins: Sequence[float]) -> dict[str, Any]:
    """Positions, how many agree, how many have a clear margin and agree, and the margins where they differ."""
    same = np.asarray(ours) == np.asarray(theirs)
    clear = np.asarray(margins) > MARGIN
    return {
        "positions": len(same),
        "agree": int(same.sum()),
        "clear": int(clear.sum()),
        "clear_agree": int((same & clear).sum()),
        "margins_where_different": sorted(round(float(m), 3) for m in np.asarray(margins)[~same]),
    }


def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum of several agreements."""
    out = {k: sum(p[k] for p in parts) for k in ("positions", "agree", "clear", "clear_agree")}
    return {**out, "margins_where_different": sorted(m for p in parts for m in p["margins_where_different"])}


def _errors(running: dict[str, Worker], cases: Sequence[dict[str, Any]], say: Callable[[str], None]) -> dict[str, Any]:
    """Logits of all three on every fixture text."""
    squares: dict[str, list[float]] = {"native": [], "llama.cpp": []}
    counts, agreed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for n, case in enumerate(cases):
            say(f"logits of text {n + 1} of {len(cases)}")
            ids = case["prompt_ids"] + case["ids"][:-1]
            logits = {}
            for label, worker in running.items():
                path = str(Path(folder) / "logits.npy")
                worker.ask("logits", ids=ids, path=path, capacity=_CAPACITY)
                logits[label] = np.load(path)
            for label, values in squares.items():
                values.append(rms(logits[label], logits["naive"]))
            counts.append(len(ids))
            peer = logits["llama.cpp"]
            agreed.append(agreement(logits["naive"].argmax(1).tolist(), peer.argmax(1).tolist(), lead(peer).tolist()))
    weights = np.asarray(counts) / sum(counts)
    return {
        "positions": counts,
        "rms_by_text": squares,
        "rms": {label: float(np.sqrt(np.sum(weights * np.square(v)))) for label, v in squares.items()},
        "naive_against_llama": together(agreed),
    }


def _forced(
    ours: Worker, peer: Worker, cases: Sequence[dict[str, Any]], steps: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Teacher-forced agreement on what the peer writes."""
    parts = []
    for n, case in enumerate(cases):
        say(f"greedy text {n + 1} of {len(cases)}")
        prompt = case["prompt_ids"]
        wrote = peer.ask("greedy", ids=prompt, steps=steps, capacity=_CAPACITY)
        ids = prompt + wrote["tokens"][:-1]
        ours_say = ours.ask("argmax", ids=ids, start=len(prompt) - 1, capacity=_CAPACITY)
        parts.append(agreement(ours_say, wrote["tokens"], wrote["margins"]))
    return together(parts)


def run(
    name: str,
    path: Path,
    threads: int,
    peer: str,
    texts: int | None = None,
    steps: int = 168,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Error and agreement of one model.

    name : of its fixtures.  peer : the Python that holds llama.cpp.  texts : how many fixtures; None takes all.
    steps : greedy tokens a text; 12 texts of 168 make 2,016 positions.
    """
    cases = fixtures(name)[:texts]
    contestants = [
        Side("naive", "fucina", str(path), {"backend": "naive", "activations": "f32", "cache_dtype": "f32"}),
        Side("native", "fucina", str(path), {"threads": threads}),
        Side("llama.cpp", "llama.cpp", str(path), {"threads": threads}, peer),
    ]
    with workers(contestants) as running:
        record = {
            "settings": {
                "threads": threads,
                "texts": len(cases),
                "steps": steps,
                "margin": MARGIN,
                "kv": "f16; naive f32",
            },
            "sides": {label: w.ask("describe") for label, w in running.items()},
            "file": path.name,
            "forced": _forced(running["native"], running["llama.cpp"], cases, steps, say),
            "errors": _errors(running, cases, say),
        }
    return record
