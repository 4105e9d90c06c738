"""`fucina cluster`: serve by replicas of Ray Serve, or simulate replicas that answer a trace."""

from __future__ import annotations

import argparse
import os
import signal
import threading

from .. import checks
from ..defaults import PREFILL_STRETCH
from ..errors import InvalidOption
from . import common, text
from .quick_start import show_all, started
from .serve import CONTEXT, KEY, add_door_options, default_context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "model", nargs="?", default="smollm2", metavar="MODEL", help="a name from `fucina models`, or a .gguf (smollm2)"
    )
    parser.add_argument("--name", type=text.argument, help="what the model is called (its file's name)")
    group = parser.add_argument_group("how many replicas")
    group.add_argument("--replicas", type=int, default=2, metavar="N", help="always so many (2)")
    group.add_argument("--min", type=int, metavar="N", help="with --max: as few as these where there is little to do")
    group.add_argument("--max", type=int, metavar="N", help="as many as these where there is much to do")
    group.add_argument(
        "--target", type=float, metavar="X", help="requests under way per replica that are enough (3/4 of --batch)"
    )
    group.add_argument("--address", metavar="ADDRESS", help="of a cluster of Ray (one is begun on this machine)")
    add_door_options(parser, "the same on every machine (8080)")
    group = parser.add_argument_group("how much at once, of each replica")
    group.add_argument("--batch", type=int, default=8, metavar="N", help="replies that are made at once (8)")
    group.add_argument("--queue", type=int, default=16, metavar="N", help="requests that may wait (16)")
    group.add_argument("--conns", type=int, default=256, metavar="N", help="requests under way, of all replicas (256)")
    group.add_argument(
        "--stretch", type=float, default=PREFILL_STRETCH, metavar="X", help=f"as of `fucina serve` ({PREFILL_STRETCH})"
    )
    group.add_argument("--memory", default="1GiB", metavar="SIZE", help="for rows (1GiB)")
    group.add_argument("--spec", action="store_true", help="draft tokens")
    group.add_argument(
        "--grace", type=float, default=60.0, metavar="S", help="seconds that replies have when a replica goes (60)"
    )
    group = parser.add_argument_group("simulation, which loads no model and needs no Ray")
    group.add_argument(
        "--simulate", metavar="TRACE", help="tell what --replicas would make of a trace (docs/scaling.md)"
    )
    group.add_argument("--seed", type=int, default=0, help="of rules that draw (0)")
    common.add_running_options(parser, f"{CONTEXT}, or less if the model was trained with less")


def run(args: argparse.Namespace) -> int:
    """Simulate, or serve until Ctrl-C."""
    if args.simulate is not None:
        return _simulate(args)
    from ..cluster import check_packages

    checks.integer("--replicas", args.replicas, 1)
    if (args.min is None) != (args.max is None):
        raise InvalidOption("--min and --max belong together")
    checks.integer("--port", args.port, 1, 65535)
    checks.integer("--batch", args.batch, 1)
    checks.integer("--queue", args.queue, 0)
    checks.integer("--conns", args.conns, 1)
    checks.real("--stretch", args.stretch, 1, 1000)
    checks.real("--grace", args.grace, 0, 3600)
    checks.byte_count("--memory", args.memory)
    keys = [*args.api_key, *filter(None, [os.environ.get(KEY)])]
    if any(not key.strip() or not key.isprintable() for key in keys):
        raise InvalidOption("--api-key must be printable and not empty")
    check_packages()
    return _serve(args, keys)


def _serve(args: argparse.Namespace, keys: list[str]) -> int:
    show_all()  # Ray reads YAML
    started()

    from .. import hub
    from ..cluster import deploy
    from ..ops.native.cores import default_threads
    from ..serve import Rules
    from ..serve.gate import guarded_hosts

    least, most = (args.replicas, args.replicas) if args.min is None else (args.min, args.max)
    size = deploy.Size(least, most, args.target or max(1.0, 0.75 * args.batch))
    threads = args.threads or max(1, default_threads() // most)
    file = hub.find(args.model)
    context = default_context(str(file)) if args.context is None else args.context
    settings = deploy.Settings(
        os.fspath(file.resolve()),
        args.name,
        args.backend,
        threads,
        context,
        args.cache_dtype,
        args.memory,
        args.batch,
        args.queue,
        args.stretch,
        args.spec,
        args.grace,
    )
    rules = Rules(keys, guarded_hosts(args.host, args.allow_host), args.cors_origin, args.conns)
    stop = threading.Event()
    before = {sig: signal.signal(sig, lambda *_: stop.set()) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        deploy.start(args.address, args.host, args.port)
        deploy.deploy(settings, rules, size)
        many = f"{least}" if least == most else f"{least} to {most}"
        text.tell(
            f"{file.name} at http://{args.host}:{args.port}: {many} replicas, {threads} threads each. Ctrl-C ends it."
        )
        while not stop.wait(0.5):
            pass
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
        deploy.stop()
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from ..cluster.policies import POLICIES
    from ..cluster.simulate import MOST_REPLICAS, Machine, simulate, table
    from ..cluster.trace import read_trace
    from ..measure import tables

    checks.integer("--replicas", args.replicas, 1, MOST_REPLICAS)
    trace = read_trace(args.simulate)
    machine = Machine(streams=args.batch, stretch=args.stretch)
    text.show(
        tables.text(table(simulate(trace, args.replicas, policy, machine, args.seed) for policy in POLICIES)) + "\n"
    )
    return 0
