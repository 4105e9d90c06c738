"""`fucina serve` as a process of its own that is killed: the next one adopts its files, and gives the same replies."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import httpx
import pytest

import fucina
from fucina.cache.memory import bytes_held
from tests.chat_model import write_chat_model


@contextmanager
def server(path, *options):
    """A server's address and its process, which is killed at the end if nobody has ended it."""
    command = [sys.executable, "-m", "fucina", "serve", str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    told: queue.Queue = queue.Queue()

    def read():
        for line in process.stderr:
            told.put(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while True:
            line = told.get(timeout=120)
            url = next((word.rstrip(":") for word in line.split() if word.startswith("http://")), None)
            if url is not None:
                break
        with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
            yield client, process
    finally:
        process.kill()
        process.wait(60)
        reader.join(60)
        process.stderr.close()


def asked(client, text, **options):
    body = {"prompt": text, "max_tokens": 20, "temperature": 0.8, "seed": 4, **options}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def until(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_is_killed_leaves_its_files_to_the_next_one(tmp_path):
    path = write_chat_model(tmp_path / "chat.gguf")
    with closing(fucina.load(path)) as model:
        memory = bytes_held(model.new_cache(1).layout, model.cache_dtype, 512, 256)
    options = ["--memory", str(memory), "--kv-cache-dir", str(tmp_path / "rows"), "--spec"]
    texts = [f"{i}: " + "the quick brown fox jumps over the lazy dog, " * 3 for i in range(5)]
    with server(path, *options) as (client, process):
        first = [asked(client, text)[0] for text in texts]
        until(lambda: metric(client, "fucina_spilled_texts_total") >= 2)
        assert metric(client, "fucina_spill_errors_total") == 0
        body = {"prompt": "a", "max_tokens": 200, "stream": True, "logit_bias": {"65": 100}}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.kill()  # SIGKILL, where there are signals
            process.wait(60)
            with pytest.raises(httpx.HTTPError):
                for _ in lines:
                    pass
    assert list((tmp_path / "rows").iterdir())
    with server(path, *options) as (client, _):
        again = [asked(client, text) for text in texts]
        assert [text for text, _ in again] == first
        assert sum(cached > 100 for _, cached in again) >= 2
        assert client.get("/health").json()["status"] == "ok"


@pytest.mark.slow
def test_servers_that_are_killed_at_any_moment(tmp_path):
    """Many lives of a server over one folder, each under load when it ends: no reply ever differs."""
    path = write_chat_model(tmp_path / "chat.gguf")
    with closing(fucina.load(path)) as model:
        memory = bytes_held(model.new_cache(1).layout, model.cache_dtype, 512, 256)
    options = ["--memory", str(memory), "--kv-cache-dir", str(tmp_path / "rows"), "--kv-cache-size", "2MiB"]
    texts = [f"{i}: " + "one two three four five six seven, " * (1 + i % 5) for i in range(12)]
    expected: dict[str, str] = {}
    cached = 0
    for life in range(12):
        with server(path, *options) as (client, process):
            killer = threading.Timer(0.05 + 0.1 * life, process.kill)
            killer.start()
            try:
                for n in range(1000):
                    text = texts[(7 * n + life) % len(texts)]
                    reply, found = asked(client, text)
                    cached += found
                    assert expected.setdefault(text, reply) == reply
            except (httpx.HTTPError, json.JSONDecodeError):
                pass
            killer.join()
    assert cached > 0
