"""What a client is told when there is no room: in each dialect's shape, and for its own key alone."""

from __future__ import annotations

import asyncio

import httpx
import pytest

import fucina
from fucina.cache.memory import bytes_held
from fucina.serve import App, Rules
from tests.chat_model import write_chat_model
from tests.serving import asked

USER = [{"role": "user", "content": "hello"}]
ROUTES = {
    "/v1/chat/completions": ({"messages": USER}, "max_tokens"),
    "/v1/completions": ({"prompt": "hello"}, "max_tokens"),
    "/v1/responses": ({"input": "hello"}, "max_output_tokens"),
    "/v1/messages": ({"model": "any", "messages": USER}, "max_tokens"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"), context=512)
    yield model
    model.close()


def size(model, rows):
    return bytes_held(model.new_cache(1).layout, model.cache_dtype, model.context, rows)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_never_fits_in_memory_is_400(model, route, stream):
    body, limit = ROUTES[route]
    with fucina.SlotPool(model, size(model, 128)) as pool:
        app = App(model, pool, memory=size(model, 128))
        answer = asked(app, "POST", route, {**body, limit: 400, "stream": stream})
        assert answer.status_code == 400 and answer.headers["content-type"].startswith("application/json")
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error" and "enough for 128 tokens" in error["message"]
        assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
        assert asked(app, "POST", route, {**body, limit: 5}).status_code == 200
        app.close(0.0)


def test_a_text_for_a_vector_that_never_fits_is_400(model):
    with fucina.SlotPool(model, size(model, 64)) as pool:
        app = App(model, pool, memory=size(model, 64))
        answer = asked(app, "POST", "/v1/embeddings", {"input": [[1], [1] * 65]})
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
        assert "a text of 65 tokens does not fit" in error["message"]
        assert asked(app, "POST", "/v1/embeddings", {"input": [[1] * 64] * 9}).status_code == 200
        app.close(0.0)


def test_a_key_that_fills_its_share_is_429_and_others_are_answered(model):
    rules = Rules(keys=["greedy", "modest"], connections=100)
    with fucina.SlotPool(model, "64MiB") as pool:
        app = App(model, pool, rules, queue=8, streams=1, share=3)

        async def go():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:

                def ask(key, most=3):
                    body = {"prompt": "a", "max_tokens": most, "logit_bias": {"70": 100}}
                    return asyncio.create_task(
                        client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
                    )

                first = ask("greedy", 400)
                while not app.worker.busy:
                    await asyncio.sleep(0)
                many = [ask("greedy") for _ in range(9)]
                while sum(task.done() for task in many) < 6:
                    await asyncio.sleep(0)
                modest = [ask("modest") for _ in range(3)]
                return [await task for task in (first, *many, *modest)]

        first, *answers = asyncio.run(go())
        codes = [answer.status_code for answer in answers]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert first.status_code == 200 and codes[:9].count(429) == 6 and codes[9:] == [200] * 3
        for answer in refused:
            assert "of this key wait" in answer.json()["error"]["message"] and answer.headers["retry-after"]
        app.close(0.0)


def test_counts_of_memory_and_disk_are_told(model, tmp_path):
    budget = 2 * size(model, 128)
    with fucina.SlotPool(model, budget, tmp_path, background=True) as pool:
        app = App(model, pool, memory=budget, streams=4)
        for i in range(4):
            asked(app, "POST", "/v1/completions", {"prompt": [i] * 100, "max_tokens": 20})
            pool.flush()  # a slow disk would lose texts
        for _ in range(2):  # a count is told once
            text = asked(app, "GET", "/metrics").text
            spills = f'fucina_spilled_texts_total{{model="{app.service.name}"}} {float(pool.stats().spills)}'
            assert spills in text and pool.stats().spills
            for name in ("set_aside_total", "spill_errors_total", "lost_texts_total", "stream_bytes", "writing_bytes"):
                assert f'\nfucina_{name}{{model="{app.service.name}"}} 0.0' in text
        slots = asked(app, "GET", "/slots").json()
        assert slots["pool"]["spills"] == pool.stats().spills and slots["pool"]["budget"] == budget
        app.close(0.0)
