"""Sixteen clients of all kinds at once, for long: nothing is mixed up, nothing is left, memory and threads stay flat.

Memory is short the whole time: replies are set aside, texts are pushed out to disk and come back.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

import fucina
from fucina.cache import State
from fucina.cache.memory import bytes_held
from fucina.errors import QueueFull
from fucina.serve import Failed, GenerateRequest, VectorRequest, Worker
from fucina.serve.memory import STEP
from fucina.serve.vectors import Embedded
from tests.serving import alone, collected, models_of_all_kinds, random_request, served

CLIENTS = 16
MINUTES = float(os.environ.get("FUCINA_SOAK_MINUTES", "10"))  # of the slow tests
GRAMMARS = (
    None,
    None,
    fucina.Grammar.regex("[a-f]{3,9}x?"),
    fucina.Grammar.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 4}),
)


@pytest.fixture(autouse=True)
def short_of_memory(monkeypatch):
    """Let replies begin with hardly any room ahead of them, so that they are set aside often."""
    monkeypatch.setattr("fucina.serve.memory.AHEAD", STEP)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with models_of_all_kinds(tmp_path_factory.mktemp("models")) as get:
        yield get


def size(model, rows):
    return bytes_held(model.new_cache(1).layout, model.cache_dtype, model.context, rows)


def rounds(count, seconds):
    """Numbers up to a count; with seconds, for as long as these last."""
    end, n = time.monotonic() + (seconds or 0), 0
    while n < count if seconds is None else time.monotonic() < end:
        yield n
        n += 1


class Flat:
    """Looks after each part of a soak at what could grow: bytes of Python, threads, states, open files."""

    def __init__(self):
        self.seen = []

    @contextmanager
    def part(self):
        gc.collect()
        tracemalloc.start()
        try:
            yield
            gc.collect()
            states = sum(
                issubclass(type(thing), State) for thing in gc.get_objects()
            )  # not isinstance: a weak proxy may be dead
            files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
            self.seen.append((tracemalloc.get_traced_memory()[0], threading.active_count(), states, files))
        finally:
            tracemalloc.stop()

    def check(self):
        first, last = self.seen[0], self.seen[-1]
        assert last[0] < max(2 * self.seen[1][0], 3 << 20), self.seen
        assert last[1] <= first[1] and last[2] <= max(first[2], self.seen[1][2]), self.seen
        assert last[3] <= max(first[3], self.seen[1][3]) + 2, self.seen


# --- the engine's thread ----------------------------------------------------------------------------------------------


def mixed_texts(generator):
    """Texts for vectors, one of them longer than a block of memory."""
    return [generator.integers(0, 250, n).tolist() for n in generator.integers(1, 90, generator.integers(1, 5))]


def mixed_request(generator, model, beginnings, number):
    """Short and long replies, some of which take several blocks of memory."""
    request = random_request(generator, model, beginnings, GRAMMARS, f"tenant {number % 3}")
    if generator.integers(3) == 0 and request.grammar is None:
        most = int(generator.integers(40, 100))
        request = GenerateRequest(
            request.ids, most, request.options, request.stops, biases=request.biases,
            tenant=request.tenant, priority=request.priority,
        )  # fmt: skip
    return request


def soak(model, folder, count, seconds=None):
    """Clients in threads, against a worker; each reply is compared with the one of a stream that runs alone."""
    beginnings = [[(k + 3 * i) % 250 for i in range(40)] for k in range(3)] + [[7]]
    failures, done, vectors, flat = [], [], [], Flat()
    counts = {"complete": 0, "given up": 0, "refused": 0, "set aside": 0, "vectors": 0}

    def client(number):
        generator = np.random.default_rng([number, len(flat.seen)])
        for _ in rounds(count, None if seconds is None else seconds / 3):
            request = mixed_request(generator, model, beginnings, number)
            if generator.integers(8) == 0:
                request = VectorRequest.of(mixed_texts(generator), "last", f"tenant {number % 3}")
            try:
                job = worker.submit(request)
            except QueueFull:
                counts["refused"] += 1
                time.sleep(0.01)
                continue
            if generator.integers(4) == 0:
                for _ in zip(job, range(int(generator.integers(0, 3)))):
                    pass
                job.cancel()
                counts["given up"] += 1
                continue
            tokens, text, end, _ = collected(job)
            counts["set aside"] += job.set_aside
            if isinstance(end, Embedded):
                assert not job.set_aside
                vectors.append((request.texts, np.stack(end.vectors)))
            elif isinstance(end, Failed):
                failures.append(end)
            elif seconds is None or generator.integers(8) == 0:  # comparing takes as long again
                done.append((request, tokens, text, end.finish))
            counts["complete"] += not isinstance(end, Failed)

    budget = 3 * size(model, 128)
    with (
        fucina.SlotPool(model, budget, folder, "4MiB", background=True) as pool,
        Worker(model, pool, queue=12, streams=6, speculation=True, memory=budget, share=8) as worker,
    ):
        for _ in range(3):
            with flat.part():
                with ThreadPoolExecutor(CLIENTS) as clients:
                    list(clients.map(client, range(CLIENTS)))
                while worker.busy or worker.waiting:
                    time.sleep(0.01)
                assert not failures
                for request, tokens, text, finish in done:
                    assert (tokens, text, finish) == alone(model, request)
                done.clear()
                counts["vectors"] += len(vectors)
                for texts, found in vectors:
                    assert found.tobytes() == model.embed(texts).tobytes()
                vectors.clear()
                pool.flush()
        assert pool.stats().in_use == 0 and not worker.set_aside and not worker._line._passed
        assert pool.stats().spills > 0 and pool.stats().disk_errors == 0
    flat.check()
    assert min(counts["complete"], counts["given up"], counts["vectors"]) > 0, counts
    return counts


@pytest.mark.parametrize("kind", ["recurrent"])  # the whole server below has a model without
def test_sixteen_clients(models, kind, tmp_path):
    counts = soak(models(kind), tmp_path / "rows", 3)
    assert counts["complete"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "ring", "recurrent", "latent", "routed"])
def test_sixteen_clients_for_minutes(models, kind, tmp_path):
    counts = soak(models(kind), tmp_path / "rows", 0, 60 * MINUTES / 5)
    assert counts["complete"] > 50 and counts["set aside"] > 0, counts


# --- the whole server -------------------------------------------------------------------------------------------------


def bodies(generator, n):
    """Requests for two routes: short and long, with stops, grammars, biases, choices."""
    words = ["the quick brown fox jumps over the lazy dog", "one two three four five six", "a", "zyx " * 12]
    for i in range(n):
        text = words[i % 4] * int(generator.integers(1, 3)) + f" {i}"
        body = {
            "temperature": float(generator.choice([0, 0.9])),
            "seed": i,
            "max_tokens": int(generator.integers(1, 25)),
        }
        if i % 5 == 1:
            body |= {"regex": f"[{chr(97 + i % 26)}-z]{{4,12}}"}
        elif i % 5 == 2:
            body |= {"stop": ["e", "th"], "frequency_penalty": 0.5}
        elif i % 5 == 3:
            body |= {"n": 2, "logit_bias": {str(65 + i % 20): 3}}
        elif i % 5 == 4:
            body |= {"max_tokens": 220, "logit_bias": {"257": -100}}  # which would end it
        if i % 7 == 6:
            yield "/v1/embeddings", {"input": [text, "a", text * 2], "pooling": ["last", "mean"][i % 2]}
        elif i % 2:
            yield "/v1/completions", {"prompt": text, **body}
        else:
            messages = [{"role": "system", "content": words[0] * 2}, {"role": "user", "content": text}]
            yield "/v1/chat/completions", {"messages": messages, **body}


def said(answer):
    """What a whole answer says, of each choice: its text and how it ended."""
    if "data" in answer.json():
        return [vector["embedding"] for vector in answer.json()["data"]]
    found = answer.json()["choices"]
    return [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in found]


def heard(lines):
    """The same of a stream of events."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        for c in event["choices"]:
            piece = c["text"] if "text" in c else c["delta"].get("content")
            texts[c["index"]] = texts.get(c["index"], "") + (piece or "")
            if c["finish_reason"]:
                ends[c["index"]] = c["finish_reason"]
    return [(texts[i], ends[i]) for i in sorted(texts)]


def soak_server(model, folder, count, seconds=None):
    """Clients over sockets that read to the end, stop reading or hang up, with and without streams."""
    asked = list(bodies(np.random.default_rng(5), 30))
    with served(model) as server, httpx.Client(base_url=server.address, trust_env=False, timeout=60) as one:
        expected = [said(one.post(route, json=body)) for route, body in asked]  # one after another
    flat, counts = Flat(), {"complete": 0, "hung up": 0, "refused": 0}
    budget = size(model, 512)

    def client(number):
        generator = np.random.default_rng([number, len(flat.seen), 9])
        with httpx.Client(base_url=server.address, trust_env=False, timeout=120) as http:
            for _ in rounds(count, None if seconds is None else seconds / 3):
                i = int(generator.integers(len(asked)))
                route, body = asked[i]
                if generator.integers(2) or "input" in body:
                    answer = http.post(route, json=body)
                    if answer.status_code == 429:
                        counts["refused"] += 1
                        assert answer.headers["retry-after"]
                        time.sleep(0.01)
                        continue
                    assert answer.status_code == 200, answer.text
                    assert said(answer) == expected[i]
                else:
                    with http.stream("POST", route, json={**body, "stream": True}) as answer:
                        if answer.status_code == 429:
                            counts["refused"] += 1
                            continue
                        assert answer.status_code == 200
                        lines = answer.iter_lines()
                        if generator.integers(3) == 0:
                            for _ in zip(lines, range(int(generator.integers(0, 4)))):
                                pass
                            counts["hung up"] += 1
                            continue  # closes the connection
                        assert heard(lines) == expected[i]
                counts["complete"] += 1

    with (
        fucina.SlotPool(model, budget, folder, "4MiB", background=True) as pool,
        served(model, pool=pool, queue=10, streams=6, speculation=True, memory=budget) as server,
    ):
        for _ in range(3):
            with flat.part():
                with ThreadPoolExecutor(CLIENTS) as clients:
                    list(clients.map(client, range(CLIENTS)))
                idle(server)
                pool.flush()
        assert pool.stats().disk_errors == 0
        counts["set aside"] = int(metric(server, "fucina_set_aside_total"))
    flat.check()
    return counts


def metric(server, name):
    lines = httpx.get(f"{server.address}/metrics", trust_env=False).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def idle(server):
    """Wait until nothing of any request is left."""
    worker, pool, end = server._app.worker, server._app.pool, time.monotonic() + 60
    while worker.busy or worker.waiting or server._app._under_way:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert pool.stats().in_use == 0 and not worker.set_aside
    assert worker._replies.scheduler.streams == [] and not worker._replies._followers and not worker._line._passed


def test_sixteen_clients_over_sockets(models, tmp_path):
    counts = soak_server(models("chat"), tmp_path / "rows", 3)
    assert counts["complete"] > 40 and counts["hung up"] > 5 and counts["set aside"] > 0, counts


@pytest.mark.slow
def test_sixteen_clients_over_sockets_for_minutes(models, tmp_path):
    counts = soak_server(models("chat"), tmp_path / "rows", 0, 60 * MINUTES)
    assert counts["complete"] > 40 and counts["hung up"] > 10 and counts["set aside"] > 0, counts


def test_two_hundred_that_hang_up_leave_nothing(models):
    """At any place of a reply: before its first token, in its prompt, in the middle, of a stream and of a whole answer."""
    model, generator = models("chat"), np.random.default_rng(1)
    with served(model, streams=4, queue=64) as server:
        flat = Flat()

        def client(number):
            with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as http:
                for i in range(17):
                    prompt = generator.integers(0, 250, 200 if i % 3 == 0 else 3).tolist()
                    body = {"prompt": prompt, "max_tokens": 300, "logit_bias": {"70": 100}}
                    if i % 4 == 3:
                        with pytest.raises(httpx.TimeoutException):
                            http.post("/v1/completions", json=body, timeout=0.001)
                        continue
                    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                        assert answer.status_code == 200
                        for _ in zip(answer.iter_lines(), range(i % 5)):
                            pass

        for _ in range(3):
            with flat.part():
                with ThreadPoolExecutor(4) as clients:
                    list(clients.map(client, range(4)))
                idle(server)
        flat.check()
        with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as http:
            answer = http.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0})
            expected = alone(model, GenerateRequest([1, 2, 3], 5, ends=server._app.service.ends))[1]
            assert said(answer)[0][0] == expected
