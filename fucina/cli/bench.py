"""`fucina bench`: measure speed on this machine, beside llama.cpp where it is installed."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from ..errors import InvalidOption
from . import common, text

_SWITCHES = ("quick", "rows", "streams", "verify_cost", "alone")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    common.add_model_name(parser)
    parser.add_argument(
        "--backend", choices=("native", "naive"), default="native", help="fucina's interpreter (native)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of every engine (the machine's cores)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of every engine (5; 15 with --verify-cost)")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    group = parser.add_argument_group("instead of decode and prefill").add_mutually_exclusive_group()
    group.add_argument("--rows", action="store_true", help="what passes of 1 to 16 rows cost")
    group.add_argument("--streams", action="store_true", help="what several streams in lockstep cost")
    group.add_argument(
        "--verify-cost",
        action="store_true",
        help="costs that speculation works with: passes of 1 to 128 rows after 128 to 4096 tokens; fucina alone",
    )
    parser.add_argument(
        "--write", metavar="FILE", help="with --verify-cost: a table for --spec-costs of generate and chat"
    )
    parser.add_argument("--alone", action="store_true", help="measure fucina only, not llama.cpp beside it")
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="a Python that has llama_cpp (FUCINA_LLAMA_PYTHON, else this one if it has it)",
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table or the record with all samples."""
    if args.rounds is None:
        args.rounds = 15 if args.verify_cost else 5
    if args.rounds < 1:
        raise InvalidOption(f"--rounds must be at least 1, got {args.rounds}")
    if args.threads is not None and args.threads < 1:
        raise InvalidOption(f"--threads must be at least 1, got {args.threads}")
    if args.write is not None and not args.verify_cost:
        raise InvalidOption("--write needs --verify-cost")
    from ..ops.native.cores import default_threads

    threads = args.threads or default_threads()
    return _verify_cost(args, threads) if args.verify_cost else _duel(args, threads)


def _duel(args: argparse.Namespace, threads: int) -> int:
    from .. import hub
    from ..errors import PeerNotFound
    from ..measure import results, speed, tables
    from ..measure.duel import Side, find_peer

    path = str(hub.find(args.model))
    options = {"backend": args.backend} | ({"threads": threads} if args.backend == "native" else {})
    sides = [Side("fucina", "fucina", path, options)]
    if not args.alone:
        try:
            sides.append(Side("llama.cpp", "llama.cpp", path, {"threads": threads}, find_peer(args.peer_python)))
        except PeerNotFound as error:
            if args.peer_python:
                raise
            text.tell(f"measuring fucina alone: {error}")

    plan, windowed = speed.plan_for(path, args.quick, args.rounds, args.rows, args.streams)
    record = speed.run(sides, plan, threads, windowed, say=text.tell)
    record = results.rounded({"stamp": results.stamp(_command(args, threads)), **record})
    if args.json:
        text.print_json(record)
    else:
        for title, table in tables.tables("speed", record):
            print((f"{title}\n" if title else "") + tables.text(table) + "\n")
        print("Median of the rounds (lowest-highest), and the share of the measured bandwidth.")
    return 0


def _verify_cost(args: argparse.Namespace, threads: int) -> int:
    if args.write is not None and (Path(args.write).is_dir() or not Path(args.write).absolute().parent.is_dir()):
        raise InvalidOption(
            f"--write {args.write}: there is no folder for such a file"
        )  # before measuring takes a minute
    from ..loading import load
    from ..measure import tables, verify_cost

    rows, contexts = verify_cost.ROWS, verify_cost.CONTEXTS
    rounds = 2 if args.quick else args.rounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # longer than some models were trained for: the time is the same
        model = load(args.model, backend=args.backend, threads=threads, context=max(contexts) + max(rows))
    try:
        name = verify_cost.public_name(args.model)
        measured = contexts[:1] if args.quick else contexts
        table = verify_cost.measured_table(model, name, _command(args, threads), rows, measured, rounds, text.tell)
    finally:
        model.close()
    if args.write is not None:
        try:
            table.save(args.write)
        except OSError as error:
            raise InvalidOption(f"--write {args.write}: {error.strerror}") from None
    if args.json:
        text.print_json(table.as_dict())
    else:
        print(tables.text(verify_cost.shown(table)))
        print("Cost of a pass with that many rows, as a multiple of a pass with one row: medians of the rounds.")
    return 0


def _command(args: argparse.Namespace, threads: int) -> str:
    """The command that repeats this, without paths."""
    flags = [f"--{n.replace('_', '-')}" for n in _SWITCHES if getattr(args, n)]
    return " ".join(["fucina bench", *flags, "--threads", str(threads), "--rounds", str(args.rounds)])
