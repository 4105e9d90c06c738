"""The terminal of `fucina chat`: lines to messages and commands, replies as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ChatTemplateError, ContextFull, NoSuchTurn
from ..replacing import replacing
from . import common, replies
from .save import SUFFIX
from .text import read_lines, show, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..chat import Conversation, Reply, ReplyStream

HELP = """/system [TEXT]  show the system message, or begin anew with another one (/system "" for none)
/reset          forget the conversation (the system message stays)
/undo [N]       take back the last message and its reply, or the last N
/regenerate     answer the last message again
/save FILE      write messages, settings and seed as JSON, to read (`fucina chat --save` keeps a conversation to go on with)
/stats          tokens in the cache, speed of the last reply
/help           this
/exit           leave (also Ctrl-D)
Ctrl-C stops a reply; the text so far stays."""

_HISTORY_LINES = 1000


def talk(conversation: Conversation, keep_history: bool = True, stop_circles: bool = False) -> int:
    """Read lines until the terminal, or stdin, ends or /exit; returns the exit code."""
    terminal = _Terminal(conversation, stop_circles)
    if not sys.stdin.isatty():
        return _read_on(terminal)
    tell("Type a message; /help for commands, Ctrl-D to leave.")
    with _line_editing(keep_history):
        while True:
            try:
                line = _type_line().strip()
            except EOFError:
                tell("")
                return 0
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                tell(
                    f"not sent: byte 0x{byte:02X} of that line is no {error.encoding} text, which this terminal is set to"
                )
                continue
            if line in ("/exit", "/quit"):
                return 0
            if line:
                terminal.take(line)


def _type_line() -> str:
    """Return a typed line; the prompt goes to the terminal, never into a file that stdout is redirected to."""
    if sys.stdout.isatty():
        return input("> ")
    stdout, sys.stdout = sys.stdout, sys.stderr  # where input() writes its prompt
    try:
        return input("> ")
    finally:
        sys.stdout = stdout


def _read_on(terminal: _Terminal) -> int:
    """Take the lines of a script or another program; 1 if one of them could not be done, 130 after Ctrl-C."""
    for line in map(str.strip, read_lines()):
        if line in ("/exit", "/quit"):
            break
        if line:
            terminal.take(line)
        if terminal.stopped:
            return 130
    return 1 if terminal.refused else 0


class _Terminal:
    """Runs lines.  refused: one could not be done.  stopped: Ctrl-C came in a reply."""

    def __init__(self, conversation: Conversation, stop_circles: bool):
        self.conversation, self.stop_circles = conversation, stop_circles
        self.refused = self.stopped = False
        self.last: Reply | None = None
        self.commands: dict[str, Callable[[str], None]] = {
            "/help": lambda text: tell(HELP),
            "/system": self.system,
            "/reset": self.reset,
            "/undo": self.undo,
            "/regenerate": lambda text: self.reply(lambda: self.conversation.regenerate(stream=True)),
            "/save": self.save,
            "/stats": self.stats,
        }

    def take(self, line: str) -> None:
        """Run a line.  One that cannot be done prints why, and leaves the conversation as it was."""
        name, _, rest = line.partition(" ")
        try:
            if not line.startswith("/"):
                self.reply(lambda: self.conversation.send(line, stream=True))
            elif name in self.commands:
                self.commands[name](rest.strip())
            else:
                self.refuse(f"no command {name}; /help lists them")
        except (ContextFull, ChatTemplateError, NoSuchTurn) as error:
            self.refuse(str(error))

    def refuse(self, text: str) -> None:
        """Print why a line cannot be done."""
        self.refused = True
        tell(text)

    def reply(self, begin: Callable[[], ReplyStream]) -> None:
        """Stream one reply."""
        stream = begin()
        if replies.play(stream, show=True, stop_circles=self.stop_circles) == replies.INTERRUPTED:
            self.stopped = True
            show(" [stopped]")
        show("\n")
        self.last = stream.result

    def system(self, text: str) -> None:
        """Show or change the system message."""
        if not text:
            system = self.conversation.system
            tell("no system message" if system is None else system)
            return
        self.conversation.reset(system=None if text in ('""', "''") else text)
        tell("begun anew")

    def reset(self, text: str) -> None:
        """Forget."""
        self.conversation.reset()
        tell("forgotten")

    def undo(self, text: str) -> None:
        """Take turns back."""
        if text and not (text.isascii() and text.isdigit()):
            self.refuse(f"/undo takes a number of turns, got {text}")
            return
        self.conversation.undo(int(text or 1))
        left = sum(m["role"] == "user" for m in self.conversation.messages)
        tell(f"taken back; {left} message{'' if left == 1 else 's'} left")

    def save(self, text: str) -> None:
        """Write the conversation."""
        if not text:
            self.refuse("/save needs the name of a file")
            return
        if text.endswith(SUFFIX):
            self.refuse(f"/save writes JSON, and {SUFFIX} files are those of `fucina chat --save`; choose another name")
            return
        try:
            save(self.conversation, Path(text).expanduser())
        except (OSError, ValueError, RuntimeError) as error:  # the last two: no name of a file, ~ of an unknown user
            self.refuse(f"cannot write {text}: {getattr(error, 'strerror', None) or error}")
        else:
            tell(f"saved {text}")

    def stats(self, text: str) -> None:
        """Print how much of the cache is used, and how fast the last reply was."""
        c, r = self.conversation, self.last
        latest = "no reply yet" if r is None else (
            f"last reply: {r.reused_prefix} of {r.prompt_tokens} prompt tokens reused, "
            f"{len(r.tokens)} new at {r.decode_rate:.1f} tokens/s, finish: {r.finish_reason}"
        )  # fmt: skip
        tell(f"{c.used} of {c.capacity} positions in use; {latest}")
        tell(f"seed {c.sampler.options.seed}, {c.sampler.rng.position} draws made")
        for line in common.spec_report(c.drafter):
            tell(line)


def save(conversation: Conversation, path: Path) -> None:
    """Write messages and all settings that the replies depend on, as JSON; an older file of the name is replaced."""
    document = {
        "model": conversation.model.path.name,
        "messages": list(conversation.messages),
        "max_tokens": conversation.max_tokens,
        "stop": list(conversation.stop),
        "sampling": asdict(conversation.sampler.options),
        "draws": conversation.sampler.rng.position,
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _line_editing(keep: bool) -> Iterator[None]:
    """Line editing for input() where the system has it, with the lines of earlier sessions."""
    try:
        import readline
    except ImportError:
        yield
        return
    from .. import hub

    file = hub.models_folder().parent / "chat_history"
    readline.clear_history()
    readline.set_history_length(_HISTORY_LINES)
    if keep and file.is_file():
        try:
            readline.read_history_file(file)
        except OSError as error:
            tell(f"cannot read the history of typed lines, {file}: {error}")
    try:
        yield
    finally:
        if keep:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as temporary:
                    temporary.touch(mode=0o600)  # nobody else may read what a user typed
                    readline.write_history_file(temporary)
            except OSError as error:
                tell(f"cannot keep the history of typed lines, {file}: {error}")
