"""`fucina tokenize`: text to token ids and pieces, or ids to text."""

from __future__ import annotations

import argparse

from ..checks import shown
from ..errors import InvalidOption
from . import common, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "text", nargs="?", type=text.argument, help="the text; without it, or for -, it is read from stdin"
    )
    common.add_model_name(parser)
    parser.add_argument("--plain", action="store_true", help="markers such as <|im_end|> in the text stay text")
    parser.add_argument("--bos", action="store_true", help="put BOS in front if the model wants it, as `generate` does")
    parser.add_argument(
        "--decode", action="store_true", help="TEXT is token ids (separated by spaces or commas): print their text"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print one line per token, or the decoded text."""
    from .. import hub
    from ..gguf import GgufFile
    from ..tokenizers import load_tokenizer

    given = text.read_text(args.text, "text")
    file = GgufFile(hub.find(args.model))
    tokenizer = load_tokenizer(file.metadata)
    file.close()
    if args.decode:
        ids = [_id(word) for word in given.replace(",", " ").split()]
        given = tokenizer.decode(ids)
    else:
        ids = (tokenizer.encode_prompt if args.bos else tokenizer.encode)(given, special=not args.plain)
    pieces = [tokenizer.piece(token) for token in ids]
    if args.json:
        tokens = [
            {
                "id": token,
                "piece": piece.decode("utf-8", "replace"),
                "bytes": piece.hex(),
                "special": tokenizer.is_special(token),
            }
            for token, piece in zip(ids, pieces, strict=True)
        ]
        text.print_json({"text": given, "count": len(ids), "tokens": tokens})
    elif args.decode:
        print(given)
    else:
        rows = [(str(token), _shown(piece)) for token, piece in zip(ids, pieces, strict=True)]
        if rows:
            print(text.columns(rows, right=(0,)))
        print(f"{len(ids)} tokens, {len(given)} characters, {len(given.encode('utf-8'))} bytes")
    return 0


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise InvalidOption(
            f"{shown(word)} is not a token id: expected integers separated by spaces or commas"
        ) from None


def _shown(piece: bytes) -> str:
    """A piece as a quoted string: ASCII, spaces visible; bytes where it is not UTF-8 by itself."""
    try:
        return ascii(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)
