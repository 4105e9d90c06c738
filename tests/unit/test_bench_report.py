"""Tables, figures and the generated page of known samples."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from bench import index, odds, report, speculation, streams, svg
from fucina.errors import ResultsError
from fucina.measure import summary, tables
from fucina.measure.results import Spread
from tests.unit import bench_fixture as fixture


def cells(table):
    header, body = table
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


def test_ratios_are_paired_and_only_where_they_mean_something():
    decode = next(x for x in summary.lines(fixture.speed()) if x.key == "decode/8")
    assert decode.ratios == {
        ("fucina Q4_1", "llama.cpp Q4_1"): Spread(2.0, 2.0, 2.0),
        ("fucina Q4_1", "llama.cpp Q4_0"): Spread(pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5)),
        ("fucina Q4_0", "llama.cpp Q4_0"): Spread(pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5)),
    }
    assert decode.rates["fucina Q4_1"] == Spread(pytest.approx(100), pytest.approx(50), pytest.approx(100))


def test_bytes_read_follow_context_windows_and_streams():
    side = fixture.speed()["sides"]["fucina Q4_1"]
    assert summary.bytes_read("decode/8", side) == 900 + 2 * 10 * 8 + 3 * 10 * 8
    assert summary.bytes_read("decode/1024", side) == 900 + 2 * 10 * 1024 + 3 * 10 * 16
    assert summary.bytes_read("streams/4", side) == 900 + 4 * (2 * 10 * 64 + 3 * 10 * 16)
    assert summary.bytes_read("prefill/128", side) == 900
    assert summary.bytes_read("decode/8", {"engine": "llama.cpp"}) is None


def test_a_share_is_taken_against_the_bandwidth_of_its_own_turn():
    record = fixture.speed()
    decode = next(x for x in summary.lines(record) if x.key == "decode/8")
    assert decode.shares["fucina Q4_1"].low == pytest.approx(decode.shares["fucina Q4_1"].high)
    assert decode.shares["fucina Q4_1"].median == pytest.approx(1300 / 0.01 / 200000)


def test_rates_count_all_tokens_of_a_pass():
    by_key = {x.key: x.rates["fucina Q4_1"].median for x in summary.lines(fixture.speed())}
    assert by_key["prefill/128"] == pytest.approx(1280)
    assert by_key["streams/4"] == pytest.approx(250)


def test_cost_table():
    ((heading, table),) = tables.cost_tables(fixture.speed())
    assert heading == "pass of k rows at 64 tokens of context"
    c = cells(table)
    assert c["C(k), fucina Q4_1"] == {"1": "1.00", "4": "1.50"}
    assert c["ms, llama.cpp Q4_1"]["4"] == "32.00"
    assert c["speed, fucina Q4_1 / llama.cpp Q4_1"] == {"1": "2.00", "4": "2.00"}


def test_busy_table_compares_turn_by_turn():
    _, (_, kept) = tables.tables("busy/smollm2", fixture.busy())
    assert cells(kept)["decode at 8 tokens of context"]["fucina Q4_1"] == "50 % (25-62)"


def test_start_table_leaves_out_what_nobody_measured():
    c = cells(tables.start_table(fixture.start()))
    assert c["process start to first token, s"] == {
        "fucina Q4_1": "1.00 (0.90-1.10)",
        "llama.cpp Q4_1": "0.50 (0.50-0.50)",
    }
    assert c["CPU time of that first compile, s"] == {"fucina Q4_1": "11.00 (10.00-12.00)", "llama.cpp Q4_1": ""}
    memory = c["peak memory, MiB (1024 positions, the last 64 decoded)"]
    assert memory == {"fucina Q4_1": "305 (300-310)", "llama.cpp Q4_1": ""}


def test_accuracy_table():
    c = cells(tables.accuracy_table(fixture.accuracy()))
    assert (
        c["likeliest token equal to llama.cpp's, teacher-forced on its greedy text"]["value"] == "193 of 200 (96.5 %)"
    )
    assert c["largest lead that llama.cpp's token had where they differ"]["value"] == "0.375"
    assert c["float32 reference equal to llama.cpp where its lead exceeds 1"]["value"] == "20 of 20"


def test_conversation_tables_take_ratios_within_a_turn():
    (_, together), (_, beside) = streams.tables(fixture.conversations())
    assert cells(together)["2"] == {
        "tokens per second together": "10 (10-10)",
        "gain over one after another": "1.50 (1.50-1.50)",
        "C(N)": "1.25 (1.25-1.25)",
        "N / C(N)": "1.60",
        "gain / that": "0.94",
    }
    assert cells(beside)["greedy"] == {"microseconds per step": "1000 (1000-1000)", "of the pass": "4.0%"}


def test_speculation_tables_keep_loops_and_short_outputs_apart():
    (_, (header, body)), (_, sources) = speculation.tables(fixture.speculation())
    assert [row[0] for row in body] == ["copy", "question"]
    copy = dict(zip(header[:4], body[0], strict=False))
    assert copy["prompts (loops, short ones apart)"] == "2 (1, 1)"
    assert copy["speedup (95 % interval)"] == "2.50 (2.00-3.00)" and copy["worst prompt"] == "2.00"
    assert body[0][-3:] == ["75%", "2.00", "10%"]
    c = cells(sources)
    assert c["copy"]["references alone"] == "" and c["question"]["references alone"] == "1.25 (1.25-1.25)"


def test_overhead_table():
    ((_, found),) = speculation.overhead_tables(fixture.overhead())
    assert cells(found)["verify"] == {
        "steps": "40", "microseconds beside the pass": "200 (200-200)", "of the pass": "2.0%", "limit": "5%",
    }  # fmt: skip


def test_index_table():
    ((_, found),) = index.tables(fixture.index())
    assert cells(found)["1,000,000 tokens at once"] == {
        "microseconds per token": "0.50 (0.50-0.75)", "bytes per token": "62",
    }  # fmt: skip


def test_the_index_is_measured_over_the_tokens_it_is_given():
    measured = index.measure(np.arange(400) % 7, rounds=2)
    assert measured["tokens"] == 400 and len(measured["bulk"]) == len(measured["fours"]) == 2
    assert min(measured["bulk"]) > 0 and measured["bytes"] > 0


def test_odds_table_names_the_lengths_of_matches():
    ((_, found),) = odds.tables(fixture.odds())
    c = cells(found)
    assert c["the text after a match of 2 tokens"] == {"positions": "100", "right": "51%"}
    assert c["the text after a match of 24 tokens or more"]["right"] == "90%"
    assert c["recycled, first"]["right"] == "20%"


def test_odds_are_counted_before_the_token_is_known():
    count = odds.Count()
    prompt, reply = [1, 2, 3, 4, 9, 1, 2], [3, 4, 9, 5]
    odds.replay(count, prompt, reply, [[3, 7], [4, 7], [9, 8], [5, 6]], 32)
    assert {n: (count.trials[n], count.hits[n]) for n in count.trials} == {
        "match 2": (1, 1), "match 3": (1, 1), "match 4": (1, 1), "match 5": (1, 0),
    }  # fmt: skip
    odds.replay(count := odds.Count(), [8], [7, 8, 6], [[7], [8, 5], [6]], 32)
    assert count.trials["recycled, first"] == 1 and count.hits["recycled, first"] == 0
    assert count.hits["recycled, any of 8"] == 0 and count.trials["match 1"] == 1


def test_loops_have_a_period():
    assert speculation.loop_period([1, 2, 3, 4, 5, 6, 7, 8]) == 0
    assert speculation.loop_period([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]) == 3
    assert speculation.loop_period([5] * 10) == 1
    assert speculation.loop_period([]) == 0


def test_every_table_is_rectangular():
    for name, record in fixture.records().items():
        for _, (header, body) in report.tables_of(name, record):
            assert body and {len(row) for row in body} == {len(header)}
            assert len(tables.text((header, body)).splitlines()) == len(body) + 2


def test_the_page_names_machine_versions_commands_and_figures():
    files = report.render({"example": fixture.records()})
    text = files[report.PAGE]
    for expected in (
        "## Example CPU, 2 cores",
        "fucina 0.1.0",
        "ggml 2.0 (abc)",
        "decode: flash attention on",
        "193 of 200",
    ):
        assert expected in text
    for record in fixture.records().values():
        assert f"`{record['stamp']['command']}`" in text
    linked = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert sorted(f"docs/{path}" for path in linked) == sorted(set(files) - {report.PAGE})
    assert "None" not in text and "nan" not in text


def test_figures_are_well_formed_and_say_their_numbers():
    figures = report.figures("example", fixture.records())
    assert len(figures) == 2
    for text in figures.values():
        root = ET.fromstring(text)
        described = root.find("{http://www.w3.org/2000/svg}desc")
        assert root.get("role") == "img" and described is not None and "fucina Q4_1" in described.text
        assert not re.search(r"(nan|inf|None)", text)


def test_text_in_figures_is_escaped():
    ET.fromstring(svg.bars("a < b & c", [("<x>", {"l&r": (1.0, 0.5, 2.0)})], "t/s"))


def test_records_of_two_machines_do_not_share_a_file():
    records = fixture.records()
    records["busy/smollm2"]["stamp"]["machine"] = {**fixture.MACHINE, "cpu": "Another"}
    with pytest.raises(ResultsError, match="different machines"):
        report.page({"example": records})


def test_committed_page_and_figures_are_those_of_the_committed_results():
    files = report.render(report.load_all())
    for path, text in files.items():
        assert (report.ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run python -m bench --report"
    drawn = {
        f"{report.IMAGES}/{p.name}"
        for pattern in ("speed-*.svg", "rows-*.svg", "serve-*.svg")
        for p in (report.ROOT / report.IMAGES).glob(pattern)
    }
    assert drawn == set(files) - {report.PAGE}


def test_committed_results_name_no_folders_or_hosts():
    for path in report.RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'"[^"]*(/home/|/root/|/tmp/|/Users/|:\\\\)[^"]*"', text)
