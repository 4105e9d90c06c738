"""The simulation of replicas, against arithmetic by hand and a second one in small steps; traces and the command."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fucina.cluster
from bench import cluster as bench
from fucina.cli import main
from fucina.cluster.policies import POLICIES, Policy
from fucina.cluster.simulate import Machine, quantiles, simulate
from fucina.cluster.trace import Request, from_conversation, read_trace, write_trace
from fucina.errors import ClusterNotEnabled, InvalidOption, InvalidTrace


def ask(time, blocks, tokens=100, reply=11, kept=()):
    """A request of equal blocks of so many tokens."""
    blocks = tuple(blocks)
    ends = tuple(tokens * (i + 1) for i in range(len(blocks)))
    kept_ends = tuple(ends[-1] + reply for _ in kept)
    return Request(time, "", blocks, ends, reply, tuple(kept), kept_ends)


SIMPLE = Machine(token_seconds=0.01, costs={1: 1.0, 2: 1.5, 4: 2.0}, prefill=1000.0, streams=2, stretch=2.0)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_request_alone():
    found = simulate([ask(5.0, [1, 2])], 1, "round robin", SIMPLE)
    assert found.first[50] == pytest.approx(0.2) and found.seconds == pytest.approx(5.2 + 0.1, abs=1e-4)
    assert found.hit_rate == 0 and found.requests == 1 and found.uneven == 1


def test_what_is_known_is_not_computed_again_and_the_last_token_is():
    first, second = ask(0.0, [1, 2], kept=[3]), ask(10.0, [1, 2, 3, 4])
    found = simulate([first, second], 1, "round robin", SIMPLE)
    assert found.hit_rate == pytest.approx(300 / 600)  # two blocks of the prompt, and that of the reply
    again = simulate([ask(0.0, [1]), ask(9.0, [1])], 1, "round robin", SIMPLE)
    assert again.hit_rate == pytest.approx(99 / 200) and again.first[50] == pytest.approx(0.001, abs=1e-4)


def test_a_prompt_beside_a_stream_takes_its_share():
    trace = [ask(0.0, [1], reply=101), ask(0.1, [2], reply=1)]
    found = simulate(trace, 1, "round robin", SIMPLE)  # from 0.1 on: prompt 500 tokens per second, stream 50
    assert found.first[99] == pytest.approx(0.2, abs=1e-5)
    assert found.seconds == pytest.approx(0.1 + 0.2 + 90 * 0.01, abs=1e-4)


def test_streams_share_and_the_third_waits():
    trace = [ask(0.0, [i], tokens=1, reply=101) for i in range(3)]
    found = simulate(trace, 1, "round robin", SIMPLE)
    assert found.first[50] < 0.01  # two at once, 0.015 s per token of both
    assert found.first[99] == pytest.approx(1.5, abs=0.02)


def test_cost_between_measured_points():
    assert [SIMPLE.cost(k) for k in (1, 2, 3, 4, 8)] == [1.0, 1.5, 1.75, 2.0, 4.0]
    assert Machine().cost(8) == 2.02


# --- a second simulation, in small steps ------------------------------------------------------------------------------


def in_steps(trace, machine, dt):
    """First tokens of one replica without any cache, by steps of dt."""
    waiting, running, prompt, firsts = list(range(len(trace))), {}, None, {}
    now = 0.0
    while len(firsts) < len(trace) or running:
        arrived = [i for i in waiting if trace[i].time <= now]
        if prompt is None and arrived and len(running) < machine.streams:
            prompt = [arrived[0], float(trace[arrived[0]].prompt_tokens)]
            waiting.remove(arrived[0])
        slow = machine.stretch if prompt is not None else 1.0
        if running:
            each = dt / (machine.token_seconds * machine.cost(len(running)) * slow)
        if prompt is not None:
            prompt[1] -= dt * machine.prefill * ((1 - 1 / machine.stretch) if running else 1.0)
        for i in list(running):
            running[i] -= each
            if running[i] <= 0:
                del running[i]
        now += dt
        if prompt is not None and prompt[1] <= 0:
            i = prompt[0]
            firsts[i], prompt = now - trace[i].time, None
            if trace[i].reply_tokens > 1:
                running[i] = trace[i].reply_tokens - 1.0
    return [firsts[i] for i in range(len(trace))]


@pytest.mark.parametrize("seed", range(6))
def test_events_give_what_small_steps_give(seed):
    draw = random.Random(seed)
    times = sorted(draw.uniform(0, 2) for _ in range(8))
    trace = [ask(t, [i], draw.randint(20, 200), draw.randint(1, 60)) for i, t in enumerate(times)]
    machine = Machine(0.01, {1: 1.0, 2: 1.4, 3: 1.6}, 800.0, draw.randint(1, 3), 0, draw.choice([1.5, 2.5]))
    slow = sorted(in_steps(trace, machine, 0.0005))
    found = simulate(trace, 1, "affinity", machine).first
    expected = quantiles(slow)
    assert all(found[p] == pytest.approx(expected[p], abs=0.05) for p in found)


# --- what must hold of any trace ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 9), st.integers(0, 1000))
def test_every_request_ends_and_the_same_seed_gives_the_same(policy, replicas, seed):
    draw = random.Random(seed)
    trace = sorted(
        (ask(draw.uniform(0, 3), [draw.randint(0, 3) for _ in range(draw.randint(1, 4))]) for _ in range(25)),
        key=lambda r: r.time,
    )
    machine = Machine(cache_tokens=draw.choice([0, 250, 10_000]))
    one, two = (simulate(trace, replicas, policy, machine, seed) for _ in range(2))
    assert one == two and 0 <= one.hit_rate < 1 and (machine.cache_tokens or one.hit_rate == 0)
    assert math.isfinite(one.seconds) and all(0 < v < one.seconds for v in one.first.values())
    assert 1 <= one.uneven <= replicas


def test_a_small_cache_keeps_what_was_used_last():
    small = Machine(cache_tokens=200)
    far = [ask(0.0, [1]), ask(50.0, [2]), ask(100.0, [1]), ask(150.0, [3]), ask(200.0, [1]), ask(250.0, [2])]
    assert simulate(far, 1, "affinity", small).hit_rate == pytest.approx(2 * 99 / 600)


def test_of_a_text_that_is_too_long_the_beginning_is_kept():
    trace = [ask(0.0, [1, 2, 3], reply=1), ask(50.0, [1, 2], reply=1)]
    assert simulate(trace, 1, "affinity", Machine(cache_tokens=200)).hit_rate == pytest.approx(199 / 500)


@pytest.mark.parametrize("replicas", [4, 64])
def test_affinity_finds_more_than_chance(replicas):
    trace = sorted(bench.record(0.25 * replicas, 2400 / replicas, seed=3), key=lambda r: r.time)
    found = {name: simulate(trace, replicas, name, seed=1) for name in ("affinity", "round robin", "two choices")}
    for other in ("round robin", "two choices"):
        assert found["affinity"].hit_rate > found[other].hit_rate + 0.15
        assert found["affinity"].first[95] < found[other].first[95]


def test_wrong_arguments_are_refused():
    class Nowhere(Policy):
        def choose(self, request, loads):
            return "nowhere"

    trace = [ask(0.0, [1])]
    for call in (
        lambda: simulate([], 1),
        lambda: simulate(trace, 0),
        lambda: simulate(trace, 2, "best"),
        lambda: simulate(trace, 2, Nowhere()),
        lambda: Machine(prefill=0),
        lambda: Machine(costs={2: 1.0}),
        lambda: Machine(stretch=1),
    ):
        with pytest.raises(InvalidOption):
            call()


# --- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_is_read_as_it_was_written(tmp_path):
    trace = sorted(bench.record(1.0, 20.0, tenants=2), key=lambda r: r.time)
    write_trace(tmp_path / "t.jsonl", reversed(trace))
    again = read_trace(tmp_path / "t.jsonl")
    assert len(again) == len(trace) > 20 and {r.tenant for r in again} == {"t0", "t1"}
    assert [(r.blocks, r.ends, r.reply_tokens, r.kept, r.kept_ends) for r in again] == [
        (r.blocks, r.ends, r.reply_tokens, r.kept, r.kept_ends) for r in trace
    ]
    assert "texts" not in (tmp_path / "t.jsonl").read_text()


def test_each_turn_repeats_the_one_before_and_its_reply():
    one, two = from_conversation([0, 5], "t", [["be brief", "hello"], ["and?"]], ["yes " * 200, "no"], 4.0)
    assert two.blocks[: len(one.blocks) + len(one.kept)] == one.blocks + one.kept
    assert two.ends[: len(one.blocks) + len(one.kept)] == one.ends + one.kept_ends
    assert one.reply_tokens == 200 and one.prompt_tokens == round(13 / 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": -1}, "time"),
        ({"time": True}, "time"),
        ({"time": float("inf")}, "time"),
        ({"reply_tokens": 0}, "reply_tokens"),
        ({"tenant": 3}, "tenant"),
        ({"blocks": []}, "blocks"),
        ({"blocks": ["12"]}, "16 hex"),
        ({"blocks": ["x" * 16]}, "ValueError"),
        ({"ends": [5, 4]}, "decrease"),
        ({"ends": [5]}, "as many"),
        ({"kept": ["0" * 16]}, "as many"),
        ({"kept": ["0" * 16], "kept_ends": [7]}, "decrease"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, change, message):
    good = {"time": 0, "tenant": "", "blocks": ["0" * 16, "1" * 16], "ends": [5, 9], "reply_tokens": 3}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(good | change) + "\n")
    with pytest.raises(InvalidTrace, match=f"line 3: .*{message}"):
        read_trace(path)


@pytest.mark.parametrize("text", ["", "[]\n", "{\n", '{"time": 0}\n', "[" * 100_000 + "\n"])
def test_a_file_that_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidTrace):
        read_trace(path)
    with pytest.raises(InvalidTrace):
        read_trace(tmp_path / "none")


# --- commands ---------------------------------------------------------------------------------------------------------


def test_the_command_simulates_a_trace(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    assert bench.main(["record", str(path), "--seconds", "20", "--rate", "1"]) == 0
    assert main(["cluster", "--simulate", str(path), "--replicas", "3"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown for name in POLICIES) and "p95" in shown
    assert main(["cluster", "--simulate", str(tmp_path / "none")]) == 1
    assert main(["cluster", "--simulate", str(path), "--replicas", "0"]) == 2


def test_the_sweep_makes_a_figure(tmp_path, capsys):
    figure = tmp_path / "f.svg"
    assert bench.main(["run", "--replicas", "2", "3", "--seconds", "20", "--svg", str(figure)]) == 0
    assert figure.read_text().startswith("<svg") and "affinity" in capsys.readouterr().out


def test_without_ray_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(fucina.cluster, "_missing", lambda name: name == "ray")
    with pytest.raises(ClusterNotEnabled, match=r'ray; pip install "fucina\[cluster\]"'):
        fucina.cluster.check_packages()
    assert main(["cluster"]) == 1
    assert 'pip install "fucina[cluster]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--min", "1"], ["--port", "0"], ["--replicas", "0"], ["--grace", "-1"], ["--api-key", " "], ["--batch", "0"]],
)
def test_wrong_options_of_the_command_are_refused(options, capsys):
    assert main(["cluster", *options]) == 2


def test_modules_that_a_quick_start_hides_are_shown_to_ray():
    import sys

    from fucina.cli.quick_start import quick_start, show_all

    before = sys.modules.pop("yaml", None)
    try:
        with quick_start():
            assert sys.modules["yaml"] is None
            show_all()
            assert "yaml" not in sys.modules
    finally:
        if before is not None:
            sys.modules["yaml"] = before


# --- one request without a socket -------------------------------------------------------------------------------------


def test_an_exchange_gives_the_answer_in_parts_and_tells_of_a_client_that_leaves():
    import asyncio

    from fucina.cluster.asgi import Exchange, HTTPHead

    told = []

    async def app(scope, receive, send):
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        for i in range(1000):
            await send({"type": "http.response.body", "body": b"%d." % i, "more_body": True})
            if message["body"] == b"short" and i == 2:
                return
        told.append((await receive())["type"])

    async def go():
        head = HTTPHead("POST", "/x", b"q=1", ((b"host", b"h"),))
        assert head == HTTPHead.of(head.scope())
        short = [part async for part in Exchange(app, head, b"short").run()]
        assert short == [(201, ((b"a", b"b"),)), b"0.", b"1.", b"2."] and not told
        parts = Exchange(app, head, b"long").run()
        assert [await anext(parts) for _ in range(2)][1] == b"0."
        await parts.aclose()
        assert told == ["http.disconnect"]

        async def fails(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            [part async for part in Exchange(fails, head, b"").run()]

    asyncio.run(go())
