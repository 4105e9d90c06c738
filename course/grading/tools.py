"""What a check works with: calls that are watched, comparisons that explain themselves, cases from small to large.

A check runs through its cases in growing order and stops at the first that fails; what is reported is therefore the
smallest counterexample that the check knows.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from course.grading.state import Anchor
from course.rules import TYPES, UNCHANGED


class Failed(Exception):
    """A property does not hold; the message says what the learner's code did and what was expected."""


class LearnerError(Exception):
    """The learner's code raised; `error` is the exception, with its traceback."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def show(value: Any, limit: int = 160) -> str:
    """A value in one ASCII line, arrays with their dtype and shape; however large it is, at little cost."""
    try:
        if type(value) in (str, bytes, bytearray) and len(value) > limit:
            text = repr(value[: limit + 1])
        elif isinstance(value, np.ndarray):
            if value.size <= 12:
                text = f"array({value.tolist()}, {value.dtype})"
            else:
                first = ", ".join(show(v) for v in value.reshape(-1)[:4])
                text = f"array of {value.dtype}, shape {value.shape}: [{first}, ...]"
        elif isinstance(value, np.generic):
            text = repr(value.item())
        elif type(value) in (list, tuple) and len(value) > limit:
            text = repr(value[:limit])
        else:
            text = repr(value)
    except BaseException as error:  # the learner's own __repr__
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return one_line(text, limit)


def one_line(text: str, limit: int) -> str:
    """Text in one ASCII line of at most `limit` characters."""
    text = " ".join(text[: 2 * limit].split()).encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= limit else text[: limit - 4] + " ..."


class Tools:
    """The second argument of every check.

    `rng` is a NumPy generator seeded by the check's own sentence: the same cases on every machine and every day.
    """

    def __init__(self, seed: str, none_is_legal: bool = False) -> None:
        self.none_is_legal = none_is_legal  # the contract names None as an answer: it may be returned on purpose
        self.rng = np.random.default_rng(zlib.crc32(seed.encode("utf-8")))
        self.story: list[str] = []
        self.printed = ""
        self.last: Any = None
        self._anchor = Anchor()

    def case(self, *lines: str) -> None:
        """Begin a case: `lines` is the code that leads up to it, as a learner would type it."""
        self.story = list(lines)

    def call(
        self, function: Callable[..., Any], *args: Any, shown: str | None = "", changes: bool | tuple[int, ...] = False
    ) -> Any:
        """Call the learner's code; `shown` is how the call reads in the counterexample (None: it does not show).

        Lists, dicts and arrays among the arguments must come back as they went in, unless `changes` allows it: for all
        of them (True), or for those at some places.  Arrays and lists that the call before returned stay as they are, too.

        Raises
        ------
        Failed
            An argument was changed, or an earlier result.
        LearnerError
            The code raised.
        """
        name = getattr(function, "__name__", type(function).__name__)
        if shown is not None:
            self.story.append(shown or f"{name}({', '.join(show(a) for a in args)})")
        free = range(len(args)) if changes is True else changes or ()
        kept = {i: a for i, a in enumerate(args) if i not in free and isinstance(a, (list, dict, np.ndarray))}
        before = copy.deepcopy(kept)
        earlier = [(part, copy.copy(part)) for part in _parts(self.last) if all(part is not a for a in args)]
        with self._watch():
            try:
                self.last = function(*args)
            finally:
                self._anchor.hold()
        for i, old in before.items():
            if not _same(old, args[i]):
                raise Failed(f"changes its argument number {i + 1}: {_difference(old, args[i])}. {rule(UNCHANGED)}")
        for part, old in earlier:
            if not _same(old, part):
                raise Failed(
                    f"changes what the call before it returned: {_difference(old, part)}. "
                    f"Each call returns {'an array' if isinstance(part, np.ndarray) else 'a list'} of its own"
                )
        return self.last

    def raises(self, error: str, function: Callable[..., Any], *args: Any, shown: str | None = "") -> BaseException:
        """The learner's code must raise the exception class called `error`, or one derived from it."""
        try:
            got = self.call(function, *args, shown=shown, changes=True)
        except LearnerError as caught:
            names = [cls.__name__ for cls in type(caught.error).__mro__]
            if error in names:
                return caught.error
            self.fail(f"raises {describe(caught.error)}, expected {error}")
        self.fail(f"returns {show(got)} without an error, expected {error}")

    def equal(self, got: Any, want: Any, what: str = "the result") -> None:
        """Same type of value and same value; arrays element by element, with the first difference named."""
        self._returned(got, want, what)
        if isinstance(want, np.ndarray):
            self._shape(got, want, what)
            differ = np.flatnonzero(~_elements_equal(np.asarray(got), want))
            if differ.size:
                at = np.unravel_index(differ[0], want.shape)
                self.fail(f"{what}{_at(at)} is {show(got[at])}, expected {show(want[at])}")
        elif isinstance(got, np.ndarray) or not _same(got, want):
            self.fail(
                f"{what} is {show(got)}, expected {show(want)}{other_kind(got, want)}{first_difference(got, want)}"
            )

    def close(self, got: Any, want: Any, what: str = "the result", rtol: float = 1e-6, atol: float = 0.0) -> None:
        """Numbers, or arrays of numbers, within a tolerance; NaN is never close to a number."""
        self._returned(got, want, what)
        if isinstance(want, np.ndarray) and isinstance(got, (list, tuple)):
            self.fail(f"{what} is a {type(got).__name__}, expected an array. {rule(TYPES)}")
        wanted = np.asarray(want, dtype=np.float64)
        try:
            given = np.asarray(got, dtype=np.float64)
        except (TypeError, ValueError):
            self.fail(f"{what} is {show(got)}, expected a number like {show(want)}")
        self._shape(given, wanted, what)
        bad = np.flatnonzero(~np.isclose(given, wanted, rtol=rtol, atol=atol))
        if bad.size:
            at = np.unravel_index(bad[0], wanted.shape)
            self.fail(f"{what}{_at(at)} is {given[at].item():.9g}, expected {wanted[at].item():.9g}")

    def holds(self, condition: bool, what: str) -> None:
        """A property in words: `what` says what is wrong when it does not hold."""
        if not condition:
            self.fail(what)

    def fail(self, what: str) -> NoReturn:
        """Report a counterexample."""
        raise Failed(what)

    def _returned(self, got: Any, want: Any, what: str) -> None:
        if got is None and want is not None:
            returned = what == "the result" or what.endswith("()")  # not an attribute, nor an entry that is not there
            self.fail(f"{what} is None, expected {show(want)}" + (self.no_return() if returned else ""))

    def no_return(self) -> str:
        """A remark for a call that gave None instead of what the contract promises."""
        if self.none_is_legal:
            return ""
        return ": is a `return` missing?" + self.printed_instead()

    def printed_instead(self) -> str:
        """A remark for code that prints its answer."""
        printed = self.printed.strip()
        return f" It printed {show(printed, 60)}; printing is not returning." if printed else ""

    def _shape(self, got: Any, want: np.ndarray, what: str) -> None:
        shape = np.shape(got)
        if shape != want.shape:
            self.fail(f"{what} has shape {shape}, expected {want.shape}")

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                yield
        except (MemoryError, Failed):
            raise
        except BaseException as error:
            raise LearnerError(error) from None
        finally:
            self.printed = (self.printed + out.getvalue())[-2000:]


def describe(error: BaseException) -> str:
    """`IndexError: list index out of range`, in one ASCII line."""
    try:
        text = str(error)
    except BaseException as another:  # the learner's own __str__
        text = f"(its text raises {type(another).__name__})"
    return type(error).__name__ + (f": {one_line(text, 200)}" if text else "")


def _at(index: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(int(i)) for i in index)}]" if index else ""


def _elements_equal(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        same = np.asarray(got == want)
    if want.dtype.kind == "f" and got.dtype.kind == "f":
        same = same | (np.isnan(got) & np.isnan(want))
    return same


def other_kind(got: Any, want: Any) -> str:
    """A remark for the right values in a tuple, list or array of the wrong kind."""
    try:
        if not _same(_listed(got), _listed(want)):
            return ""
    except Exception:  # what is in it can do anything
        return ""
    return f". The values are right, but not their types. {rule(TYPES)}"


def rule(text: str) -> str:
    """How feedback names one of the rules for all exercises."""
    return f"Rule for all exercises: {text[0].lower()}{text[1:]}"


def rule_broken(error: BaseException, ours: bool) -> str:
    """The rule that explains an error of Python's own; `ours`: it was raised by a use of what the learner returned."""
    if isinstance(error, ValueError) and "read-only" in str(error):
        return rule(UNCHANGED)
    if (
        ours
        and isinstance(error, AttributeError)
        and isinstance(error.obj, (list, tuple))
        and hasattr(np.ndarray, str(error.name))
    ):
        return f"A {type(error.obj).__name__} came back, expected an array. {rule(TYPES)}"
    return ""


def _parts(value: Any) -> list[Any]:
    """The arrays and lists of a result."""
    return [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, (np.ndarray, list))]


def _difference(old: Any, new: Any) -> str:
    """What changed: of a large array, the first element that did."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and old.shape == new.shape and old.size > 12:
        differ = np.flatnonzero(~_elements_equal(new, old))
        if differ.size:
            at = np.unravel_index(differ[0], old.shape)
            return f"its element {_at(at)} was {show(old[at])}, afterwards {show(new[at])}"
    return f"it was {show(old)}, afterwards {show(new)}"


def first_difference(got: Any, want: Any) -> str:
    """Where two long lists differ first, if they are cut off when they are shown; else an empty string."""
    if not (type(got) is type(want) and type(got) in (list, tuple)) or len(repr(want)) <= 160 >= len(repr(got)):
        return ""
    for i, (a, b) in enumerate(zip(got, want, strict=False)):
        if not _same(a, b):
            return f". They differ first at [{i}]: {show(a)}, expected {show(b)}"
    return f". They agree as far as both go; it has {len(got)} entries, expected {len(want)}"


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _same(a: Any, b: Any) -> bool:
    """Deep equality that does not trip over arrays, and in which NaN equals NaN."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            return False
        return a.shape == b.shape and a.dtype == b.dtype and bool(_elements_equal(a, b).all())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    try:
        return bool(a == b)
    except BaseException:  # the learner's own __eq__
        return False
