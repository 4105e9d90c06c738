"""The servers that are compared: processes of their own, one of which runs while the others are stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from fucina.errors import FucinaError, PeerNotFound

from .client import Answer, chat

WAIT = 120.0  # seconds to the first answer of /health
PEER = "FUCINA_LLAMA_SERVER"


class ServerProcess:
    """A server in a process of its own.

    Parameters
    ----------
    label : of the tables.
    command : its arguments; "{port}" stands for a free port.
    """

    def __init__(self, label: str, command: list[str]) -> None:
        self.label = label
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]
        self.command = [part.format(port=self.port) for part in command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(self.command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until it answers.  Raises FucinaError."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self._process.poll() is None:
            with (
                contextlib.suppress(URLError, OSError),
                urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as r,
            ):
                if r.status == 200:
                    return
            time.sleep(0.2)
        self._log.seek(0)
        raise FucinaError(f"{self.label} does not answer: {self._log.read().decode(errors='replace')[-800:]}")

    async def ask(self, body: dict[str, Any]) -> Answer:
        """One streamed reply."""
        return await chat("127.0.0.1", self.port, body)

    def stop(self) -> None:
        """Let it not run: idle threads may spin."""
        if hasattr(signal, "SIGSTOP"):
            self._process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it run again."""
        if hasattr(signal, "SIGCONT"):
            self._process.send_signal(signal.SIGCONT)

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that it had so far, where the system tells it."""
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
            return None if found is None else int(found[1]) * 1024
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def ours(model: str, threads: int, slots: int, context: int, *more: str, label: str = "fucina") -> ServerProcess:
    """`fucina serve`."""
    command = [sys.executable, "-m", "fucina", "serve", model, "--port", "{port}", "--threads", str(threads)]
    command += ["--batch", str(slots), "--context", str(context), "--queue", "256", "--conns", "512", *more]
    return ServerProcess(label, command)


def theirs(program: str, file: Path, threads: int, slots: int, context: int, *more: str) -> ServerProcess:
    """llama-server, with as many slots of the same context."""
    command = [
        program,
        "-m",
        str(file),
        "--port",
        "{port}",
        "--host",
        "127.0.0.1",
        "-t",
        str(threads),
        "-np",
        str(slots),
    ]
    command += ["-c", str(slots * context), "--no-webui", *more]
    return ServerProcess("llama-server", command)


def find_peer(given: str | None) -> str:
    """The path of llama-server: as given, or of the variable FUCINA_LLAMA_SERVER.  Raises PeerNotFound."""
    program = given or os.environ.get(PEER, "")
    if not program or not Path(program).is_file():
        raise PeerNotFound(f"llama-server is needed: build it, and name it by --peer or {PEER} (now {program!r})")
    return program
