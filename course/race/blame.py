"""Which piece of the learner's is to blame when a run fails: the one with which ours in its place makes the run right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.my_engine import Assembly
from course.my_engine.pieces import READING
from course.race.sides import Contestant
from fucina.errors import WorkerFailed

Wrong = Callable[[dict[str, Any]], str]


class Blame:
    """Runs an engine again with one piece after the other replaced by ours."""

    def __init__(self, assembly: Assembly, side: Contestant, folder: Path) -> None:
        self.assembly, self.side, self.folder = assembly, side, folder
        self._found: dict[str, str] = {}  # piece -> what it did

    def known(self, pieces: tuple[str, ...]) -> str:
        """What is known already about one of the pieces of a run; "" if nothing."""
        return next((self._found[piece] for piece in pieces if piece in self._found), "")

    def attempt(self, engine: Path, ask: dict[str, Any], wrong: Wrong) -> tuple[dict[str, Any], str]:
        """(answer, what is wrong with it or "")."""
        try:
            got = self.side.ask("run", engine=str(engine), **ask)
        except WorkerFailed as error:
            return {"failed": {"lines": [], "stopped": True}}, f"ends its process ({error})"
        return (got, got["failed"]["message"]) if "failed" in got else (got, wrong(got))

    def find(
        self, pieces: tuple[str, ...], ask: dict[str, Any], wrong: Wrong, got: dict[str, Any], message: str
    ) -> str:
        """One sentence that names the piece.

        Parameters
        ----------
        pieces : that are at work in the run.
        ask, wrong, got, message : the run, what judges its answer, the answer, and the judgement.
        """
        failed = got.get("failed", {"lines": [], "stopped": False})
        places = [self.assembly.at(line) for line in failed["lines"]]
        met = [place.exercise for place in places if place is not None and place.who == "yours"]
        if failed["stopped"] and met:  # it took long once already
            return self._told(met[0], message)
        mine = [piece for piece in pieces if piece in self.assembly.yours]
        for piece in dict.fromkeys((*met, *mine)):
            if piece not in self.assembly.yours:
                continue
            path = self.folder / f"without_{piece.replace('.', '_')}.py"
            if not path.exists():
                self.assembly.swapped(piece).write(path)
            _, still = self.attempt(path, {**ask, "fresh": piece in READING}, wrong)
            if not still:
                return self._told(piece, message)
        if met:
            return self._told(met[0], message)
        whose = "no single piece of yours explains it" if mine else "all of its pieces are ours: please report it"
        return f"{message}; {whose}"

    def _told(self, piece: str, message: str) -> str:
        self._found[piece] = f"{piece} (yours) {message}"
        return self._found[piece]
