"""What tests of the server share: a tiny chat model that knows tools, requests, and replies that they get alone."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, nullcontext

import httpx
import numpy as np

import fucina
from fucina.engine import Scheduler, Stream
from fucina.engine.text import StreamText
from fucina.generation import finish_reason
from fucina.sampling import BiasTokens, Sampler, SamplerOptions, compose
from fucina.serve import App, Done, GenerateRequest, Server, TextDelta
from tests.chat_model import CHATML, write_chat_model
from tests.toy_families import toy_model

TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ '# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    '{{ \'\n</tools>\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n\' }}'
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'system' and loop.first %}{% else %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    '{% for call in message.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
THINKING = CHATML.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}{% endif %}"
)


KINDS = ("chat", "ring", "recurrent", "latent", "routed")


@contextmanager
def models_of_all_kinds(folder):
    """A function from a kind of `KINDS` to a model, made when it is first asked for."""
    made = {}

    def get(kind):
        if kind not in made:
            path = folder / "chat.gguf"
            made[kind] = fucina.load(write_chat_model(path), context=512) if kind == "chat" else toy_model(kind)
        return made[kind]

    try:
        yield get
    finally:
        for model in made.values():
            model.close()


@contextmanager
def app_of(model):
    """The app of a model with a pool of its own; at the end no slot is in use and no request under way."""
    with fucina.SlotPool(model, memory="64MiB") as pool:
        app = App(model, pool)
        yield app
        app.close(0.0)
        assert pool.stats().in_use == 0
        assert app._under_way == 0


def alone(model, request: GenerateRequest):
    """Tokens, text, finish and draws of a request that has the model for itself, by a stream that is made here."""
    constraint = None if request.grammar is None else request.grammar.constraint(model, request.grammar_ends)
    biases = BiasTokens(request.biases) if request.biases else None
    sampler = Sampler(request.options, compose(biases, constraint))
    text = StreamText(model.tokenizer, request.stops)
    most = min(request.max_tokens, model.context - len(request.ids) + 1)
    stream = Stream(
        model.new_cache(model.context), list(request.ids), sampler, stop_tokens=request.ends, max_tokens=most,
        on_token=text.take,
    )  # fmt: skip
    scheduler = Scheduler(model)
    scheduler.add(stream)
    while scheduler.step() is not None:
        pass
    text.finish()
    if stream.error is not None:
        raise stream.error
    return stream.tokens[stream.prompt_end :], text.text, finish_reason(stream, text)


def collected(job):
    """Tokens, text and the last event of a job."""
    tokens, text, end, logprobs = [], "", None, []
    for event in job:
        if isinstance(event, TextDelta):
            tokens += event.tokens
            text += event.text
            logprobs += event.logprobs
        else:
            end = event
    return tokens, text, end, logprobs


def random_request(generator: np.random.Generator, model, prefixes, grammars=(None,), tenant="") -> GenerateRequest:
    """A request of a random mix: shared beginnings, draws, stops, biases, grammars."""
    prefix = prefixes[generator.integers(len(prefixes))]
    ids = [*prefix, *generator.integers(0, 256, generator.integers(1, 12)).tolist()]
    options = SamplerOptions(
        temperature=float(generator.choice([0.0, 0.8])), top_k=int(generator.choice([0, 5])),
        seed=int(generator.integers(1 << 30)), repeat_penalty=float(generator.choice([1.0, 1.2])),
    )  # fmt: skip
    grammar = grammars[generator.integers(len(grammars))]
    return GenerateRequest(
        ids, int(generator.integers(1, 14)), options,
        stops=("e",) if generator.integers(4) == 0 else (),
        ends=model.tokenizer.eog_ids, grammar=grammar, grammar_ends=model.tokenizer.eog_ids,
        biases={int(generator.integers(256)): 4.0} if generator.integers(3) == 0 else None,
        top_logprobs=2 if generator.integers(3) == 0 else None, tenant=tenant, priority=int(generator.integers(-1, 2)),
    )  # fmt: skip


def ended(end) -> Done:
    """The end of a reply that is complete."""
    assert isinstance(end, Done), end
    return end


def asked(app, method, path, body=None, raw=None, headers=None):
    """One request to an app, in process, and its answer."""

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            if raw is None:
                return await client.request(method, path, json=body, headers=headers)
            kind = {"content-type": "application/json", **(headers or {})}
            return await client.request(method, path, content=raw, headers=kind)

    return asyncio.run(go())


@contextmanager
def served(model, rules=None, pool=None, **options):
    """A server on a thread, with a pool of its own unless one is given."""
    with nullcontext(pool) if pool is not None else fucina.SlotPool(model, memory="64MiB") as pool:
        listening = threading.Event()
        app = App(model, pool, rules, **options)
        server = Server(app, "127.0.0.1", 0, lambda url: listening.set())
        thread = threading.Thread(target=server.serve_until_stopped)
        thread.start()
        try:
            assert listening.wait(60)
            yield server
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive() and not app.worker.alive
        assert pool.stats().in_use == 0
