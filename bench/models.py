"""The model files that the benchmarks use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fucina import hub
from fucina.gguf import GgufFile
from fucina.measure.duel import Side, Worker


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model under measurement.

    name : that `fucina.load` knows.  format : of its weights, as named in results.  requantized : a further format
    that is made from it, in which the peer is faster at about the same size.
    """

    name: str
    format: str
    requantized: str | None = None
    windowed: bool = False


MODELS = {
    "smollm2": BenchModel("smollm2", "Q4_1", requantized="Q4_0"),
    "gemma3-270m": BenchModel("gemma3-270m", "Q4_K_M", windowed=True),
}


def path_of(model: BenchModel) -> Path:
    """Its file; raises ModelNotFound where it is not installed."""
    return hub.find(model.name)


def requantized(model: BenchModel, peer: str, threads: int) -> Path:
    """The same model in its second format, written once by llama.cpp's own quantiser into the models folder."""
    assert model.requantized is not None
    source = path_of(model)
    stat = source.stat()
    folder = hub.models_folder().parent / "bench"
    target = folder / f"{model.name}-{model.requantized}-from-{model.format}-{stat.st_size}.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
        worker = Worker(Side("llama.cpp", "llama.cpp", str(source), {"threads": threads}, peer))
        try:
            worker.ask("quantize", target=str(temporary), format_name=model.requantized)
        finally:
            worker.close()
        GgufFile(temporary).close()  # complete and readable, before it gets its name
        os.replace(temporary, target)
    return target


def sides(model: BenchModel, threads: int, peer: str | None, backend: str) -> list[Side]:
    """Ours first, then llama.cpp on the same file, then both on the second format."""
    files = [(model.format, path_of(model))]
    if peer and model.requantized:
        files.append((model.requantized, requantized(model, peer, threads)))
    ours = {"backend": backend} | ({"threads": threads} if backend == "native" else {})
    out = []
    for form, path in files:
        out.append(Side(f"fucina {form}", "fucina", str(path), ours))
        if peer:
            out.append(Side(f"llama.cpp {form}", "llama.cpp", str(path), {"threads": threads}, peer))
    return out
