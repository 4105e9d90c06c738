"""The load generator of chapter 15: what is sent and when, what is noted, and how its servers end."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.figures.timeline import timeline
from course.load import Refused, Reply, Run, Sampled, Stepper, closed_loop, open_loop, poisson, worker_server
from course.ours import ours

Scheduler, FairQueue = ours("ch15.step"), ours("ch15.fair")
Request, ToyModel = (Scheduler.__init__.__globals__[name] for name in ("Request", "ToyModel"))


def alone(prompt, n):
    """What a request says on its own."""
    request, scheduler = Request(prompt, n), Scheduler(ToyModel(), 8, 1)
    scheduler.submit(request)
    while scheduler.step():
        pass
    return request.said


@given(st.floats(0.1, 100), st.integers(1, 300), st.integers(0, 2**32))
def test_poisson_times_ascend_from_zero_and_follow_from_the_seed(rate, count, seed):
    times = poisson(rate, count, seed)
    assert times == poisson(rate, count, seed)
    assert len(times) == count and times[0] == 0 and times == sorted(times)
    assert poisson(2 * rate, count, seed) == pytest.approx([t / 2 for t in times])


def test_poisson_rate():
    gaps = np.diff(poisson(5.0, 20_000, 3))
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03) and gaps.std() == pytest.approx(1 / 5, rel=0.03)


@pytest.mark.parametrize("clients", [1, 3, 9])
def test_a_closed_loop_answers_every_request_once_and_has_so_many_at_a_time(clients):
    lock, inside, most, seen = threading.Lock(), [0], [0], []

    def server(request):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            seen.append(request)
        yield [request, request + 1]
        yield [7]
        with lock:
            inside[0] -= 1

    run = closed_loop(server, range(9), clients)
    assert sorted(seen) == list(range(9)) and most[0] <= clients
    assert [r.tokens for r in run.replies] == [[n, n + 1, 7] for n in range(9)]
    for reply in run.replies:
        assert len(reply.times) == 3 and reply.due <= reply.times[0] <= reply.times[2] <= reply.done <= run.seconds


def test_an_open_loop_does_not_wait_for_replies():
    every = threading.Barrier(5)  # nobody is answered before all have come

    def server(request):
        every.wait(20)
        yield [request]

    run = open_loop(server, range(5), [0.0] * 5)
    assert [r.tokens for r in run.replies] == [[n] for n in range(5)]
    with pytest.raises(ValueError, match="2 requests, but 1 times"):
        open_loop(server, range(2), [0.0])


def test_refusals_are_kept_and_errors_are_raised():
    def server(request):
        if request == 1:
            raise Refused("full")
        if request == 3:
            raise KeyError("a fault")
        yield [request]

    run = closed_loop(server, [0, 1, 2], 2)
    assert [r.refused for r in run.replies] == [False, True, False] and len(run.served) == 2
    with pytest.raises(KeyError, match="a fault"):
        closed_loop(server, [0, 3], 1)


def test_what_a_run_tells():
    replies = [
        Reply(0, 0.0, [1.0, 1.5, 3.0], [1, 2, 3], 3.0),
        Reply(1, 2.0, [5.0], [4], 5.0),
        Reply(2, 4.0, refused=True),
    ]
    run = Run(replies, 8.0)
    assert run.tokens_per_second == 0.5 and run.first(100) == 3.0 and run.first(0) == 1.0
    assert run.gap(100) == 1.5 and run.gap(0) == 0.5
    assert run.spans == {"1": (0.0, [1.0, 1.5, 3.0], 3.0), "2": (2.0, [5.0], 5.0), "3": (4.0, [], 0.0)}
    assert np.isnan(Run([], 1.0).first(50)) and np.isnan(Run([replies[1]], 1.0).gap(50))


@pytest.mark.parametrize("fair", [False, True])
def test_a_scheduler_on_a_thread_gives_everybody_their_tokens(fair):
    class Line:
        def __init__(self):
            self.queue = FairQueue()

        def __len__(self):
            return len(self.queue)

        def push(self, request):
            self.queue.push(str(request.prompt), request, request.prompt)

        def pop(self):
            return self.queue.pop()

    shapes = [(1 + n % 5, 1 + n % 4) for n in range(20)]
    with Stepper(Scheduler(ToyModel(), rows=6, streams=3), Line() if fair else None) as server:
        run = closed_loop(server, [Request(range(length), n) for length, n in shapes], 7)
    assert [r.tokens for r in run.replies] == [alone(range(length), n) for length, n in shapes]


def test_errors_of_a_request_and_of_a_pass_reach_those_who_ask():
    def choose(logits):
        raise ZeroDivisionError("its own")

    with Stepper(Scheduler(ToyModel(), rows=6, streams=3)) as server:
        with pytest.raises(ZeroDivisionError, match="its own"):
            closed_loop(server, [Request([1], 2), Request([2], 2, choose=choose)], 2)
        assert closed_loop(server, [Request([1], 2)], 1).replies[0].tokens == alone([1], 2)
    with (
        Stepper(Scheduler(ToyModel(fails_at=1), rows=6, streams=3)) as server,
        pytest.raises(OSError, match="coughed"),
    ):
        closed_loop(server, [Request([1], 5), Request([2], 5)], 2)


def test_a_number_is_looked_at_until_the_run_ends():
    with Sampled(lambda: 3.0, every=0.001) as looked:
        while len(looked.values) < 5:
            pass
    assert looked.mean == pytest.approx(3.0)
    count = len(looked.values)
    assert not looked._thread.is_alive() and len(looked.values) == count


def test_the_engines_worker_as_a_server():
    from fucina.errors import QueueFull
    from fucina.serve import Done, Failed, TextDelta

    class Worker:
        def submit(self, request):
            if request == "full":
                raise QueueFull("2 wait")
            end = Failed(RuntimeError("broke")) if request == "bad" else Done("length", 1, 3, 0)
            return [TextDelta("a", (1, 2)), TextDelta("b", (3,)), end]

    server = worker_server(Worker())
    assert list(server("good")) == [[1, 2], [3]]
    with pytest.raises(Refused, match="2 wait"):
        list(server("full"))
    with pytest.raises(RuntimeError, match="broke"):
        list(server("bad"))


def test_the_timeline_tells_who_waits_and_who_is_refused():
    spans = {"1": (0.0, [0.5, 1.0], 1.0), "2": (0.25, [], 0.25)}
    figure = timeline(spans, "Two clients")
    assert "1 comes at 0.00 s, has its first token at 0.50 s, ends at 1.00 s; 2 is refused" in figure.alt
    assert figure.svg.count("\u00d7") == 2  # one in the legend
    assert "refused" not in timeline({"1": spans["1"]}, "One").svg
    with pytest.raises(ValueError, match="needs a request"):
        timeline({}, "Nobody")
