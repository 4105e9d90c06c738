"""`fucina serve`: answer requests over HTTP."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import warnings
from functools import partial
from typing import TYPE_CHECKING

from .. import checks
from ..defaults import PREFILL_STRETCH
from ..errors import InvalidOption
from . import common, text

if TYPE_CHECKING:
    from ..chat import SlotPool
    from ..model import Model
    from ..serve import Models, Offer

CONTEXT = 4096
KEY = "FUCINA_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "models",
        nargs="*",
        type=text.argument,
        default=["smollm2"],
        metavar="MODEL",
        help="a name from `fucina models`, a .gguf, or NAME=one of these; of several, the first answers requests that name"
        " none, and the others are loaded when they are first asked for (smollm2)",
    )
    parser.add_argument(
        "--name", type=text.argument, help="what a single model is called (its name in `fucina models`, or its file's)"
    )
    add_door_options(parser, "0: any that is free (8080)")
    group = parser.add_argument_group("how much at once")
    group.add_argument("--batch", type=int, default=8, metavar="N", help="replies that are made at once (8)")
    group.add_argument("--queue", type=int, default=16, metavar="N", help="requests that may wait (16)")
    group.add_argument("--conns", type=int, default=32, metavar="N", help="requests that may be under way (32)")
    group.add_argument(
        "--queue-per-key",
        type=int,
        metavar="N",
        help="how many of them one key's may be (--queue, divided by the keys)",
    )
    group.add_argument(
        "--stretch",
        type=float,
        default=PREFILL_STRETCH,
        metavar="X",
        help=f"a pass may take so many times as long for prompts that join replies ({PREFILL_STRETCH})",
    )
    group.add_argument(
        "--memory",
        default="1GiB",
        metavar="SIZE",
        help="for rows of replies, and of earlier requests, per model (1GiB)",
    )
    group.add_argument(
        "--model-memory",
        metavar="SIZE",
        help="for the weights of loaded models: where one more does not fit, the least recently used makes room (no limit)",
    )
    group.add_argument(
        "--kv-cache-dir", metavar="DIR", help="keep rows that memory has no room for there, for later runs too"
    )
    group.add_argument("--kv-cache-size", default="4GiB", metavar="SIZE", help="of files there (4GiB)")
    group.add_argument(
        "--spec", action="store_true", help="draft tokens: the same replies, in less time where text repeats"
    )
    group.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="seconds that replies have to end after Ctrl-C (10)"
    )
    common.add_running_options(parser, f"{CONTEXT}, or less if the model was trained with less")


def add_door_options(parser: argparse.ArgumentParser, port: str) -> None:
    """Add who may ask, and where; `port` tells what the option of that name does."""
    group = parser.add_argument_group("who may ask, and where")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine alone)")
    group.add_argument("--port", type=int, default=8080, metavar="N", help=port)
    group.add_argument(
        "--api-key",
        type=text.argument,
        action="append",
        default=[],
        metavar="KEY",
        help=f"ask for this key; may be repeated: each key has rows and turns of its own (the variable {KEY} is one too)",
    )
    group.add_argument(
        "--allow-host",
        type=text.argument,
        action="append",
        default=[],
        metavar="NAME",
        help="also answer to this name; may be repeated (names of this machine if it alone is listened to, else any)",
    )
    group.add_argument("--cors-origin", type=text.argument, metavar="ORIGIN", help="let web pages of this origin ask")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from ..serve import App, Models, Rules, Server  # raises where packages are missing, before a model is loaded
    from ..serve.gate import guarded_hosts

    keys = [*args.api_key, *filter(None, [os.environ.get(KEY)])]
    _check(args, keys)
    rules = Rules(keys, guarded_hosts(args.host, args.allow_host), args.cors_origin, args.conns)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.ERROR)
    memory = None if args.model_memory is None else checks.byte_count("--model-memory", args.model_memory)
    models = Models(
        _offers(args),
        memory,
        queue=args.queue,
        streams=args.batch,
        speculation=args.spec,
        memory=args.memory,
        share=args.queue_per_key or max(args.queue // max(len(keys), 1), 1),
        stretch=args.stretch,
    )
    app = App.of(models, rules, grace=args.grace)
    try:
        models.load_first()
        _quiet()
        server = Server(app, args.host, args.port, lambda url: _tell(models, url, args.batch))
        server.serve_until_stopped()
    finally:
        app.close(0.0)
    return 0


def _offers(args: argparse.Namespace) -> list[Offer]:
    """What the server may load: files are found and their sizes known before anything is loaded."""
    from .. import hub
    from ..gguf import GgufFile
    from ..serve import Offer
    from ..serve.service import name_of

    several = len(args.models) > 1
    if several and args.name is not None:
        raise InvalidOption("--name is for one model; of several, each is named by NAME=MODEL")
    offers = []
    for given in args.models:
        name, path = _named(given)
        file = hub.find(path)
        name = name or args.name or name_of(file)
        with GgufFile(file) as opened:
            nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
        folder = args.kv_cache_dir
        if folder is not None and several:
            folder = os.path.join(folder, folder_of(name))
        aliases = frozenset({name_of(file), file.stem, file.name})
        offers.append(Offer(name, partial(_open, args, os.fspath(file), folder), aliases, nbytes))
    return offers


def _named(given: str) -> tuple[str | None, str]:
    """The name and the model of NAME=MODEL; a file whose own name has a `=` is a file."""
    name, equals, path = given.partition("=")
    if not equals or os.path.exists(given):
        return None, given
    if not name.strip() or not path:
        raise InvalidOption(f"expected MODEL or NAME=MODEL, got {checks.shown(given)}")
    return name, path


def folder_of(name: str) -> str:
    """A folder's name for the rows of a model: names that no folder can have get a hash in theirs."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain if plain == name else f"{plain[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _open(args: argparse.Namespace, path: str, folder: str | None) -> tuple[Model, SlotPool]:
    """Load a model, and make its pool."""
    from ..chat import SlotPool

    model = _load(args, path)
    try:
        return model, SlotPool(model, args.memory, folder, args.kv_cache_size, background=True)
    except BaseException:
        model.close()
        raise


def _check(args: argparse.Namespace, keys: list[str]) -> None:
    """Refuse wrong options before a model is loaded."""
    checks.integer("--port", args.port, 0, 65535)
    checks.integer("--batch", args.batch, 1)
    checks.integer("--queue", args.queue, 0)
    if args.queue_per_key is not None:
        checks.integer("--queue-per-key", args.queue_per_key, 1)
    checks.real("--stretch", args.stretch, 1, 1000)
    checks.integer("--conns", args.conns, 1)
    checks.real("--grace", args.grace, 0, 3600)
    checks.byte_count("--memory", args.memory)
    if args.model_memory is not None:
        checks.byte_count("--model-memory", args.model_memory)
    checks.byte_count("--kv-cache-size", args.kv_cache_size)
    if any(not key.strip() or not key.isprintable() for key in keys):
        raise InvalidOption("--api-key must be printable and not empty")
    if args.cors_origin is not None and not (args.cors_origin.isascii() and args.cors_origin.isprintable()):
        raise InvalidOption("--cors-origin must be an origin like https://example.org, or *")


def default_context(path: str) -> int:
    """The longest text of a model's that is served if nobody says how long: as trained, at most CONTEXT tokens."""
    from ..gguf import GgufFile

    with GgufFile(path) as file:
        name = file.metadata.str("general.architecture", default="")
        trained = file.metadata.get(f"{name}.context_length", CONTEXT)
    return min(CONTEXT, int(trained)) if isinstance(trained, int) else CONTEXT


def _load(args: argparse.Namespace, path: str) -> Model:
    """Load a model, by default with a context that does not take too much memory."""
    context = default_context(path) if args.context is None else args.context
    return common.load_model(argparse.Namespace(**{**vars(args), "model": path, "context": context}))


def _quiet() -> None:
    """What requests cause is no matter for the server's terminal, and their texts less so."""
    from ..sampling.grammar import IgnoredKeyword
    from ..tokenizers.base import UnencodableBytes

    for kind in (IgnoredKeyword, UnencodableBytes):
        warnings.simplefilter("ignore", kind)


def _tell(models: Models, url: str, streams: int) -> None:
    names = ", ".join(offer.name for offer in models.offers)
    (served,) = models.loaded()
    context, most = served.service.model.context, served.worker.longest
    limit = "" if most >= context else f" Requests of up to {most} tokens fit in --memory."
    text.tell(f"{names} at {url}: {streams} replies at once, context {context}.{limit} Ctrl-C ends it.")
