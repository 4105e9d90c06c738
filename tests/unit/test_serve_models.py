"""Several models in one server: named, loaded on first use, dropped when idle, and each with what is its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx
import pytest

import fucina
from fucina.cli import main
from fucina.errors import InvalidOption, ModelTooLarge, ShuttingDown
from fucina.serve import App, GenerateRequest, Models, Offer
from fucina.serve import models as serve_models
from fucina.serve.metrics import Metrics
from fucina.serve.turns import Turns
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, alone, asked

USER = [{"role": "user", "content": "hello"}]
BODY = {"messages": USER, "max_tokens": 3, "temperature": 0, "logit_bias": {"257": -100}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "a": write_chat_model(folder / "one.gguf", TOOLS_TEMPLATE),
        "b": write_chat_model(folder / "two.gguf"),
        "c": write_chat_model(folder / "three.gguf", TOOLS_TEMPLATE, ("word",)),
    }


class Opener:
    """Loads a model and notes it; `fail` and `hold` decide what becomes of the next load."""

    def __init__(self, path, opened):
        self.path, self.opened, self.fail, self.models = path, opened, False, []
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self):
        assert threading.current_thread().name.startswith("fucina-load")
        self.opened.append(self.path.stem)
        assert self.hold.wait(60)
        if self.fail:
            raise OSError("no such luck")
        model = fucina.load(self.path, threads=1)
        self.models.append(model)
        return model, fucina.SlotPool(model, memory="16MiB")


@contextmanager
def several(files, model_memory=None, sizes=10, **options):
    opened = []
    openers = {name: Opener(path, opened) for name, path in files.items()}
    offers = [
        Offer(name, openers[name], frozenset({path.stem, path.name}), nbytes=sizes) for name, path in files.items()
    ]
    app = App.of(Models(offers, model_memory, **options))
    try:
        yield app, openers, opened
    finally:
        app.close(0.0)
    for opener in openers.values():
        for model in opener.models:
            with pytest.raises(fucina.FucinaError, match="closed"):
                model.logits([1])


def together(app, *bodies, path="/v1/chat/completions"):
    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(client.post(path, json=body) for body in bodies))

    return asyncio.run(go())


def test_models_are_loaded_when_they_are_first_asked_for(files):
    with several(files) as (app, _, opened):
        listed = asked(app, "GET", "/v1/models").json()["data"]
        assert [(m["id"], m["loaded"]) for m in listed] == [("a", False), ("b", False), ("c", False)]
        assert asked(app, "GET", "/props?model=b").json()["loaded"] is False
        assert asked(app, "GET", "/slots").json()["loaded"] is False and opened == []
        found = together(app, *(dict(BODY, model=name) for name in ("b", "two", "two.gguf", "b")))
        assert opened == ["two"]  # once, for all that waited
        assert {r.json()["model"] for r in found} == {"b"}
        assert asked(app, "POST", "/v1/chat/completions", BODY).json()["model"] == "a"  # the first one
        assert asked(app, "POST", "/tokenize", {"content": "x", "model": "c"}).status_code == 200
        assert opened == ["two", "one", "three"]
        assert asked(app, "GET", "/props?model=c").json()["n_vocab"] == 259
        assert asked(app, "GET", "/slots?model=b").json()["pool"]["requests"] == 4
        assert asked(app, "GET", "/slots?model=c").json()["pool"]["requests"] == 0
        counts = asked(app, "GET", "/metrics").text
        for name, n in (("a", 1), ("b", 4)):
            assert f'fucina_requests_total{{end="length",model="{name}"}} {n}.0' in counts
        assert counts.count("# TYPE fucina_requests_total") == 1


def test_every_model_gives_what_it_gives_alone(files):
    with several(files, streams=2) as (app, openers, _):
        bodies = [{"prompt": f"text {i}", "max_tokens": 5, "temperature": 0, "model": "abc"[i % 3]} for i in range(9)]
        found = together(app, *bodies, path="/v1/completions")
        for body, response in zip(bodies, found, strict=True):
            (model,) = openers[body["model"]].models
            request = GenerateRequest(model.tokenizer.encode_prompt(body["prompt"]), 5, ends=model.tokenizer.eog_ids)
            assert response.json()["choices"][0]["text"] == alone(model, request)[1]


def test_unknown_names_in_every_dialect(files):
    with several(files) as (app, _, opened):
        for path, body in (
            ("/v1/chat/completions", BODY), ("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"}),
            ("/v1/responses", {"input": "a"}), ("/tokenize", {"content": "a"}),
        ):  # fmt: skip
            response = asked(app, "POST", path, {**body, "model": "d"})
            assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"
            assert "'a', 'b', 'c'" in response.json()["error"]["message"]
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = asked(app, "POST", path, {"model": "d", "max_tokens": 1, "messages": USER})
            assert response.status_code == 404 and response.json()["error"]["type"] == "not_found_error"
        assert asked(app, "GET", "/props?model=d").status_code == 404 and opened == []


def test_the_least_recently_used_makes_room(files):
    with several(files, model_memory=20) as (app, openers, opened):
        for name in ("a", "b", "a", "c"):
            assert together(app, dict(BODY, model=name))[0].status_code == 200
        loaded = {m["id"] for m in asked(app, "GET", "/v1/models").json()["data"] if m["loaded"]}
        assert loaded == {"a", "c"} and opened == ["one", "two", "three"]
        with pytest.raises(fucina.FucinaError, match="closed"):
            openers["b"].models[0].logits([1])
        again = together(app, dict(BODY, model="b"))[0]
        assert again.status_code == 200 and opened[-1] == "two"
        counts = asked(app, "GET", "/metrics").text
        assert 'fucina_requests_total{end="length",model="b"} 2.0' in counts  # of both its lives


def test_a_model_in_use_is_not_dropped(files, monkeypatch):
    with several(files, model_memory=10) as (app, _openers, opened):
        models = app.models

        async def go():
            async with models.using(models.find("a")) as first:
                monkeypatch.setattr(serve_models, "ROOM_SECONDS", 0.0)
                with pytest.raises(serve_models.Problem) as found:
                    async with models.using(models.find("b")):
                        pass
                assert (found.value.status, found.value.code) == (503, "model_busy")
                monkeypatch.setattr(serve_models, "ROOM_SECONDS", 60.0)

                async def second():
                    async with models.using(models.find("b")) as served:
                        return served

                waiting = asyncio.create_task(second())
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not waiting.done() and first.worker.alive and opened == ["one"]
            assert (await waiting).service.name == "b"

        asyncio.run(go())
        assert opened == ["one", "two"]


def test_requests_for_a_model_that_is_dropped_just_now_load_it_again(files):
    with several(files, model_memory=10) as (app, _openers, opened):
        for _ in range(3):
            found = together(app, *(dict(BODY, model="abc"[i % 3]) for i in range(9)))
            assert [r.status_code for r in found] == [200] * 9
        assert len(app.models.loaded()) == 1 and len(opened) >= 7


def test_a_load_that_fails_is_told_and_tried_again(files):
    with several(files) as (app, openers, opened):
        openers["a"].fail = True
        found = together(app, BODY, BODY)
        assert opened == ["one"]
        for response in found:
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, "model_load_failed") and "luck" not in response.text
        anthropic = asked(app, "POST", "/v1/messages", {"model": "a", "max_tokens": 1, "messages": USER})
        assert anthropic.status_code == 503 and anthropic.json()["type"] == "error"
        openers["a"].fail = False
        assert together(app, BODY)[0].status_code == 200 and asked(app, "GET", "/health").status_code == 200


def test_other_routes_answer_while_a_model_is_loaded(files):
    with several(files) as (app, openers, _):
        openers["a"].hold.clear()

        async def go():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                waiting = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
                while not openers["a"].opened:
                    await asyncio.sleep(0)
                assert (await client.get("/health")).status_code == 200
                assert not waiting.done()
                openers["a"].hold.set()
                return await waiting

        assert asyncio.run(go()).status_code == 200


def test_the_end_while_a_model_is_loaded(files):
    with several(files) as (app, openers, _):
        openers["a"].hold.clear()

        async def go():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                waiting = asyncio.create_task(client.post("/v1/chat/completions", json=BODY))
                while not openers["a"].opened:
                    await asyncio.sleep(0)
                app.refuse()
                openers["a"].hold.set()
                return await waiting

        assert asyncio.run(go()).status_code == 503
        assert asked(app, "GET", "/health").status_code == 503
        with pytest.raises(ShuttingDown):
            app.models._open(app.models.first)


def test_wrong_offers():
    with pytest.raises(InvalidOption, match="called 'a'"):
        Models([Offer("a"), Offer("a")])
    with pytest.raises(ModelTooLarge, match="'b' take 11 bytes"):
        Models([Offer("a", nbytes=10), Offer("b", nbytes=11)], 10)
    models = Models([Offer("a", aliases=frozenset("xy")), Offer("b", aliases=frozenset("yz"))])
    assert models.find("x").name == "a" and models.find("z").name == "b"
    with pytest.raises(serve_models.Problem):
        models.find("y")  # which of them?


def test_turns_are_in_order_and_one_at_a_time():
    turns, order, inside = Turns(), [], []

    def passes(i):
        with turns:
            inside.append(1)
            assert len(inside) == 1
            order.append(i)
            inside.pop()

    with turns:
        threads = []
        for i in range(5):
            threads.append(threading.Thread(target=passes, args=(i,)))
            threads[-1].start()
            while len(turns._waiting) <= i:
                pass
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4] and not turns._taken


def test_passes_of_every_model_wait_for_their_turn(files):
    with several(files) as (app, _, _):
        assert together(app, *({**BODY, "model": name} for name in "abc"))[0].status_code == 200
        runners = [served.worker._replies.scheduler for served in app.models.loaded()]
        assert len(runners) == 3 and len({id(runner._turns) for runner in runners}) == 1
        seen = []
        for runner in runners:
            forward, turns = runner.engine.forward_rows, runner._turns

            def noted(requests, forward=forward, turns=turns):
                seen.append(turns._taken)
                return forward(requests)

            runner.engine.forward_rows = noted
        together(app, *({**BODY, "model": name} for name in "abc"))
        assert len(seen) >= 3 and all(seen)


def test_what_a_dropped_model_has_counted_stays(files, tmp_path):
    """Each pool counts from 0; what is told never goes back, and nothing is told twice."""
    model = fucina.load(files["b"], threads=1)
    metrics, spills = Metrics(), []
    try:
        for asked_for in (1, 3, 1):
            pool = fucina.SlotPool(model, "16MiB", tmp_path / str(len(spills)))
            for i in range(asked_for):
                ids = [i + 1] * 20
                slot = pool.acquire(ids)
                model.forward_rows([(slot.state, ids, "none")])
                slot.release(ids)
                pool.flush()
                metrics.look(None, pool)
                metrics.look(None, pool)
            pool.close()
            metrics.leave(pool)
            spills.append(pool.stats().spills)
            assert metrics.registry.get_sample_value("fucina_spilled_texts_total") == sum(spills)
            metrics.look(None, None)
            assert metrics.registry.get_sample_value("fucina_pool_bytes") == 0
        assert min(spills) > 0
    finally:
        model.close()


def test_a_model_that_no_text_of_fits_in_memory_is_closed_again(files):
    with several(files, memory=1) as (app, openers, _):  # and `several` checks that it was closed
        (answer,) = together(app, BODY)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_load_failed"
        assert len(openers["a"].models) == 1


def test_the_command_takes_several(files, monkeypatch, tmp_path, capsys):
    from tests.unit.test_serve_sockets import run_command

    def ask(url):
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            listed = {m["id"]: m["loaded"] for m in client.get("/v1/models").json()["data"]}
            assert listed == {"small": True, "two": False, "w/e": False}
            for name in listed:
                body = {**BODY, "model": name}
                assert client.post("/v1/chat/completions", json=body).json()["model"] == name

    arguments = [f"small={files['a']}", str(files["b"]), f"w/e={files['c']}", "--port", "0", "--threads", "1"]
    status, told = run_command(monkeypatch, [*arguments, "--kv-cache-dir", str(tmp_path / "rows")], ask)
    assert status == 0 and "small, two, w/e at http://" in told[-1]
    folders = {folder.name for folder in (tmp_path / "rows").iterdir()}
    assert {"small", "two"} <= folders and len(folders) == 3


def test_wrong_options_of_the_command(files, capsys):
    for wrong, text in (
        ([f"x={files['a']}", f"x={files['b']}"], "called 'x'"), ([str(files["a"]), str(files["b"]), "--name", "n"], "--name"),
        (["=x"], "NAME=MODEL"), ([str(files["a"]), "--model-memory", "10B"], ""), ([str(files["a"]), "--model-memory", "much"], "--model-memory"),
    ):  # fmt: skip
        assert main(["serve", *wrong]) in (1, 2)
        assert text in capsys.readouterr().err
