"""`fucina chat`: a conversation, in the terminal or from arguments."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import ChatTemplateError, ContextFull
from . import common

if TYPE_CHECKING:
    from ..chat import ChatSession

HELP = """/reset   forget the conversation (the system message stays)
/stats   tokens in the cache, speed of the last reply
/help    this
/exit    leave (also Ctrl-D)
Ctrl-C stops a reply; what was said stays."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("message", nargs="*", help="send these in turn and leave; without any, talk in the terminal")
    parser.add_argument("--system", metavar="TEXT", help="a system message that opens the conversation")
    common.add_model_options(parser)
    common.add_sampling_options(parser)
    parser.add_argument("-n", "--max-tokens", type=int, default=512, metavar="N", help="longest reply (512)")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the messages, the terminal or stdin end."""
    from ..chat import ChatSession
    from ..sampling import SamplerOptions

    options = SamplerOptions(**common.sampling_options(args))
    _check_template(args.model)
    model = common.load_model(args)
    try:
        session = ChatSession(model, args.system, options, args.max_tokens, args.stop, args.context)
        if args.message or not sys.stdin.isatty() or args.json:
            messages = args.message or common.read_text(None, "messages").splitlines()
            return _answer(session, messages, str(model.path), args.json)
        return _talk(session)
    finally:
        model.close()


def _check_template(name: str) -> None:
    """Refuse a model without a chat template before anything is compiled for it."""
    from .. import hub
    from ..chat import ChatTemplate
    from ..gguf import GgufFile

    file = GgufFile(hub.find(name))
    try:
        ChatTemplate(file.metadata.str("tokenizer.chat_template", default=None))
    finally:
        file.close()


def _answer(session: ChatSession, messages: list[str], path: str, as_json: bool) -> int:
    """Send messages in turn; each reply is a line of output, or part of one document."""
    turns: list[dict[str, Any]] = []
    interrupted = False
    for message in messages:
        reply = session.send(message)
        try:
            for piece in reply:
                if not as_json:
                    common.show(piece)
        except KeyboardInterrupt:
            interrupted = True
            reply.close()
        turns.append({**common.describe(reply.result, "interrupted" if interrupted else None), "reused": reply.reused})
        if not as_json:
            common.show("\n")
        if interrupted:
            break
    if as_json:
        common.print_json({"model": path, "messages": list(session.messages), "turns": turns})
    return 130 if interrupted else 0


def _talk(session: ChatSession) -> int:
    try:
        import readline  # noqa: F401  # line editing and history for input(), where the system has it
    except ImportError:
        pass
    print("Type a message; /help for commands, Ctrl-D to leave.", file=sys.stderr)
    stats = "nothing said yet"
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return 0
        if text in ("/exit", "/quit"):
            return 0
        if text == "/help":
            print(HELP, file=sys.stderr)
        elif text == "/reset":
            session.reset()
            print("forgotten", file=sys.stderr)
        elif text == "/stats":
            print(f"{session.used} of {session.capacity} positions in use; {stats}", file=sys.stderr)
        elif text.startswith("/"):
            print(f"no command {text.split()[0]}; /help lists them", file=sys.stderr)
        elif text:
            stats = _reply(session, text) or stats


def _reply(session: ChatSession, text: str) -> str | None:
    """Stream one reply; a message that cannot be sent leaves the conversation as it was."""
    try:
        reply = session.send(text)
    except (ContextFull, ChatTemplateError) as error:
        print(f"{error}", file=sys.stderr)
        return None
    try:
        for piece in reply:
            common.show(piece)
    except KeyboardInterrupt:
        reply.close()
        common.show(" [stopped]")
    common.show("\n")
    result = reply.result
    return (
        f"last reply: {reply.reused} of {result.prompt_tokens} prompt tokens reused, "
        f"{len(result.tokens)} new at {result.decode_rate:.1f} tokens/s, finish: {result.finish_reason}"
    )
