"""What a failed comparison says beside the two values: a missing return, where long lists differ, NumPy's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from course.grading.core import RETURNS_NONE
from course.grading.tools import Failed, Tools


def said(got: object, want: object, what: str = "the result", none_is_legal: bool = False) -> str:
    with pytest.raises(Failed) as failed:
        Tools("a check", none_is_legal).equal(got, want, what)
    return str(failed.value)


def test_a_return_is_missing_only_where_a_call_gave_none() -> None:
    assert "is a `return` missing?" in said(None, 3)
    assert "is a `return` missing?" in said(None, True, "gate.allows()")
    assert said(None, [5], "r.table.get(1)") == "r.table.get(1) is None, expected [5]"


def test_none_that_the_contract_allows_is_no_missing_return() -> None:
    assert said(None, 3, none_is_legal=True) == "the result is None, expected 3"
    assert RETURNS_NONE.search("    Returns\n    -------\n    int or None\n        The number.")
    assert not RETURNS_NONE.search(
        "    Returns\n    -------\n    (number, budget)\n        (None, 0) if no source may."
    )


def test_long_lists_show_where_they_differ() -> None:
    want = [False] * 64
    assert said([*want[:40], True, *want[41:]], want).endswith("They differ first at [40]: True, expected False")
    assert said(want[:60], want).endswith("it has 60 entries, expected 64")
    assert "differ first" not in said([1, 2], [1, 3])


@pytest.mark.parametrize("number", [np.int64(3), np.float32(3), np.uint8(3)])
def test_a_number_of_numpy_counts_as_a_number(number: np.generic) -> None:
    Tools("a check").equal(number, 3)
    Tools("a check").equal([(number, 0)], [(3, 0)])


def test_a_call_that_writes_into_an_earlier_result_is_told_of_it() -> None:
    lent, text = np.zeros(2), [1, 2]

    def in_one_array(value: float) -> np.ndarray:
        lent[:] = value
        return lent

    def grown(token: int) -> list[int]:
        text.append(token)
        return text

    for function, last in ((in_one_array, "an array of its own"), (grown, "a list of its own")):
        tools = Tools("a check")
        tools.call(function, 3)
        with pytest.raises(
            Failed, match=rf"changes what the call before it returned: it was .* Each call returns {last}"
        ):
            tools.call(function, 4)


def test_a_result_may_change_where_it_is_handed_in_or_by_others() -> None:
    tools = Tools("a check")
    got = tools.call(lambda: [1, 2])
    got.append(3)
    tools.call(lambda: (np.zeros(2), [4]))
    row, tokens = tools.last
    tools.call(lambda tokens: tokens.append(5), tokens, changes=True)
    assert tokens == [4, 5] and not row.any()
