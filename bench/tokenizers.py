"""python -m bench.tokenizers FILE: megabytes per second of CPU, beside llama.cpp or `tokenizers`, on four kinds of text.

FILE is a GGUF (compared with llama.cpp) or a `tokenizer.json` (compared with the `tokenizers` library, by a Python that
has it).  Sides take turns, each begins with nothing remembered, and of each the fastest turn counts: other work on the
machine only ever makes a turn slower.  All run on one thread; loading is not counted.  Ids must be equal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from array import array
from pathlib import Path

from fucina.gguf import GgufFile
from fucina.measure.duel import find_peer
from fucina.tokenizers import Tokenizer, UnencodableBytes, load_tokenizer, load_tokenizer_json

from .tokenizer_texts import TEXTS


def load(path: Path) -> Tokenizer:
    """A new tokenizer, that remembers nothing."""
    if path.suffix == ".json":
        return load_tokenizer_json(path)
    with GgufFile(path) as file:
        return load_tokenizer(file.metadata)


def ours(path: Path, text: str) -> tuple[float, int, int]:
    """Seconds, number of ids and their checksum."""
    tokenizer = load(path)
    start = time.process_time()
    ids = tokenizer.encode(text, special=False)
    return time.process_time() - start, len(ids), zlib.crc32(array("i", ids).tobytes())


def theirs(kind: str, python: str, path: Path, page: Path) -> tuple[float, int, int]:
    """The same of a peer."""
    command = [python, str(Path(__file__).with_name("tokenizer_peer.py")), kind, str(path), str(page)]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
    return float(out[0]), int(out[1]), int(out[2])


def main(argv: list[str] | None = None) -> None:
    """Print a table."""
    p = argparse.ArgumentParser(prog="python -m bench.tokenizers", description=(__doc__ or "").splitlines()[0])
    p.add_argument("file", type=Path, help="a GGUF or a tokenizer.json")
    p.add_argument("--peer-python", help="a Python that has llama_cpp (GGUF) or tokenizers (json)")
    p.add_argument("--megabytes", type=float, default=10)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args(argv)
    warnings.simplefilter("ignore", UnencodableBytes)
    kind = "tokenizers" if a.file.suffix == ".json" else "llama.cpp"
    python = a.peer_python or (sys.executable if kind == "tokenizers" else find_peer(None))
    print(f"{'text':10} {'ids':>10} {'fucina':>8} {kind:>10}  MB/s")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.txt")
        for name, make in TEXTS.items():
            text = make(int(a.megabytes * 1e6))
            page.write_bytes(text.encode())
            turns = [(ours(a.file, text), theirs(kind, python, a.file, page)) for _ in range(a.rounds)]
            if len({result[1:] for turn in turns for result in turn}) != 1:
                sys.exit(f"{name}: the ids differ from those of {kind}")
            fastest = [a.megabytes / min(turn[side][0] for turn in turns) for side in (0, 1)]
            print(f"{name:10} {turns[0][0][1]:10,} {fastest[0]:8.2f} {fastest[1]:10.2f}", flush=True)


if __name__ == "__main__":
    main()
