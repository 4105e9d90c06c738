"""Sixteen clients of all kinds at once, for long: nothing is mixed up, nothing is left, memory and threads stay flat."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fucina
from fucina.errors import QueueFull
from fucina.serve import Failed, Worker
from tests.chat_model import write_chat_model
from tests.serving import alone, collected, random_request
from tests.toy_families import toy_model

CLIENTS = 16
ROUNDS = int(os.environ.get("FUCINA_SOAK", "12"))  # requests of each client
GRAMMARS = (
    None,
    None,
    fucina.Grammar.regex("[a-f]{3,9}x?"),
    fucina.Grammar.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 4}),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "ring", "recurrent"])
def test_sixteen_clients(kind, tmp_path):
    model = fucina.load(write_chat_model(tmp_path / "chat.gguf")) if kind == "chat" else toy_model(kind)
    beginnings = [[(k + 3 * i) % 250 for i in range(40)] for k in range(3)] + [[7]]
    failures, counts = [], {"complete": 0, "given up": 0, "refused": 0}

    def client(number):
        generator = np.random.default_rng(number)
        for _ in range(ROUNDS):
            request = random_request(generator, model, beginnings, GRAMMARS, f"tenant {number % 3}")
            try:
                job = worker.submit(request)
            except QueueFull:
                counts["refused"] += 1
                continue
            if generator.integers(4) == 0:
                for _ in zip(job, range(int(generator.integers(0, 3)))):
                    pass
                job.cancel()
                counts["given up"] += 1
                continue
            tokens, text, end, _ = collected(job)
            if isinstance(end, Failed):
                failures.append(end)
            else:
                done.append((request, tokens, text, end.finish))
                counts["complete"] += 1

    done: list = []
    # Little memory, so that texts are pushed out to disk and come back.
    with (
        fucina.SlotPool(model, 64 << 10, tmp_path / "rows", "4MiB") as pool,
        Worker(model, pool, queue=12, streams=6, speculation=True) as worker,
    ):
        sizes, threads = [], []
        for _ in range(3):
            done.clear()
            gc.collect()
            tracemalloc.start()
            with ThreadPoolExecutor(CLIENTS) as clients:
                list(clients.map(client, range(CLIENTS)))
            while worker.busy or worker.waiting:
                threading.Event().wait(0.01)
            assert not failures
            for request, tokens, text, finish in done:
                assert (tokens, text, finish) == alone(model, request)
            done.clear()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
            threads.append(threading.active_count())
            tracemalloc.stop()
        assert pool.stats().in_use == 0 and pool.stats().spills > 0
        assert threads[2] <= threads[0]
        assert sizes[2] < max(2 * sizes[1], 2 << 20)
    assert counts["complete"] > ROUNDS and counts["given up"]
    model.close()
