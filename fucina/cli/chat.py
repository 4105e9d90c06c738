"""`fucina chat`: a conversation, in the terminal or from arguments."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .. import defaults
from . import common

if TYPE_CHECKING:
    from ..chat import Conversation

FORMATS = ("chatml", "llama3", "gemma", "gemma4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "message",
        nargs="*",
        help="send these in turn, as they are, and leave; without any, lines come from the terminal or stdin: messages, "
        "or commands (/help)",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message that opens the conversation")
    parser.add_argument("--format", choices=FORMATS, help="a built-in chat format (the model's own template)")
    parser.add_argument("--think-off", action="store_true", help="ask the model not to reason before it answers")
    common.add_max_tokens(parser, defaults.REPLY_TOKENS)
    parser.add_argument("--no-history", action="store_true", help="keep typed lines for this session only")
    common.add_model_options(parser)
    common.add_sampling_options(parser)
    common.add_spec_options(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the messages, the terminal or stdin end."""
    from ..chat import Conversation

    sampling = common.sampling_options(args)
    speculation, references = common.spec_options(args)
    if args.format is None:
        _check_template(args.model)
    model = common.load_model(args)
    try:
        conversation = Conversation(
            model,
            args.system,
            template=args.format,
            max_tokens=args.max_tokens,
            think_off=args.think_off,
            stop=args.stop,
            speculation=speculation,
            references=references,
            **sampling,
        )
        if args.message or args.json:
            messages = args.message or [line for line in common.read_lines("messages") if line]
            status = _answer(conversation, messages, str(model.path), args.json)
        else:
            from .talk import talk

            status = talk(conversation, keep_history=not args.no_history)
        if args.spec_stats:
            print(*common.spec_report(conversation.drafter), sep="\n", file=sys.stderr)
        return status
    finally:
        model.close()


def _check_template(name: str) -> None:
    """Refuse a model without a chat template before anything is compiled for it."""
    from .. import hub
    from ..chat.template import ChatTemplate
    from ..gguf import GgufFile

    file = GgufFile(hub.find(name))
    try:
        ChatTemplate(file.metadata.str("tokenizer.chat_template", default=None))
    finally:
        file.close()


def _answer(conversation: Conversation, messages: list[str], path: str, as_json: bool) -> int:
    """Send messages in turn; each reply is a line of output, or part of one document."""
    turns: list[dict[str, Any]] = []
    interrupted = False
    for message in messages:
        reply = conversation.send(message, stream=True)
        try:
            for piece in reply:
                if not as_json:
                    common.show(piece)
        except KeyboardInterrupt:
            interrupted = True
            reply.close()
        turns.append(
            {
                **common.describe(reply.result, "interrupted" if interrupted else None),
                "reused": reply.result.reused_prefix,
            }
        )
        if not as_json:
            common.show("\n")
        if interrupted:
            break
    if as_json:
        document = {"model": path, "messages": list(conversation.messages), "turns": turns}
        common.print_json({**document, **common.describe_spec(conversation.drafter)})
    return 130 if interrupted else 0
