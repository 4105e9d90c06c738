"""Questions, workers and turns, on a tiny model."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from bench import __main__ as command
from bench import accuracy
from fucina.cli import main
from fucina.errors import PeerNotFound, WorkerFailed
from fucina.measure import machine, speed
from fucina.measure.duel import Side, Worker, find_peer, workers
from fucina.measure.questions import Questions
from tests.models import TINY

MODEL = str(TINY / "llama.gguf")
NAIVE = {"backend": "naive"}


class FakeSession:
    """Counts rows; its likeliest token is always the row's own token plus one."""

    def __init__(self, log, streams):
        self.lengths, self.log = [0] * streams, log

    def rows(self, requests):
        self.log.append([(s, len(t), want) for s, t, want in requests])
        out = []
        for stream, tokens, want in requests:
            self.lengths[stream] += len(tokens)
            out += {"all": list(tokens), "last": [tokens[-1]], "none": []}[want]
        return np.eye(2048, dtype=np.float32)[[(t + 1) % 2048 for t in out]] * 3

    def truncate(self, stream, length):
        assert length <= self.lengths[stream]
        self.lengths[stream] = length

    def close(self):
        self.log.append("closed")


class FakeEngine:
    n_vocab = 2048

    def __init__(self):
        self.log, self.opened = [], []

    def settings_of(self, use):
        return None

    def session(self, use, capacity, streams):
        self.opened.append((use, capacity, streams))
        return FakeSession(self.log, streams)


@pytest.fixture
def asked():
    return Questions(FakeEngine())


def test_decode_starts_at_its_context_and_leaves_it_there(asked):
    assert len(asked.decode(600, 5, 700)) == 5
    assert [x[0][1] for x in asked.engine.log[:2]] == [512, 88]
    assert len(asked.engine.log) == 2 + 2 + 5
    before = len(asked.engine.log)
    asked.decode(600, 1, 700)
    assert len(asked.engine.log) == before + 3  # nothing is read again
    assert asked.engine.opened == [("decode", 700, 1)]


def test_prefill_reads_an_empty_cache_each_time(asked):
    assert len(asked.prefill(128, 3, 256)) == 3
    assert [x[0] for x in asked.engine.log] == [(0, 16, "last")] + [(0, 128, "last")] * 3


def test_verify_gives_a_time_for_every_size_and_wants_all_rows(asked):
    assert set(asked.verify(64, [1, 2, 16], 2, 128)) == {"1", "2", "16"}
    assert [x[0][1:] for x in asked.engine.log[1:4]] == [(1, "all"), (2, "all"), (16, "all")]


def test_streams_share_one_pass_a_step(asked):
    assert len(asked.streams(3, 8, 4, 32)) == 4
    assert asked.engine.log[-1] == [(0, 1, "last"), (1, 1, "last"), (2, 1, "last")]
    assert len(asked.engine.log) == 3 + 2 + 4


def test_greedy_margins_and_forced_argmax(asked):
    assert asked.greedy([5, 9], 3, 64) == {"tokens": [10, 11, 12], "margins": [3.0, 3.0, 3.0]}
    assert asked.argmax([5, 9, 20, 30], 1, 64) == [10, 21, 31]


def test_logits_are_written_for_every_position(asked, tmp_path):
    path = tmp_path / "x.npy"
    assert asked.logits(list(range(300)), str(path), 512) == [300, 2048]
    assert np.load(path).argmax(1).tolist() == list(range(1, 301))


def test_forgetting_closes_sessions(asked):
    asked.decode(8, 1, 64)
    asked.forget()
    assert asked.engine.log[-1] == "closed"


def test_a_worker_answers_and_names_what_fails():
    worker = Worker(Side("ours", "fucina", MODEL, NAIVE))
    try:
        assert worker.load_seconds > 0
        described = worker.ask("describe")
        assert described["engine"] == "fucina" and described["weight_bytes"] > 0
        assert len(worker.ask("decode", context=4, steps=2, capacity=64)) == 2
        with pytest.raises(WorkerFailed, match="ours: KvCacheOverflow"):
            worker.ask("decode", context=4, steps=2, capacity=1 << 20)
        assert len(worker.ask("prefill", tokens=16, repeats=1, capacity=64)) == 1
    finally:
        worker.close()


def test_a_model_that_does_not_load_is_told(tmp_path):
    with pytest.raises(WorkerFailed, match="ours: "):
        Worker(Side("ours", "fucina", str(tmp_path / "missing.gguf"), NAIVE))


def test_an_option_that_the_engine_does_not_know_is_told():
    with pytest.raises(WorkerFailed, match="ours: TypeError.*unknown_option"):
        Worker(Side("ours", "fucina", MODEL, {"unknown_option": 1}))


def test_turns_alternate_and_every_side_answers_everything(monkeypatch):
    order = []
    ask = Worker.ask

    def spy(self, name, **arguments):
        order.append((self.side.label, name))
        return ask(self, name, **arguments)

    monkeypatch.setattr(Worker, "ask", spy)
    plan = speed.Plan(2, 2, (4,), (), (16,), (1, 2), (2,), capacity=128, bandwidth_bytes=1 << 16)
    sides = [Side("a", "fucina", MODEL, NAIVE), Side("b", "fucina", MODEL, NAIVE)]
    record = speed.run(sides, plan, 1, only=lambda label, key: label == "a" or not key.startswith("streams"))
    assert [x for x, name in order if name == "decode"] == ["a", "b", "b", "a"]
    assert set(record["samples"]["a"]) == {"decode/4", "verify/16", "streams/2"}
    assert set(record["samples"]["b"]) == {"decode/4", "verify/16"}
    assert {len(turns) for s in record["samples"].values() for turns in s.values()} == {2}
    assert len(record["bandwidth"]) == 2 and min(record["bandwidth"]) > 0


def test_workers_end_with_their_block():
    with workers([Side("a", "fucina", MODEL, NAIVE)]) as running:
        process = running["a"]._process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_python_without_llama_cpp_is_refused(tmp_path):
    with pytest.raises(PeerNotFound, match="cannot run"):
        find_peer(str(tmp_path / "python"))
    with pytest.raises(PeerNotFound, match="llama_cpp"):
        find_peer(_python_without_packages(tmp_path))


def _python_without_packages(folder):
    script = folder / "bare"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    if sys.platform == "win32":
        pytest.skip("needs a shell script in the place of a Python")
    return str(script)


def test_cli_prints_a_record(capsys):
    assert (
        main(
            ["bench", "-m", MODEL, "--backend", "naive", "--quick", "--alone", "--streams", "--threads", "1", "--json"]
        )
        == 0
    )
    record = json.loads(capsys.readouterr().out)
    assert set(record["samples"]["fucina"]) == {"streams/1", "streams/2", "streams/4", "streams/8"}
    assert record["stamp"]["command"] == "fucina bench --quick --streams --alone --threads 1 --rounds 5"
    assert MODEL not in json.dumps(record)


def test_cli_refuses_no_rounds(capsys):
    assert main(["bench", "-m", MODEL, "--rounds", "0"]) == 2
    assert "--rounds must be at least 1" in capsys.readouterr().err


def test_the_command_of_a_record_repeats_it_without_paths():
    a = command.arguments(["speed", "--peer-python", "/somewhere/python", "--quick", "--threads", "2"])
    again = command.command(a, "speed", "smollm2")
    assert again == "python -m bench speed --models smollm2 --threads 2 --quick"
    assert command.arguments(again.split()[3:]).models == ["smollm2"]


def test_unknown_sections_are_refused(capsys):
    with pytest.raises(SystemExit):
        command.arguments(["sped"])
    assert "no section 'sped'" in capsys.readouterr().err


def test_agreement_counts_clear_margins():
    got = accuracy.agreement([1, 2, 3, 4], [1, 9, 3, 8], [2.0, 0.25, 0.5, 1.5])
    assert got == {"positions": 4, "agree": 2, "clear": 2, "clear_agree": 1, "margins_where_different": [0.25, 1.5]}
    assert accuracy.together([got, got])["margins_where_different"] == [0.25, 0.25, 1.5, 1.5]


def test_lead_and_rms():
    logits = np.array([[1.0, 4.0, 2.0], [0.5, 0.0, -3.0]], np.float32)
    assert accuracy.lead(logits).tolist() == [2.0, 0.5]
    assert accuracy.rms(logits + 2, logits) == pytest.approx(2.0)


def test_fixtures_of_both_models_are_found():
    for name in ("smollm2", "gemma3-270m"):
        cases = accuracy.fixtures(name)
        assert len(cases) == 12
        assert sum(len(c["prompt_ids"]) for c in cases) > 12


def test_machine_description_is_complete_and_names_no_host():
    import platform

    described = machine.describe_machine()
    assert described["usable_cpus"] >= described["cores"] >= 1
    assert platform.node() not in json.dumps(described) or len(platform.node()) < 4
    assert machine.slug(described).endswith(f"-{described['cores']}-cores")
