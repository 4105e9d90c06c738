"""One state, one stream: whoever comes second is right, or is told by name."""

import threading
from contextlib import closing

import pytest

from fucina.engine import Stream
from fucina.errors import FucinaError, SharedStream
from fucina.sampling import Sampler
from tests.conversations import same_rows
from tests.spec_toys import ToyModel, decode, start
from tests.toy_families import toy_model


def test_a_state_has_one_stream():
    model = ToyModel()
    first = start(model, [1, 2, 3], 40, max_tokens=10)
    decode(model, first, steps=3)
    second = Stream(first.state, [1, 2, 3], Sampler(), max_tokens=10)
    with pytest.raises(SharedStream, match="state of this stream was used"):
        decode(model, first)
    assert decode(model, second) == decode(model, start(model, [1, 2, 3], 40, max_tokens=10))


@pytest.mark.parametrize("kind", ["recurrent", "latent"])
def test_threads_on_one_state(kind):
    """Whoever reads on is right; everybody else is told by name."""
    with closing(toy_model(kind)) as model:
        want = decode(model, start(model, [65, 66, 67], 60, max_tokens=40))
        for rounds in range(6):
            state, errors, said = model.new_cache(60), [], []

            def run(i, state=state, errors=errors, said=said):
                try:
                    if i == 3:
                        state.rewind(0)
                        model.forward([65, 66, 67], state)
                    else:
                        said.append(decode(model, Stream(state, [65, 66, 67], Sampler(), max_tokens=40)))
                except FucinaError as error:
                    errors.append(error)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(4 if rounds % 2 else 3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(tokens == want for tokens in said)
            assert len(said) + len(errors) >= 3


class RewoundBetween:
    """An engine in which a state is rewound after the planning of a pass and before its rows are computed."""

    def __init__(self, model, state, at, to):
        self.model, self.state, self.at, self.to, self.n_tokens, self.passes = model, state, at, to, model.n_tokens, 0

    def forward_rows(self, requests):
        self.passes += 1
        if self.passes == self.at:
            self.state.rewind(self.to)
        return self.model.forward_rows(requests)


@pytest.mark.parametrize("kind", ["recurrent", "latent"])
@pytest.mark.parametrize("at", [2, 9])
def test_a_rewind_between_planning_and_pass_costs_rows_and_no_token(kind, at):
    with closing(toy_model(kind)) as model:
        want = decode(model, start(model, [65, 66, 67], 60, max_tokens=20))
        stream = start(model, [65, 66, 67], 60, max_tokens=20)
        engine = RewoundBetween(model, stream.state, at, 0)
        assert decode(engine, stream) == want
        assert engine.passes > at
        same_rows(stream.state, _fresh(model, stream))


def _fresh(model, stream):
    state = model.new_cache(60)
    model.forward_rows([(state, stream.tokens[: stream.cached], "none")])
    return state


def test_four_threads_of_passes_on_one_state():
    with closing(toy_model("latent")) as model:
        state, tokens = model.new_cache(200), list(range(60, 70))
        threads = [threading.Thread(target=lambda: [model.forward(tokens, state) for _ in range(4)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fresh = model.new_cache(200)
        model.forward_rows([(fresh, tokens * 16, "none")])
        same_rows(state, fresh)
