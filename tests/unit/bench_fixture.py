"""Records with round numbers, of the shape that the benchmarks write."""

from __future__ import annotations

from typing import Any

MACHINE = {
    "cpu": "Example CPU",
    "architecture": "x86_64",
    "features": ["avx2"],
    "usable_cpus": 2,
    "cores": 2,
    "caches": {"L2": "1M"},
    "memory_bytes": 8 << 30,
    "os": "Linux 6",
}


def stamp(command: str) -> dict[str, Any]:
    return {
        "date": "2025-02-03T04:05Z",
        "command": command,
        "machine": MACHINE,
        "versions": {"fucina": "0.1.0", "numba": None},
    }


def _side(engine: str, file: str) -> dict[str, Any]:
    sizes = {"file": file, "file_bytes": 1000, "weight_bytes": 900, "kv_reads": [[2, 10, 0], [3, 10, 16]]}
    if engine == "fucina":
        return {"engine": "fucina", **sizes}
    settings = {use: {"flash_attention": use == "decode", "full_window_cache": True} for use in ("decode", "prefill")}
    more = {
        "version": "1.0",
        "ggml_version": "2.0",
        "ggml_commit": "abc",
        "system_info": "AVX2 = 1",
        "settings": settings,
    }
    return {"engine": "llama.cpp", **sizes, **more}


def speed() -> dict[str, Any]:
    """Ours twice as fast as llama.cpp on the same file, 1.5 times as fast as on the other; turn 2 is slow."""
    ours = {
        "decode/8": [[0.01] * 4, [0.02] * 4, [0.01] * 4],
        "prefill/128": [[0.1], [0.2], [0.1]],
        "streams/4": [[0.016], [0.032], [0.016]],
        "verify/64": [{"1": 0.01, "4": 0.015}, {"1": 0.02, "4": 0.03}, {"1": 0.01, "4": 0.016}],
    }

    def slower(x: Any, factor: float) -> Any:
        if isinstance(x, dict):
            return {k: slower(v, factor) for k, v in x.items()}
        return [slower(v, factor) for v in x] if isinstance(x, list) else x * factor

    other = {k: slower(v, 1.5) for k, v in ours.items() if k == "decode/8"}
    return {
        "stamp": stamp("python -m bench speed --models smollm2 --threads 2"),
        "settings": {"threads": 2, "tried": {}},
        "sides": {
            "fucina Q4_1": _side("fucina", "a.gguf"),
            "llama.cpp Q4_1": _side("llama.cpp", "a.gguf"),
            "fucina Q4_0": _side("fucina", "b.gguf"),
            "llama.cpp Q4_0": _side("llama.cpp", "b.gguf"),
        },
        "bandwidth": [200000.0, 100000.0, 200000.0],
        "samples": {
            "fucina Q4_1": ours,
            "llama.cpp Q4_1": {k: slower(v, 2.0) for k, v in ours.items()},
            "fucina Q4_0": {"decode/8": ours["decode/8"]},
            "llama.cpp Q4_0": other,
        },
    }


def busy() -> dict[str, Any]:
    sides = {k: v for k, v in speed()["sides"].items() if "Q4_1" in k}
    idle, loaded = [[0.01] * 2] * 3, [[0.02] * 2, [0.016] * 2, [0.04] * 2]
    samples = {label: {"decode/8": idle, "decode/8/busy": loaded} for label in sides}
    return {
        "stamp": stamp("python -m bench busy"),
        "settings": {"threads": 2, "tried": {}},
        "sides": sides,
        "bandwidth": [2e5] * 3,
        "samples": samples,
    }


def start() -> dict[str, Any]:
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [{"first": s, "end": s + 0.1, "cpu": 2 * s} for s in seconds]

    samples = {
        "fucina Q4_1": {
            "first_token/warm": runs(0.9, 1.0, 1.1),
            "first_token/cold": runs(6.0, 7.0),
            "load": [0.2, 0.25],
            "memory": [300 << 20, 310 << 20],
        },
        "llama.cpp Q4_1": {"first_token/warm": runs(0.5, 0.5, 0.5), "load": [0.1, 0.1], "memory": [None, None]},
    }
    settings = {"threads": 2, "context": 1024, "new_tokens": 64}
    return {"stamp": stamp("python -m bench start"), "settings": settings, "sides": {}, "samples": samples}


def accuracy() -> dict[str, Any]:
    return {
        "stamp": stamp("python -m bench accuracy"),
        "settings": {"threads": 2, "margin": 1.0},
        "sides": {},
        "errors": {
            "positions": [10, 20],
            "rms_by_text": {"native": [0.1, 0.2], "llama.cpp": [0.2, 0.4]},
            "rms": {"native": 0.1732, "llama.cpp": 0.3464},
            "naive_against_llama": {
                "positions": 30,
                "agree": 28,
                "clear": 20,
                "clear_agree": 20,
                "margins_where_different": [0.1, 0.2],
            },
        },
        "forced": {
            "positions": 200,
            "agree": 193,
            "clear": 150,
            "clear_agree": 150,
            "margins_where_different": [0.05, 0.375],
        },
    }


def conversations() -> dict[str, Any]:
    """Two streams cost 1.25 and gain 1.5."""
    samples = {
        "after another": {"1": [1.0, 2.0], "2": [3.0, 3.0]},
        "together": {"1": [1.0, 2.0], "2": [2.0, 2.0]},
        "rows": {"1": [[0.004, 0.004], [0.004, 0.004]], "2": [[0.004, 0.005], [0.008, 0.010]]},
        "overhead": {"greedy": [[0.01, 0.5], [0.01, 0.25], [0.01, 0.25]]},
    }
    return {"stamp": stamp("python -m bench.streams"), "settings": {"threads": 2, "tokens": 11}, "samples": samples}


def speculation() -> dict[str, Any]:
    """A kind with two prompts that count, one loop and one short output; a kind with references."""

    def run(kind: str, index: int, faster: float, tokens: int = 100, loop: int = 0, **more: float) -> dict[str, Any]:
        stats = {
            "steps": 50, "committed": 100, "drafted": 80, "accepted": 60, "disabled_steps": 5, "priced": faster,
        }  # fmt: skip
        seconds = {
            "plain": [faster, faster],
            "speculative": [1.0, 1.0],
            **{v: [faster / x] * 2 for v, x in more.items()},
        }
        return {
            "kind": kind,
            "index": index,
            "tokens": tokens,
            "loop": loop,
            "seconds": seconds,
            "stats": {v: stats for v in seconds if v != "plain"},
        }

    runs = [
        run("copy", 0, 2.0), run("copy", 1, 3.0), run("copy", 2, 9.0, loop=4), run("copy", 3, 0.5, tokens=5),
        run("question", 0, 1.5, **{"references alone": 1.25}),
    ]  # fmt: skip
    return {"stamp": stamp("python -m bench.speculation"), "settings": {"threads": 2, "rounds": 2}, "runs": runs}


def overhead() -> dict[str, Any]:
    """Of five prompts."""
    run = {"nothing drafted": [40, 0.0001, 0.004], "verify": [10, 0.0002, 0.010]}
    head = {"stamp": stamp("python -m bench.speculation --overhead"), "settings": {"threads": 2, "rounds": 2}}
    return {**head, "runs": [run] * 4 + [{"nothing drafted": [40, 0.0001, 0.004]}]}


def odds() -> dict[str, Any]:
    """Of two classes of matches, and of recycled candidates."""
    found = {"match 2": [100, 51], "match 24": [10, 9], "recycled, first": [50, 10]}
    return {"stamp": stamp("python -m bench.odds"), "settings": {"threads": 2, "texts": 3}, "odds": found}


def index() -> dict[str, Any]:
    """Half a microsecond and 62 bytes per token."""
    found = {"bulk": [0.5, 0.5, 0.75], "fours": [2.5, 2.5, 2.5], "bytes": 62.1, "tokens": 1_000_000}
    return {"stamp": stamp("python -m bench.index"), "settings": {"threads": 1}, "index": found}


def records() -> dict[str, Any]:
    return {
        "accuracy/smollm2": accuracy(),
        "busy/smollm2": busy(),
        "conversations/smollm2": conversations(),
        "index/smollm2": index(),
        "odds/smollm2": odds(),
        "overhead/smollm2": overhead(),
        "speculation/smollm2": speculation(),
        "speed/smollm2": speed(),
        "start/smollm2": start(),
    }
