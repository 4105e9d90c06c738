"""`fucina chat`: a conversation, in the terminal or from arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import defaults
from . import common, replies, save, text

if TYPE_CHECKING:
    from ..chat import Conversation
    from ..sampling.recommended import Recommended

FORMATS = ("chatml", "llama3", "gemma", "gemma4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "message",
        nargs="*",
        type=text.argument,
        help="send these in turn, as they are, and leave; without any, lines come from the terminal or stdin: messages, "
        "or commands (/help)",
    )
    parser.add_argument(
        "--system", type=text.argument, metavar="TEXT", help="a system message that opens the conversation"
    )
    parser.add_argument("--format", choices=FORMATS, help="a built-in chat format (default: the model's own template)")
    parser.add_argument("--think-off", action="store_true", help="ask the model not to reason before it answers")
    parser.add_argument(
        "--stop-circles", action="store_true", help="end a reply that repeats itself (default: report it and go on)"
    )
    common.add_max_tokens(parser, defaults.REPLY_TOKENS)
    save.add_option(
        parser,
        "keep the conversation in a file, and go on with it the next time (without a name: one file per model, in the "
        "folder `chats` beside the models); /save of the terminal writes JSON to read",
        nargs="?",
        const="",
    )
    parser.add_argument("--no-history", action="store_true", help="keep typed lines for this session only")
    common.add_model_options(parser)
    common.add_sampling_options(
        parser, "choosing tokens (default: what is recommended for the model, else what is in brackets)"
    )
    common.add_grammar_options(parser)
    common.add_spec_options(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Hold the conversation until the messages, the terminal or stdin end."""
    from ..chat import Conversation

    speculation, references = common.spec_options(args)
    grammar = common.grammar_option(args)
    if args.save:
        save.check(args.save)
    sampling = common.sampling_options(args, _look_into(args), choose_seed=args.save is None)
    model = common.load_model(args)
    kept = None if args.save is None else Path(args.save) if args.save else save.own_file(model)
    try:
        with (
            save.failures(),
            Conversation(
                model,
                args.system,
                template=args.format,
                max_tokens=args.max_tokens,
                think_off=args.think_off,
                stop=args.stop,
                grammar=grammar,
                speculation=speculation,
                references=references,
                save=kept,
                **sampling,
            ) as conversation,
        ):
            if kept is not None:
                save.tell_saved(conversation, args.seed is None)
            if args.message or args.json:
                messages = args.message or [line for line in text.read_lines() if line]
                status = _answer(conversation, messages, str(model.path), args)
            else:
                from .talk import talk

                status = talk(conversation, keep_history=not args.no_history, stop_circles=args.stop_circles)
            if args.spec_stats:
                text.tell("\n".join(common.spec_report(conversation.drafter)))
        if conversation.save_error is not None:  # nothing is tried again after this
            text.tell(f"the end of the conversation is not saved: {conversation.save_error}")
            return status or 1
        return status
    finally:
        model.close()


def _look_into(args: argparse.Namespace) -> Recommended | None:
    """Read the recommended sampling; refuse a model without a chat template before anything is compiled for it."""
    from .. import hub
    from ..chat.template import ChatTemplate
    from ..gguf import GgufFile
    from ..sampling.recommended import recommended_sampling

    path = hub.find(args.model)
    with GgufFile(path) as file:
        if args.format is None:
            ChatTemplate(file.metadata.str("tokenizer.chat_template", default=None))
        return recommended_sampling(path, file.metadata)


def _answer(conversation: Conversation, messages: list[str], path: str, args: argparse.Namespace) -> int:
    """Send messages in turn; each reply is a line of output, or part of one document."""
    turns: list[dict[str, Any]] = []
    interrupted = False
    for message in messages:
        stream = conversation.send(message, stream=True)
        ended = replies.play(stream, show=not args.json, stop_circles=args.stop_circles)
        reply = stream.result
        turns.append(common.describe(reply, ended))
        if not args.json:
            text.show("\n")
        interrupted = ended == replies.INTERRUPTED
        if interrupted:
            break
    if args.json:
        document: dict[str, Any] = {"model": path, "messages": list(conversation.messages), "turns": turns}
        if conversation.save_path is not None:
            document["save"] = {"file": str(conversation.save_path), "restored": conversation.restored}
        text.print_json({**document, **common.describe_spec(conversation.drafter)})
    return 130 if interrupted else 0
