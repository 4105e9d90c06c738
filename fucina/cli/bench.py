"""`fucina bench`: measure speed on this machine, beside llama.cpp where it is installed."""

from __future__ import annotations

import argparse
import sys

from . import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    common.add_model_name(parser)
    parser.add_argument("--backend", choices=("native", "naive"), default="native", help="of fucina (native)")
    parser.add_argument("--threads", type=int, metavar="N", help="of every engine (the machine's cores)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of every engine (5)")
    parser.add_argument("--quick", action="store_true", help="two short turns")
    parser.add_argument("--verify-cost", action="store_true", help="what passes of 1 to 16 rows cost, instead")
    parser.add_argument("--streams", action="store_true", help="several streams in lockstep, instead")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="a Python that has llama_cpp (FUCINA_LLAMA_PYTHON, else this one if it has it)",
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, and print a table or the record with all samples."""
    from .. import hub
    from ..errors import InvalidOption, PeerNotFound
    from ..measure import results, speed, tables
    from ..measure.duel import Side, find_peer
    from ..ops.native.cores import default_threads

    if args.rounds < 1:
        raise InvalidOption(f"--rounds must be at least 1, got {args.rounds}")
    if args.threads is not None and args.threads < 1:
        raise InvalidOption(f"--threads must be at least 1, got {args.threads}")
    threads = args.threads or default_threads()
    path = str(hub.find(args.model))
    options = {"backend": args.backend} | ({"threads": threads} if args.backend == "native" else {})
    sides = [Side("fucina", "fucina", path, options)]
    if not args.alone:
        try:
            sides.append(Side("llama.cpp", "llama.cpp", path, {"threads": threads}, find_peer(args.peer_python)))
        except PeerNotFound as error:
            if args.peer_python:
                raise
            print(f"measuring fucina alone: {error}", file=sys.stderr)

    plan, windowed = speed.plan_for(path, args.quick, args.rounds, args.verify_cost, args.streams)
    record = speed.run(sides, plan, threads, windowed, say=lambda text: print(text, file=sys.stderr, flush=True))
    record = results.rounded({"stamp": results.stamp(_command(args, threads)), **record})
    if args.json:
        common.print_json(record)
    else:
        for title, table in tables.tables("speed", record):
            print((f"{title}\n" if title else "") + tables.text(table) + "\n")
        print("Median of the turns (lowest-highest), and the share of the measured bandwidth.")
    return 0


def _command(args: argparse.Namespace, threads: int) -> str:
    """The command that repeats this, without paths."""
    flags = [f"--{n.replace('_', '-')}" for n in ("quick", "verify_cost", "streams", "alone") if getattr(args, n)]
    return " ".join(["fucina bench", *flags, "--threads", str(threads), "--rounds", str(args.rounds)])
