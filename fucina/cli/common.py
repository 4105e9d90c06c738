"""Options that several subcommands share, and what their values mean."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import defaults
from ..errors import InvalidOption
from .quick_start import started
from .text import argument, tell

if TYPE_CHECKING:
    from ..engine.drafts import Drafter
    from ..generation import Generation
    from ..model import Model
    from ..sampling import Grammar
    from ..sampling.recommended import Recommended

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
)


def add_model_name(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "-m",
        "--model",
        default="smollm2",
        metavar="NAME|PATH",
        help="a name from `fucina models`, or a .gguf (smollm2)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else on stdout")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what `fucina.load` takes."""
    add_model_name(parser)
    add_running_options(parser)


def add_running_options(parser: argparse.ArgumentParser, context: str = "as the model was trained") -> None:
    """Add what `fucina.load` takes beside a name; `context` tells the default of that option."""
    group = parser.add_argument_group("running the model")
    group.add_argument(
        "--backend", choices=("native", "naive"), default="native", help="compiled, or plain NumPy (native)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="threads of the native backend (the machine's cores)")
    group.add_argument(
        "--context", type=int, metavar="N", help=f"longest text in tokens, prompt and reply together ({context})"
    )
    group.add_argument(
        "--cache-dtype",
        choices=("f16", "q8_0", "f32"),
        help="number format of the cache; q8_0 takes half the memory of f16 (f16; f32 for a model in f32)",
    )


def add_sampling_options(
    parser: argparse.ArgumentParser, title: str = "choosing tokens (default: greedy, everything else off)"
) -> None:
    """Add how tokens are chosen, and when to end."""
    group = parser.add_argument_group(title)

    def add(flag: str, kind: type, letter: str, default: float, text: str, *short: str) -> None:
        group.add_argument(*short, flag, type=kind, metavar=letter, help=f"{text} ({default:g})")

    add("--temperature", float, "T", defaults.TEMPERATURE, "0: always the likeliest token", "-t")
    add("--top-k", int, "K", defaults.TOP_K, "keep the K likeliest; 0: all")
    add("--top-p", float, "P", defaults.TOP_P, "keep the likeliest that reach probability P")
    add("--min-p", float, "P", defaults.MIN_P, "keep those at least P times as likely as the best")
    add("--repeat-penalty", float, "R", defaults.REPEAT_PENALTY, "divides logits of seen tokens; 1: off")
    add("--frequency-penalty", float, "F", defaults.FREQUENCY_PENALTY, "subtracted per occurrence")
    add("--presence-penalty", float, "F", defaults.PRESENCE_PENALTY, "subtracted once from seen tokens")
    add("--repeat-last-n", int, "N", defaults.REPEAT_LAST_N, "how many tokens the penalties look at")
    group.add_argument(
        "--seed", type=int, metavar="N", help="seed of the random draws (a random one, which is printed)"
    )
    group.add_argument(
        "--stop",
        type=argument,
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be repeated",
    )


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    """Add -n."""
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=default, metavar="N", help=f"at most this many new tokens ({default})"
    )


def add_grammar_options(parser: argparse.ArgumentParser) -> None:
    """Add grammars: which texts a reply may be."""
    group = parser.add_argument_group("a reply that follows a grammar (one of these)")
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument(
        "--json-schema", metavar="FILE|TEXT", help="JSON that a schema allows; a file, or the schema itself"
    )
    kinds.add_argument("--json-reply", action="store_true", help="any JSON value")
    kinds.add_argument("--regex", metavar="PATTERN", help="a text that the regular expression matches as a whole")
    kinds.add_argument(
        "--lark", metavar="FILE|TEXT", help="a sentence of a grammar in Lark's notation, which starts at `start`"
    )
    group.add_argument("--max-field", type=int, metavar="N", help="with --json-schema: limit fields that have no limit")


def grammar_option(args: argparse.Namespace) -> Grammar | None:
    """Return the grammar that the options name, or None.

    Raises
    ------
    InvalidGrammar, LlguidanceNotEnabled
        Before a model is loaded.
    InvalidOption
        A file cannot be read, or --max-field has nothing to limit.
    """
    from ..sampling import Grammar

    if args.max_field is not None and args.json_schema is None:
        raise InvalidOption("--max-field needs --json-schema")
    if args.json_schema is not None:
        return Grammar.json_schema(_file_or_text("--json-schema", args.json_schema, "{"), max_field=args.max_field)
    if args.lark is not None:
        return Grammar.lark(_file_or_text("--lark", args.lark, ":"))
    if args.regex is not None:
        return Grammar.regex(args.regex)
    return Grammar.json() if args.json_reply else None


def _file_or_text(option: str, value: str, mark: str) -> str:
    """The contents of a file; what holds `mark`, or is true or false, is the text itself unless a file is named so."""
    if value.strip() in ("", "-"):
        raise InvalidOption(f"{option} {value!r}: expected the name of a file, or the text itself; stdin is not read")
    try:
        path = Path(value)
        if path.is_file() or not (mark in value or value.strip() in ("true", "false")):
            return path.read_bytes().decode("utf-8")
    except OSError as error:
        if mark not in value:
            raise InvalidOption(f"{option} {value}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{option} {value}: not UTF-8, at byte {error.start}") from None
    return value


def add_spec_options(parser: argparse.ArgumentParser) -> None:
    """Add speculation: the same tokens in less time, where text repeats itself."""
    group = parser.add_argument_group("speculation: the same tokens, in less time where text repeats itself")
    group.add_argument(
        "--spec", action="store_true", help="draft tokens from the text so far and verify several in one pass"
    )
    group.add_argument(
        "--spec-ref",
        action="append",
        default=[],
        metavar="FILE",
        help="a text that may be quoted, to draft from too; may be repeated",
    )
    group.add_argument(
        "--spec-costs",
        metavar="FILE",
        help="costs of passes on this machine, from `fucina bench --verify-cost --write` (built in)",
    )
    group.add_argument("--spec-stats", action="store_true", help="print on stderr how many drafts were accepted")


def spec_options(args: argparse.Namespace) -> tuple[Any, list[str]]:
    """Return how to speculate (False, True, or options with the user's table), and the texts of the references.

    Raises
    ------
    InvalidOption
        A reference or a table cannot be read, is empty or is none, or an option makes no sense without --spec.
    """
    for option, given in (
        ("--spec-ref", args.spec_ref),
        ("--spec-costs", args.spec_costs is not None),
        ("--spec-stats", args.spec_stats),
    ):
        if given and not args.spec:
            raise InvalidOption(f"{option} needs --spec")
    texts = []
    for name in args.spec_ref:
        try:
            texts.append(Path(name).read_bytes().decode("utf-8"))
        except OSError as error:
            raise InvalidOption(f"--spec-ref {name}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise InvalidOption(f"--spec-ref {name}: not UTF-8, byte 0x{byte:02X} at {error.start}") from None
        if not texts[-1]:
            raise InvalidOption(f"--spec-ref {name}: the file is empty, there is nothing to quote")
    if args.spec_costs is None:
        return args.spec, texts
    from ..speculative import CostTable, Options

    try:
        return Options(cost_table=CostTable.load(args.spec_costs)), texts
    except OSError as error:
        raise InvalidOption(f"--spec-costs {args.spec_costs}: {error.strerror}") from None


def spec_report(drafter: Drafter | None) -> list[str]:
    """Return lines about a drafter's work, for people."""
    parts = (getattr(drafter, "stats", None), getattr(drafter, "source", None))
    return [part.summary() for part in parts if part is not None]


def describe_spec(drafter: Drafter | None) -> dict[str, Any]:
    """Return the same for a script; nothing for plain decoding."""
    stats = getattr(drafter, "stats", None)
    if stats is None:
        return {}
    source = getattr(drafter, "source", None)
    counts = source.counts() if source is not None and hasattr(source, "counts") else {}
    sources = {name: {"accepted": a, "drafted": d, "muted": muted} for name, (a, d, muted) in counts.items()}
    return {"speculation": {**stats.as_dict(), "sources": sources}}


def load_model(args: argparse.Namespace) -> Model:
    """Load the model that the options name."""
    from ..loading import load

    model = load(
        args.model, backend=args.backend, threads=args.threads, context=args.context, cache_dtype=args.cache_dtype
    )
    started()
    return model


def sampling_options(
    args: argparse.Namespace, recommended: Recommended | None = None, choose_seed: bool = True
) -> dict[str, Any]:
    """Return fields of SamplerOptions: those given, over those that the model's makers recommend; and a seed.

    A recommendation that is used, and a seed that was chosen because tokens are drawn (with `choose_seed`), are printed:
    nothing else shows them.  `--temperature 0` means greedy, without anything that was recommended.
    """
    from ..sampling import SamplerOptions
    from ..sampling.recommended import ALL_TOKENS

    given = {name: value for name in SAMPLING if (value := getattr(args, name)) is not None}
    if args.seed is not None:
        given["seed"] = args.seed
    SamplerOptions(**given)  # a bad setting should fail before a model is loaded
    used: dict[str, Any] = {}
    if recommended is not None and given.get("temperature", 1) > 0:
        used = {name: value for name, value in recommended.options.items() if name not in given}
    options = {**used, **given}
    notice = []
    if recommended is not None and used:
        settings = ", ".join(f"{name} {'all' if value >= ALL_TOKENS else f'{value:g}'}" for name, value in used.items())
        notice.append(f"sampling: {settings} (recommended {recommended.source})")
    if args.seed is None and options.get("temperature", 0) > 0 and choose_seed:
        options["seed"] = random_seed()
        notice.append(f"seed {options['seed']} (--seed {options['seed']} repeats this run)")
    if notice:
        tell("; ".join(notice))
    return options


def random_seed() -> int:
    """A seed for whoever gave none."""
    return secrets.randbits(32)


def describe(result: Generation, finish_reason: str | None = None) -> dict[str, Any]:
    """Return a generation as plain values for a script."""
    return {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": finish_reason or result.finish_reason,
        **({} if result.complete is None else {"complete": result.complete}),
        "stop": result.stop,
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "seed": result.seed,
        "prefill_seconds": round(result.prefill_seconds, 6),
        "decode_seconds": round(result.decode_seconds, 6),
        "tokens_per_second": round(result.decode_rate, 2),
    }
