"""Medians, pairs, costs and the files that hold results."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.errors import ResultsError
from fucina.measure import results
from fucina.measure.results import Spread, costs, pair_ratios, rates

SECONDS = st.floats(1e-6, 1e3)


def test_a_turn_counts_every_pass_not_only_the_typical_one():
    assert rates([[0.1, 0.1, 0.8]], 1) == [pytest.approx(3.0)]
    assert rates([[0.5], [0.25]], 128) == [256.0, 512.0]


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_a_ratio_stays_within_its_pairs(pairs):
    ratios = pair_ratios([a for a, _ in pairs], [b for _, b in pairs])
    assert ratios == [a / b for a, b in pairs]
    s = Spread.of(ratios)
    assert s.low <= s.median <= s.high and s.low in ratios and s.high in ratios


def test_a_drifting_machine_does_not_change_a_paired_ratio():
    theirs = [100.0, 50.0, 25.0]
    assert Spread.of(pair_ratios([2 * t for t in theirs], theirs)) == Spread(2.0, 2.0, 2.0)


def test_sides_with_different_turns_do_not_pair():
    with pytest.raises(ResultsError, match="3 and 2"):
        pair_ratios([1.0, 2.0, 3.0], [1.0, 2.0])


def test_a_spread_needs_values():
    with pytest.raises(ResultsError, match="at least one"):
        Spread.of([])


def test_costs_are_taken_within_a_turn_and_in_order():
    turns = [{"1": 1.0, "2": 1.5, "16": 5.0}, {"1": 2.0, "2": 2.0, "16": 8.0}, {"1": 4.0, "2": 5.0, "16": 20.0}]
    c = costs(turns)
    assert list(c) == [1, 2, 16]
    assert c[1] == Spread(1.0, 1.0, 1.0)
    assert c[2] == Spread(1.25, 1.0, 1.5)
    assert c[16] == Spread(5.0, 4.0, 5.0)


def test_rounding_reaches_everywhere_and_keeps_integers():
    assert results.rounded({"a": [0.123456789, 3], "b": {"c": (1.00000001,)}}) == {
        "a": [0.1234568, 3],
        "b": {"c": [1.0]},
    }


def a_record(**changes):
    stamp = {"date": "2025-01-01T00:00Z", "command": "python -m bench", "machine": {"cpu": "x"}, "versions": {}}
    return {"stamp": {**stamp, **changes}, "samples": {"fucina": {"decode/8": [[0.5, 0.25], [0.125]]}}}


def test_a_stored_record_reads_back_and_replaces_its_older_self(tmp_path):
    path = tmp_path / "results" / "machine.json"
    results.store(path, "speed/b", a_record())
    results.store(path, "speed/a", a_record())
    results.store(path, "speed/b", a_record(command="python -m bench --quick"))
    stored = results.read(path)["records"]
    assert list(stored) == ["speed/a", "speed/b"]
    assert stored["speed/b"] == a_record(command="python -m bench --quick")
    assert [p.name for p in path.parent.iterdir()] == ["machine.json"]


def test_samples_take_one_line_a_list(tmp_path):
    path = tmp_path / "machine.json"
    results.store(path, "speed/a", a_record())
    assert "      [0.5, 0.25],\n      [0.125]\n" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "machine.json"),
        ("[]", "schema 1"),
        ('{"schema": 2, "records": {}}', "schema 1"),
        ('{"schema": 1}', "records"),
        ('{"schema": 1, "records": {"speed/a": {}}}', "speed/a.*stamp"),
        (json.dumps({"schema": 1, "records": {"a": a_record(date=5)}}), "stamp.date must be a str, got 5"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "machine.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ResultsError, match=message):
        results.read(path)


def test_a_bad_record_does_not_harm_the_file(tmp_path):
    path = tmp_path / "machine.json"
    results.store(path, "speed/a", a_record())
    before = path.read_bytes()
    with pytest.raises(ResultsError):
        results.store(path, "speed/b", {"samples": {}})
    assert path.read_bytes() == before
