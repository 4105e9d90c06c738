"""What works for each family: one check for each column of the table in docs/families.md.

    python -m tests.every_family     run all checks, and write the table

A check raises an AssertionError, or returns what the table says.  `tests/unit/test_every_family.py` runs them one by
one and compares with the page.  A family takes part by its entry in `tests/toys/real.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np

from fucina import Model, SlotPool
from fucina.cache import State
from fucina.chat import Conversation
from fucina.models import FAMILIES
from fucina.ops.naive import Naive
from fucina.ops.native import Native
from fucina.ops.native_bits import NATIVE_BITS
from fucina.speculative import Options, SourceDrafter
from tests.conversations import check_state
from tests.spec_toys import Replay
from tests.toy_families import VOCAB, toy_family, toy_model
from tests.unit.tiny_models import EAGER, run

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
BEGIN, END = "<!-- table of families: python -m tests.every_family -->", "<!-- end of the table -->"
TEXT = np.random.default_rng(8).integers(33, 120, 400).tolist()
ALWAYS = Options(adapt_budget=False, min_speedup=0, min_draft=1, max_draft=5)
CUTS = (1, 2, 63, 64, 65, 100, 129, 130)


@cache
def model(name: str) -> Model:
    """A family's small file in several block formats, on the fast engine."""
    return toy_model(name, "native", "quantised", threads=2)


def alone(interpreter: Naive | Native, name: str, tokens: list[int], cuts: tuple[int, ...], dtype: str) -> np.ndarray:
    """Logits of a text in a new state, in passes that end at the cuts."""
    state = State(toy_family(name).parts, 512, dtype)
    ends = [*(c for c in cuts if c < len(tokens)), len(tokens)]
    return np.concatenate([run(interpreter, [(state, tokens[a:b])]) for a, b in zip([0, *ends], ends, strict=False)])


@cache
def plain(name: str, prompt: tuple[int, ...], n: int) -> list[int]:
    """The next n tokens, each from the logits of a new state that computes the whole text."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(name).logits(tokens)[-1, :VOCAB].argmax()))
    return tokens[len(prompt) :]


# --- the columns ------------------------------------------------------------------------------------------------------


def naive(name: str) -> str:
    """The readable interpreter: cuts do not matter, and the fast one computes the same on float weights."""
    family, text = toy_family(name), TEXT[:90]
    exact = Naive(family)
    whole = alone(exact, name, text, (), "f32")
    assert alone(exact, name, text, CUTS, "f32").tobytes() == whole.tobytes()
    with closing(Native(family, threads=2, context=512, cache_dtype="f32", **EAGER)) as fast:
        np.testing.assert_allclose(alone(fast, name, text, (), "f32"), whole, atol=1e-4 * np.abs(whole).max())
    return "yes"


def native(name: str) -> str:
    """The fast interpreter: bits of its readable twin; threads and cuts do not matter."""
    family, text = toy_family(name, "quantised"), TEXT[:100]
    results = []
    for threads in (1, 3):
        with closing(Native(family, threads=threads, context=512, **EAGER)) as fast:
            results += [alone(fast, name, text, cuts, "f16").tobytes() for cuts in ((), CUTS, tuple(range(1, 100, 7)))]
            first = alone(fast, name, text[:24], (), "f16")
    assert len(set(results)) == 1
    twin = Naive(family, functions=NATIVE_BITS)
    assert alone(twin, name, text[:24], (), "f16").tobytes() == first.tobytes()
    return "yes"


def batch(name: str) -> str:
    """Streams in one pass, prompts beside single rows: each as if it were alone."""
    m, texts = model(name), [TEXT[:70], TEXT[100:101], TEXT[200:290], TEXT[300:317]]
    expected = [m.logits(text) for text in texts]
    states = [m.new_cache(128) for _ in texts]
    got: list[list[np.ndarray]] = [[] for _ in texts]
    for takes in ((1, 0, 40, 3), (30, 1, 1, 0), (39, 0, 49, 14)):
        here = [(i, n) for i, n in enumerate(takes) if n]
        rows = m.forward_rows([(states[i], texts[i][states[i].len : states[i].len + n], "all") for i, n in here])
        for (i, n), logits in zip(here, rows, strict=True):
            got[i].append(logits)
            assert len(logits) == n
    for parts, want in zip(got, expected, strict=True):
        assert np.concatenate(parts).tobytes() == want.tobytes()
    return "yes"


def speculation(name: str) -> str:
    """Right and wrong drafts: the tokens of a plain loop."""
    prompt = tuple(TEXT[:150])
    expected = plain(name, prompt, 24)
    rng = np.random.default_rng(0)
    sometimes = Replay([*prompt, *expected], lambda i, t: (t + 1) % VOCAB if rng.random() < 0.25 else t)
    for source in (Replay([*prompt, *expected]), sometimes):
        drafter = SourceDrafter(model(name), source, ALWAYS)
        fast = model(name).generate(list(prompt), max_tokens=24, ignore_eos=True, speculative=drafter)
        assert fast.tokens == expected and fast.speculation.accepted > 5
    return "yes"


def reuse(name: str) -> str:
    """A conversation that goes on, goes back, and goes on: the tokens of a plain loop.  Where a state can go back to."""
    c = Conversation(model(name), max_tokens=6)
    c.stop_ids = frozenset()

    def check(reply) -> None:
        assert reply.tokens == plain(name, tuple(c.history[: reply.prompt_tokens]), len(reply.tokens))
        check_state(c)

    check(c.send_tokens_reuse(TEXT[:120]))
    check(c.send_rendered("and on"))
    check(c.regenerate())
    c.undo(1)
    check_state(c, complete=False)
    check(c.send_rendered("again"))
    check(c.send_tokens_reuse([*TEXT[:100], *TEXT[200:230]]))
    state = model(name).new_cache(400)
    model(name).forward_rows([(state, TEXT[:300], "none")])
    if all(state.rewind_point(n) == n for n in range(301)):
        return "any position"
    return "checkpoints" if state.layout.recurrent else "while the window is kept"


def persistence(name: str) -> str:
    """Rows in a file and in a pool: a conversation that goes on from them is the one that was never interrupted."""
    m = model(name)

    def end(c: Conversation, say: str) -> list[int]:
        reply = c.send_rendered(say)
        assert reply.tokens == plain(name, tuple(c.history[: reply.prompt_tokens]), len(reply.tokens))
        check_state(c)
        return reply.tokens

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.fuxkv"
        with Conversation(m, max_tokens=6, save=path) as c:
            end(c, "a" * 100)
            rows = c.cache.len
        with Conversation(m, max_tokens=6, save=path) as c:
            assert c.restored == rows > 100
            end(c, "and on")
    pool, ids = SlotPool(m), TEXT[:120]
    for more in range(2):
        with pool.conversation(max_tokens=6) as c:
            reply = c.send_tokens_reuse(ids)
            assert reply.tokens == plain(name, tuple(ids), len(reply.tokens))
            assert (reply.cached_tokens > 100) == bool(more)
            check_state(c)
            ids = [*c.history, *TEXT[300:310]]
    return "yes"


COLUMNS: dict[str, Callable[[str], str]] = {
    f.__name__: f for f in (naive, native, batch, speculation, reuse, persistence)
}


# --- the table --------------------------------------------------------------------------------------------------------


def page_table() -> dict[str, dict[str, str]]:
    """What docs/families.md says: family -> column -> cell."""
    lines = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def write_table() -> None:
    """Run all checks and write the table into the page."""
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in FAMILIES:
        lines.append(f"| `{name}` | {' | '.join(check(name) for check in COLUMNS.values())} |")
        print(lines[-1])
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + after, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_table()
