# ruff: noqa: F821
# mypy: ignore-errors
import argparse
import sys
import threading
from pathlib import Path

# ======================================================================================================================
# 11. The command line
# ======================================================================================================================


def speak(model, tokenizer, prompt, arguments):
    """One prompt, its text printed as it comes."""
    history = encode_chat(tokenizer, [("user", prompt)]) if arguments.chat else tokenizer.encode_prompt(prompt)
    cache = read_prompt(model, history, len(history) + arguments.max_tokens)
    stream, said = TextStream(), []

    def emit(token):
        said.append(token)
        print(stream.push(tokenizer.piece(token)), end="", flush=True)

    sampler = Sampler(arguments.temperature, arguments.top_p, arguments.min_p, seed=arguments.seed)
    print("" if arguments.chat else prompt, end="", flush=True)
    references = [tokenizer.encode(Path(name).read_text("utf-8"), special=False) for name in arguments.reference]
    log = go_on(model, cache, history, arguments.max_tokens, arguments.how, sampler, emit, tokenizer.eos, references)
    print(stream.end(), end="")
    drafted, accepted = sum(step.drafted for step in log), sum(step.accepted for step in log)
    print(f"\n[{len(said)} tokens in {len(log)} steps, {accepted} of {drafted} drafts accepted]", file=sys.stderr)


def speak_together(model, tokenizer, prompts, arguments):
    """Several prompts in one batch."""
    streams = []
    for prompt in prompts:
        ids = tokenizer.encode_prompt(prompt)
        sampler = Sampler(arguments.temperature, arguments.top_p, arguments.min_p, seed=arguments.seed)
        cache = model.new_cache(len(ids) + arguments.max_tokens)
        stream = Stream(cache, ids, arguments.max_tokens, tokenizer.eos)
        stream.choose = lambda row, sampler=sampler, stream=stream: sampler.next(row, stream.history)
        streams.append(stream)
    batch(model, streams)
    for stream in streams:
        print(tokenizer.decode(stream.history) + (f"\n[{stream.error}]" if stream.error else ""), end="\n\n")


def speak_in_turn(model, tokenizer, prompts, arguments):
    """Several prompts one after the other: what they begin with alike is run once."""
    asked = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    server = Server(model, arguments.slots, max(map(len, asked)) + arguments.max_tokens)
    for ids in asked:
        sampler = Sampler(arguments.temperature, arguments.top_p, arguments.min_p, seed=arguments.seed)
        said, cached = server.answer(ids, arguments.max_tokens, sampler, stop=tokenizer.eos)
        print(tokenizer.decode([*ids, *said]), flush=True)
        print(f"[{cached} of the {len(ids)} tokens of the prompt were there]\n", file=sys.stderr)


def serve(model, tokenizer, port):
    """Answer requests over HTTP, until Ctrl-C."""
    service = Service(model)
    engine = threading.Thread(target=service.run, daemon=True)
    engine.start()
    site = listen(service, tokenizer, port)
    print(f"http://127.0.0.1:{site.server_address[1]}, until Ctrl-C", file=sys.stderr, flush=True)
    try:
        site.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        site.server_close()
        service.close()
        engine.join()


def main():
    """python my_engine.py "Once upon a time"."""
    parser = argparse.ArgumentParser(description="A language-model engine in one file.")
    parser.add_argument("prompt", nargs="*", help="a text to go on with; several are decoded together")
    parser.add_argument("--serve", type=int, metavar="PORT", help="answer requests over HTTP; port 0 takes a free one")
    parser.add_argument(
        "--slots", type=int, metavar="N", help="one prompt after the other, with a pool of N slots for what they share"
    )
    parser.add_argument("--model", default="smollm2", help="a name or a path of a .gguf (default: smollm2)")
    parser.add_argument(
        "--forward", choices=["numpy", "fucina"], default="numpy", help="whose forward (default: numpy)"
    )
    parser.add_argument("--how", choices=list(HOW), default="gate", help="how to decode (default: gate)")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="FILE",
        help="a text that may be quoted: drafts come from it, too",
    )
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is what a user says (one prompt, ChatML markers)"
    )
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, takes the best token")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if bool(arguments.prompt) == (arguments.serve is not None):
        parser.error("either a prompt or --serve PORT is needed")
    from fucina.hub import find

    if arguments.chat and (len(arguments.prompt) != 1 or arguments.slots is not None):
        parser.error("--chat takes one prompt")
    path = str(find(arguments.model))
    tokenizer = open_text(path)
    if arguments.chat and tokenizer.token_id("<|im_start|>") is None:
        parser.error("--chat knows the markers <|im_start|> and <|im_end|> alone, which this model does not have")
    model = NumPyModel(path) if arguments.forward == "numpy" else CompiledModel(path)
    if arguments.serve is not None:
        serve(model, tokenizer, arguments.serve)
    elif arguments.slots is not None:
        if arguments.slots < 1:
            parser.error(f"--slots is at least 1, got {arguments.slots}")
        speak_in_turn(model, tokenizer, arguments.prompt, arguments)
    elif len(arguments.prompt) == 1:
        speak(model, tokenizer, arguments.prompt[0], arguments)
    else:
        speak_together(model, tokenizer, arguments.prompt, arguments)


if __name__ == "__main__":
    main()
