"""The race: everybody decodes the same texts, in turn, and every row's tokens are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.my_engine import Assembly, assemble
from course.my_engine.pieces import at_work
from course.race import sides
from course.race.blame import Blame
from course.race.plan import BANNED, COMPILED, ENTRIES, NUMPY, PROOFS, QUICK, SAMPLING, Entry, Plan
from course.race.report import Race, Row
from fucina.errors import PeerNotFound, WorkerFailed
from fucina.gguf import GgufFile
from fucina.hub import find
from fucina.measure.duel import find_peer
from fucina.measure.results import stamp
from fucina.ops.native.cores import default_threads
from fucina.tokenizers import load_tokenizer

TIE = 1e-2  # logits that lie closer than this may change places with the order of a sum
STREAM_TOKENS = 6


def race(
    plan: Plan = QUICK,
    model: str = "smollm2",
    course: Course | None = None,
    tell: Callable[[str], None] = lambda line: None,
    limits: dict[str, float] | None = None,
    command: str = "python3 -m course race",
) -> Race:
    """Assemble my_engine.py and run it beside our engine, and beside llama.cpp's where it is installed.

    Parameters
    ----------
    plan : how much is run.
    model : a name or a path that `fucina.load` knows.
    tell : called with lines about the progress.
    limits : of one run of the learner's code, in place of those of `course.race.sides.LIMITS`.
    command : what the result says it was measured with.
    """
    assembly = assemble(course, tell)
    tell(assembly.summary)
    with tempfile.TemporaryDirectory(prefix="fucina-race-") as folder:
        contest = _Contest(plan, str(find(model)), assembly, Path(folder), tell, limits or {})
        try:
            contest.run()
        finally:
            contest.close()
    stamped = stamp(command)
    stamped["versions"] |= {"llama.cpp": contest.peer} if contest.peer else {}
    return Race(stamped, assembly, plan, contest.rows, contest.notes)


class _Contest:
    """One race under way."""

    def __init__(
        self,
        plan: Plan,
        model: str,
        assembly: Assembly,
        folder: Path,
        tell: Callable[[str], None],
        limits: dict[str, float],
    ) -> None:
        self.plan, self.assembly, self.tell = plan, assembly, tell
        tokenizer = load_tokenizer(GgufFile(model).metadata)
        self.ids: dict[str, list[int]] = {
            name: list(tokenizer.encode_prompt(text)) if isinstance(text, str) else list(text)
            for name, text in plan.texts.items()
        }
        self.engine = folder / "my_engine.py"
        assembly.write(self.engine)
        self.yours, self.ours = sides.yours(model, **limits), sides.ours(model)
        self.blame = Blame(assembly, self.yours, folder)
        self.llama: sides.Contestant | None = None
        self.notes: list[str] = []
        try:
            self.llama = sides.llama(model, default_threads(), find_peer())
        except PeerNotFound:
            self.notes.append(
                "llama.cpp is not installed here, so it has no row (FUCINA_LLAMA_PYTHON can name a Python that has it)."
            )
        self.peer = ""  # llama.cpp's version
        self.rows: list[Row] = []
        self.said: dict[str, list[int]] = {}  # what our compiled engine says
        self.exact: dict[str, dict[str, list[Any]]] = {}  # what the float32 reference says

    def close(self) -> None:
        """End the processes."""
        for side in filter(None, (self.yours, self.ours, self.llama)):
            side.close()

    def run(self) -> None:
        """References, then the texts one after the other, everybody in turn."""
        numpy = self.plan.numpy_rounds > 0
        self.tell("reading the references")
        with ThreadPoolExecutor(1) as pool:
            if numpy:  # reading the weights takes as long for them: at the same time
                pool.submit(self._quietly, forward=NUMPY, how="load")
            for name, ids in self.ids.items():
                self.said[name] = self.ours.ask("run", ids=ids, n=self.plan.tokens, how="plain")["tokens"]
                if numpy:
                    self.exact[name] = self.ours.ask("exact", ids=ids, n=self.plan.numpy_tokens)
        for name in self.ids:
            self._text(name)
        self._proofs(next(iter(self.ids)))

    def _quietly(self, **ask: Any) -> None:
        with suppress(WorkerFailed):  # the row that needs it says so
            self.yours.ask("run", engine=str(self.engine), **ask)

    def _text(self, text: str) -> None:
        entries = [e for e in ENTRIES if self.plan.rounds_of(e) and (e.side != "llama.cpp" or self.llama)]
        rows = {entry: Row.of(entry, text, self._pieces(entry), self.assembly.yours) for entry in entries}
        rounds = max(self.plan.rounds_of(entry) for entry in entries)
        for turn in range(rounds):
            self.tell(f"{text}: round {turn + 1} of {rounds}")
            for entry in entries if turn % 2 == 0 else entries[::-1]:
                if turn < self.plan.rounds_of(entry) and not rows[entry].failure:
                    self._turn(entry, text, rows[entry])
        self.rows += rows.values()

    def _pieces(self, entry: Entry) -> tuple[str, ...]:
        return at_work(entry.how, entry.forward) if entry.side == "yours" else ()

    def _turn(self, entry: Entry, text: str, row: Row) -> None:
        """One run, entered into its row; what goes wrong ends the row."""
        n = self.plan.tokens_of(entry)
        ids = self.ids[text]
        with self._ending(row):
            if entry.side == "ours":
                got = self.ours.ask("run", ids=ids, n=n, how=entry.how)
            elif entry.side == "llama.cpp":
                got = self._llama(ids, n, text, row)
            else:
                got = self._yours(entry, row, {"ids": ids, "n": n}, lambda got: self._wrong(entry, text, got["tokens"]))
            row.enter(got)
            if entry.side == "ours":
                row.compare(got["tokens"], self.said[text], "the compiled engine's")

    def _yours(
        self, entry: Entry, row: Row, ask: dict[str, Any], wrong: Callable[[dict[str, Any]], str]
    ) -> dict[str, Any]:
        """A run of the learner's engine; raises `_Ended` with the piece that is to blame when it fails or is wrong."""
        ask = {"forward": entry.forward, "how": entry.how, **ask}
        known = self.blame.known(row.pieces)
        if known:
            raise _Ended(known)
        got, message = self.blame.attempt(self.engine, ask, wrong)
        if message:
            raise _Ended(self.blame.find(row.pieces, ask, wrong, got, message))
        row.equal = self._verdict(entry, row.text, got["tokens"])
        return got

    def _expected(self, entry: Entry, text: str) -> list[int]:
        """The tokens that a run of the learner's engine must give."""
        if entry.forward == NUMPY:
            return self.exact[text]["tokens"]
        return self.said[text][: self.plan.tokens_of(entry)]

    def _wrong(self, entry: Entry, text: str, tokens: list[int]) -> str:
        """What is wrong with the tokens, "" if nothing is.  Float32 sums in another order may turn a tie: no fault."""
        want = self._expected(entry, text)
        at = _parting(tokens, want)
        if at is None or (entry.forward == NUMPY and at < len(want) and self.exact[text]["leads"][at] < TIE):
            return ""
        return f"gives different tokens, from token {at + 1} of {len(want)} on"

    def _verdict(self, entry: Entry, text: str, tokens: list[int]) -> str:
        if not entry.timed:
            return "equal"
        want = self._expected(entry, text)
        at = _parting(tokens, want)
        whose = "the float32 reference's" if entry.forward == NUMPY else "the compiled engine's"
        if at is None:
            return f"{len(want)} of {len(want)} equal {whose}"
        lead = self.exact[text]["leads"][at]
        return f"{at} of {len(want)} equal {whose}; then two logits tie ({lead:.1g} apart)"

    def _llama(self, ids: list[int], n: int, text: str, row: Row) -> dict[str, Any]:
        assert self.llama is not None
        capacity = 256 * -(-(len(ids) + self.plan.tokens) // 256)
        if not row.seconds:
            self.peer = self.peer or str(self.llama.ask("describe")["version"])
            said = self.said[text][:n]
            best = self.llama.ask("argmax", ids=[*ids, *said[:-1]], start=len(ids) - 1, capacity=capacity)
            same = sum(a == b for a, b in zip(best, said, strict=True))
            row.equal = f"{same} of {n} next tokens as the compiled engine's (it rounds activations, too)"
        seconds = sum(self.llama.ask("decode", context=len(ids), steps=n, capacity=capacity))
        return {"tokens": self.said[text][:n], "seconds": seconds, "steps": n, "drafted": 0, "accepted": 0}

    # --- runs whose tokens alone matter -------------------------------------------------------------------------------

    def _proofs(self, text: str) -> None:
        """Pieces that no timed run goes through, on the compiled forward."""
        self.tell("tokens of sampling, stops and streams")
        ids, said = self.ids[text], self.said[text]
        n = min(self.plan.tokens, 16)
        banned = sorted(set(said))[:BANNED]
        stop = said[min(n // 2, len(said) - 1)]
        few = min(STREAM_TOKENS, self.plan.tokens)
        each = [self.said[name][:few] for name in self.ids]
        sampling = {"sampling": SAMPLING, "banned": banned}
        expected: dict[str, list[int]] = {
            "sampled": self.ours.ask("sampled", ids=ids, n=n, **sampling),
            "until a stop": said[: said.index(stop) + 1],
            "streaming": said[:n],
            "from a document": said[:n],
            "three streams": sum(each, []),
            "isolated": sum([each[0][:2], *each[1:]], []),
            "one by one": sum([*each, each[0]], []),
            "served": sum(each, []),
        }
        for entry in PROOFS:
            want = expected[entry.how]

            def wrong(got: dict[str, Any], want: list[int] = want) -> str:
                at = _parting(got["tokens"], want)
                return "" if at is None else f"gives different tokens, from token {at + 1} of {len(want)} on"

            row = Row.of(entry, text, self._pieces(entry), self.assembly.yours)
            ask = {"ids": ids, "n": n, "stop": stop, "document": [*ids[-1:], *said[:n]], **sampling}
            if entry.how in ("three streams", "isolated", "one by one", "served"):
                ask = {"prompts": list(self.ids.values()), "n": few}
            with self._ending(row):
                row.enter(self._yours(entry, row, ask, wrong))
                row.equal = f"{len(want)} of {len(want)} equal the compiled engine's"
            self.rows.append(row)

    @contextmanager
    def _ending(self, row: Row) -> Iterator[None]:
        """What ends a row is kept in it; the others go on."""
        try:
            yield
        except _Ended as ended:
            row.failure = str(ended)
        except WorkerFailed as error:
            row.failure = f"the process of {row.entry.side} failed: {error}"


class _Ended(Exception):
    """A row cannot go on; the message says why."""


def _parting(tokens: list[int], want: list[int]) -> int | None:
    """Where two lists of tokens part; None if they are equal."""
    if tokens == want:
        return None
    return next((i for i, (a, b) in enumerate(zip(tokens, want, strict=False)) if a != b), min(len(tokens), len(want)))


__all__ = ["COMPILED", "race"]
