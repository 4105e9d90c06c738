"""Engines in processes of their own, asked in turn with all others stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import PeerNotFound, WorkerFailed

ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the package
_PATIENCE = 300.0  # seconds that a question may take before its process is ended
CAN_STOP = hasattr(signal, "SIGSTOP")


def find_peer(python: str | None = None) -> str:
    """The Python that holds llama.cpp: `python`, else FUCINA_LLAMA_PYTHON, else this one.

    Raises
    ------
    PeerNotFound : it does not run, or has no module `llama_cpp`.
    """
    python = os.path.expanduser(python or os.environ.get("FUCINA_LLAMA_PYTHON") or sys.executable)
    probe = [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"]
    try:
        found = subprocess.run(probe, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerNotFound(f"cannot run {python}: {error}") from error
    if not found:
        raise PeerNotFound(
            f"{python} has no module llama_cpp; install llama-cpp-python (dependency group 'bench'), "
            "or name a Python that has it in FUCINA_LLAMA_PYTHON"
        )
    return python


def wait_policy() -> str:
    """How threads of OpenMP wait: OMP_WAIT_POLICY where it is set, else "active", which is best on a quiet machine."""
    return os.environ.get("OMP_WAIT_POLICY", "active")


@dataclass(frozen=True, slots=True)
class Side:
    """One contestant.

    label : its name in results.  kind : "fucina" or "llama.cpp".  path : the .gguf.
    options : of `FucinaEngine` or `LlamaEngine`.  python : the interpreter that runs it.
    """

    label: str
    kind: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable

    def command(self, prompt: str | None = None) -> list[str]:
        """The worker's command line.  The package's folder goes last on its path, so that its own packages win."""
        code = f"import sys; sys.path.append({str(ROOT)!r}); from fucina.measure.worker import main; main()"
        argv = [self.python, "-c", code, self.kind, self.path, json.dumps(self.options)]
        return argv if prompt is None else [*argv, prompt]

    def environment(self, **extra: str) -> dict[str, str]:
        """Its environment: without an active wait policy, llama.cpp's threads lose time at every pass."""
        return {**os.environ, "OMP_WAIT_POLICY": wait_policy(), "GGML_NO_BACKTRACE": "1", **extra}


class Worker:
    """A running side, stopped except while it answers.  `load_seconds` is what its first load took.

    Raises
    ------
    WorkerFailed : the engine could not load, or a question failed.
    """

    def __init__(self, side: Side, **environment: str) -> None:
        self.side = side
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
        self._process = subprocess.Popen(
            side.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=side.environment(**environment),
        )
        try:
            self.load_seconds: float = self._receive()
        except WorkerFailed:
            self.close()
            raise
        self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        if CAN_STOP and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            tail = self._errors.read()[-1500:].decode("utf-8", "replace").strip()
            raise WorkerFailed(f"the process of {self.side.label} ended with code {self._process.returncode}: {tail}")
        message = json.loads(line)
        if "error" in message:
            raise WorkerFailed(f"{self.side.label}: {message['error']}")
        return message["answer"]

    def ask(self, name: str, **arguments: Any) -> Any:
        """Wake it, ask, stop it again."""
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps({"ask": name, **arguments}) + "\n")
            self._process.stdin.flush()
            return self._receive()
        except BrokenPipeError:
            return self._receive()  # raises, with the last lines of the process
        finally:
            watchdog.cancel()
            self._signal("SIGSTOP")

    def close(self) -> None:
        """End it."""
        self._signal("SIGCONT")
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.terminate()
        self._process.wait()
        self._errors.close()


@contextlib.contextmanager
def workers(sides: Sequence[Side]) -> Iterator[dict[str, Worker]]:
    """All sides running, by label; ended on the way out."""
    running: dict[str, Worker] = {}
    try:
        for side in sides:
            running[side.label] = Worker(side)
        yield running
    finally:
        for worker in running.values():
            worker.close()


class Neighbour:
    """A process that keeps one core busy, while `busy()` is open."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self._process.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Let it spin."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
