"""Records as tables: of Markdown for docs/performance.md, and as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .results import Spread, pair_ratios
from .summary import Line, cost_lines, lines, number, pairs, question, title, turn_rates

Table = tuple[list[str], list[list[str]]]  # header, rows

_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16)  # of the costs of k rows


def spread(s: Spread, digits: int = 0) -> str:
    """Median (low-high)."""
    return f"{s.median:.{digits}f} ({s.low:.{digits}f}-{s.high:.{digits}f})"


def ratio_name(pair: tuple[str, str]) -> str:
    """Which ratio it is."""
    return f"{pair[0]} / {pair[1]}"


def rate_table(record: dict[str, Any], kinds: Sequence[str], busy: bool = False) -> Table:
    """Tokens per second, share of the bandwidth of each side, and ratios, one row per question."""
    chosen = [x for x in lines(record) if question(x.key) in kinds and x.key.endswith("/busy") == busy]
    if not chosen:
        return [], []
    labels = [label for label in record["sides"] if any(label in x.rates for x in chosen)]
    ratios = [p for p in pairs(record) if any(p in x.ratios for x in chosen)]
    header = ["tokens per second", *labels, *map(ratio_name, ratios)]
    return header, [[title(x.key), *_rates(x, labels), *_ratios(x, ratios)] for x in chosen]


def _rates(x: Line, labels: Sequence[str]) -> list[str]:
    cells = []
    for label in labels:
        if label not in x.rates:
            cells.append("")
            continue
        share = f", {100 * x.shares[label].median:.0f} %" if label in x.shares else ""
        cells.append(spread(x.rates[label], 0 if x.rates[label].median >= 100 else 1) + share)
    return cells


def _ratios(x: Line, ratios: Sequence[tuple[str, str]]) -> list[str]:
    return [spread(x.ratios[p], 2) if p in x.ratios else "" for p in ratios]


def cost_tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """For each context: C(k) of every side with milliseconds, and how much sooner ours is done."""
    out = []
    for x in cost_lines(record):
        rows = [k for k in _SHOWN if k in next(iter(x.cost.values()))]
        body = []
        for label, cost in x.cost.items():
            body.append([f"C(k), {label}", *(f"{cost[k].median:.2f}" for k in rows)])
            body.append([f"ms, {label}", *(f"{x.milliseconds[label][k].median:.2f}" for k in rows)])
        body += [[f"speed, {ratio_name(p)}", *(f"{r[k].median:.2f}" for k in rows)] for p, r in x.ratios.items()]
        out.append((title(x.key), (["k", *map(str, rows)], body)))
    return out


def busy_table(record: dict[str, Any]) -> Table:
    """What is left beside a busy process: each side's rate over its own idle rate of the same turn."""
    labels = list(record["samples"])
    keys = [k for k in record["samples"][labels[0]] if not k.endswith("/busy")]
    body = []
    for key in keys:
        row = [title(key)]
        for label in labels:
            s = record["samples"][label]
            kept = pair_ratios(turn_rates(key, s[f"{key}/busy"]), turn_rates(key, s[key]))
            row.append(
                " ".join([f"{100 * Spread.of(kept).median:.0f} %", f"({100 * min(kept):.0f}-{100 * max(kept):.0f})"])
            )
        body.append(row)
    return ["kept beside a busy process", *labels], body


def start_table(record: dict[str, Any]) -> Table:
    """Seconds and megabytes of start-up."""
    samples = record["samples"]
    names = {
        "first_token/warm": ("process start to first token, s", lambda v: Spread.of([x["first"] for x in v])),
        "first_token/cold": ("the same with no compiled kernels, s", lambda v: Spread.of([x["first"] for x in v])),
        "compile": ("CPU time of that first compile, s", Spread.of),
        "load": ("loading the model, s", Spread.of),
        "memory": (_memory_name(record), lambda v: Spread.of([x / 2**20 for x in v])),
    }
    body = []
    for key, (name, value) in names.items():
        row = [name]
        for s in samples.values():
            given = _compile_cpu(s) if key == "compile" else s.get(key)
            usable = given and None not in given
            row.append(spread(value(given), 0 if key == "memory" else 2) if usable else "")
        if any(row[1:]):
            body.append(row)
    return ["start-up", *samples], body


def _memory_name(record: dict[str, Any]) -> str:
    s = record["settings"]
    return f"peak memory, MiB ({s['context']} positions, the last {s['new_tokens']} decoded)"


def _compile_cpu(samples: dict[str, Any]) -> list[float] | None:
    """CPU seconds of cold starts beyond those of the median warm one."""
    cold, warm = samples.get("first_token/cold"), samples.get("first_token/warm")
    if not cold or not warm or any(x["cpu"] is None for x in [*cold, *warm]):
        return None
    usual = Spread.of([x["cpu"] for x in warm]).median
    return [x["cpu"] - usual for x in cold]


def accuracy_table(record: dict[str, Any]) -> Table:
    """Errors and agreement."""
    e, f = record["errors"], record["forced"]
    against, margin = e["naive_against_llama"], record["settings"]["margin"]
    worst = max(f["margins_where_different"], default=0.0)
    positions = f"{sum(e['positions'])} positions"
    return ["accuracy", "value"], [
        [f"RMS logit error of fucina against float32 ({positions})", f"{e['rms']['native']:.4f}"],
        [f"RMS logit error of llama.cpp against float32 ({positions})", f"{e['rms']['llama.cpp']:.4f}"],
        ["likeliest token equal to llama.cpp's, teacher-forced on its greedy text",
         f"{f['agree']} of {f['positions']} ({100 * f['agree'] / f['positions']:.1f} %)"],
        ["largest lead that llama.cpp's token had where they differ", f"{worst:.3f}"],
        [f"float32 reference equal to llama.cpp where its lead exceeds {margin:g}",
         f"{against['clear_agree']} of {against['clear']}"],
    ]  # fmt: skip


def tables(name: str, record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading or "", table) of everything in a record, whose name begins with its kind."""
    kind = name.split("/", maxsplit=1)[0]
    if kind == "start":
        return [("", start_table(record))]
    if kind == "accuracy":
        return [("", accuracy_table(record))]
    if kind == "busy":
        return [("", rate_table(record, ("decode", "prefill"), busy=True)), ("", busy_table(record))]
    found = [("", rate_table(record, ("decode", "prefill"))), ("", rate_table(record, ("streams",)))]
    return [t for t in [*found, *cost_tables(record)] if t[1][0]]


def markdown(table: Table) -> str:
    """A table in Markdown, numbers to the right."""
    header, body = table
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body])


def text(table: Table) -> str:
    """A table for a terminal."""
    header, body = table
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]

    def join(row: list[str]) -> str:
        return "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])

    return "\n".join([join(header), "  ".join("-" * w for w in widths), *map(join, body)])


def numbers(record: dict[str, Any], kinds: Sequence[str]) -> list[tuple[str, dict[str, tuple[float, float, float]]]]:
    """For a figure: (title, {label: (median, low, high)}) of each question of these kinds."""
    return [
        (title(x.key), {label: (r.median, r.low, r.high) for label, r in x.rates.items()})
        for x in lines(record)
        if question(x.key) in kinds
    ]


__all__ = ["markdown", "number", "numbers", "tables", "text"]
