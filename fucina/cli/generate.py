"""`fucina generate`: continue a text."""

from __future__ import annotations

import argparse

from .. import defaults
from . import common, save, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "prompt", nargs="?", type=text.argument, help="the text; without it, or for -, it is read from stdin"
    )
    common.add_model_options(parser)
    common.add_sampling_options(parser)
    common.add_max_tokens(parser, defaults.GENERATE_TOKENS)
    parser.add_argument("--ignore-eos", action="store_true", help="go on after a token that ends a text")
    parser.add_argument("--stats", action="store_true", help="print counts and speed on stderr at the end")
    save.add_option(
        parser,
        "store prompt and continuation with their rows there; what the next prompt shares with them is not computed again",
    )
    common.add_grammar_options(parser)
    common.add_spec_options(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Stream the continuation to stdout, or print it as JSON."""
    options = common.sampling_options(args)
    speculative, references = common.spec_options(args)
    grammar = common.grammar_option(args)
    kept = None if args.save is None else save.check(args.save)
    prompt = text.read_text(args.prompt, "prompt")
    model = common.load_model(args)
    try:
        stream = model.generate(
            prompt,
            max_tokens=args.max_tokens,
            stop=args.stop,
            stream=True,
            ignore_eos=args.ignore_eos,
            grammar=grammar,
            speculative=speculative,
            references=references,
            save=kept,
            **options,
        )
        interrupted = False
        with save.failures() as failed:
            try:
                for piece in stream:
                    if not args.json:
                        text.show(piece)
            except KeyboardInterrupt:  # the text so far is the result
                interrupted = True
            result = stream.result
    finally:
        model.close()
    if args.json:
        finish = "interrupted" if interrupted else None
        described = {**common.describe(result, finish), **common.describe_spec(stream.stream.drafter)}
        text.print_json({"model": str(model.path), "prompt": prompt, **described})
    else:
        text.show("\n")
    if args.stats:
        stored = f" ({result.cached_tokens} from {kept})" if kept is not None else ""
        text.tell(
            f"prompt {result.prompt_tokens} tokens{stored} in {result.prefill_seconds:.2f} s, "
            f"{len(result.tokens)} new tokens at {result.decode_rate:.1f} tokens/s, finish: {result.finish_reason}"
        )
    if args.spec_stats:
        text.tell("\n".join(common.spec_report(stream.stream.drafter)))
    return 130 if interrupted else 1 if failed else 0
