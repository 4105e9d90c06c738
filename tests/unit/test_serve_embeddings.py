"""Vectors over HTTP: OpenAI's embeddings, in the company of replies, and by the official client."""

from __future__ import annotations

import base64
import threading

import numpy as np
import pytest

import fucina
from fucina.serve import Failed, GenerateRequest, VectorRequest, Worker
from fucina.serve.jobs import Cancelled
from fucina.serve.vectors import Embedded
from tests.chat_model import write_chat_model
from tests.serving import TOOLS_TEMPLATE, app_of, asked, collected, ended, served

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = fucina.load(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf", TOOLS_TEMPLATE))
    yield model
    model.close()


@pytest.fixture
def app(model):
    with app_of(model) as app:
        yield app


def post(app, **body):
    return asked(app, "POST", PATH, body)


def vectors(response):
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [(d["object"], d["index"]) for d in data] == [("embedding", i) for i in range(len(data))]
    return np.array([d["embedding"] for d in data], np.float32)


@pytest.mark.parametrize("pooling", [None, "last", "mean"])
def test_vectors_are_those_of_the_model(app, model, pooling):
    texts = [f"text {i}" * (1 + i % 4) for i in range(11)]
    response = post(app, input=texts, pooling=pooling)
    assert vectors(response).tobytes() == model.embed(texts, pooling or "last").tobytes()
    body = response.json()
    tokens = sum(len(model.tokenizer.encode_prompt(text)) for text in texts)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (body["object"], body["model"]) == ("list", app.service.name)
    assert "fucina_prompt_tokens_total" in (counts := asked(app, "GET", "/metrics").text)
    assert f'fucina_prompt_tokens_total{{model="chat"}} {tokens}.0' in counts


def test_every_form_of_input(app, model):
    ids = model.tokenizer.encode_prompt("hello")
    one = model.embed("hello")
    for given in ("hello", ["hello"], ids, [ids]):
        assert vectors(post(app, input=given)).tobytes() == one.tobytes()
    assert vectors(post(app, input=["hello", ids])).tobytes() == np.concatenate([one, one]).tobytes()


def test_coded_and_shortened(app, model):
    coded = post(app, input="hello", encoding_format="base64", dimensions=3).json()["data"][0]["embedding"]
    found = np.frombuffer(base64.b64decode(coded), "<f4")
    whole = model.embed("hello")[0][:3].astype(np.float64)
    assert np.allclose(found, whole / np.linalg.norm(whole), rtol=1e-6)
    dim = model.config.dim
    assert vectors(post(app, input="hello", dimensions=dim)).tobytes() == model.embed("hello").tobytes()


@pytest.mark.parametrize(
    "body", [
        {}, {"input": None}, {"input": ""}, {"input": []}, {"input": [[]]}, {"input": [""]}, {"input": 3}, {"input": {}}, {"input": [1, "a"]},
        {"input": ["a", 1]}, {"input": [True]}, {"input": [-1]}, {"input": [10**9]}, {"input": [1.5]}, {"input": "x" * 100_000},
        {"input": ["a"] * 2049}, {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": 10**6}, {"input": "a", "encoding_format": "int8"},
        {"input": "a", "pooling": "max"}, {"input": "a", "stream": True}, {"input": "a", "model": 3},
    ],
)  # fmt: skip
def test_wrong_requests(app, body):
    response = post(app, **body)
    assert response.status_code == 400, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert post(app, input="a", model="other").status_code == 404


def test_beside_replies_on_the_thread_of_the_engine(model):
    """Jobs of vectors join the passes of replies, and neither changes a bit of the other."""
    texts = [[int(t) for t in np.random.default_rng(i).integers(0, 256, 5 + 9 * i)] for i in range(6)]
    request = GenerateRequest(texts[3], 12, ends=model.tokenizer.eog_ids, biases={257: -100.0})
    with fucina.SlotPool(model, memory="64MiB") as pool:
        with Worker(model, pool) as worker:
            alone = collected(worker.submit(request))
        with Worker(model, pool, streams=3) as worker:
            jobs = [worker.submit(request), worker.submit(VectorRequest.of(texts)), worker.submit(request)]
            jobs.append(worker.submit(VectorRequest.of(texts, "mean")))
            first, last, again, mean = (collected(job) for job in jobs)
        assert pool.stats().in_use == 0
    assert first[:2] == again[:2] == alone[:2]
    for (_, _, end, _), pooling in ((last, "last"), (mean, "mean")):
        assert isinstance(end, Embedded) and ended(end).prompt_tokens == sum(map(len, texts))
        assert np.stack(end.vectors).tobytes() == model.embed(texts, pooling).tobytes()


def test_a_job_that_is_given_up_and_one_that_fails(model, monkeypatch):
    with fucina.SlotPool(model, memory="64MiB") as pool, Worker(model, pool) as worker:
        job = worker.submit(VectorRequest.of([[1] * 200] * 50))
        job.cancel()
        end = collected(job)[2]
        assert isinstance(end, Failed) and isinstance(end.error, Cancelled)
        end = collected(worker.submit(VectorRequest.of([[1], [2] * 100_000])))[2]
        assert isinstance(end, Failed) and "capacity" in str(end.error)
        assert isinstance(collected(worker.submit(VectorRequest.of([[1]])))[2], Embedded)


openai = pytest.importorskip("openai", reason="the official client is for developers (group dev)")


def test_the_official_client(model):
    texts = ["one", "two and more", "three"]
    with (
        served(model) as server,
        openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client,
    ):
        name = client.models.list().data[0].id
        found = {}

        def ask(form, **more):
            found[form] = client.embeddings.create(model=name, input=texts, **more)

        threads = [
            threading.Thread(target=ask, args=("base64",)),  # which the client asks for by itself, and decodes
            threading.Thread(target=ask, args=("float",), kwargs={"encoding_format": "float"}),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model=name, input="")
    for form in ("base64", "float"):
        got = np.array([d.embedding for d in found[form].data], np.float32)
        assert got.tobytes() == model.embed(texts).tobytes()
        assert found[form].usage.total_tokens == found[form].usage.prompt_tokens > 0
