"""The map of the course: chapters by part, the present one marked."""

from __future__ import annotations

from course.figures.svg import BLUE, ORANGE, Drawing, Figure

PARTS = (
    ("0 Start", ("00 Welcome",)),
    ("I The machine", ("01 Files and blocks", "02 Tokens", "03 A transformer step", "04 Sampling")),
    (
        "II Inference tricks",
        (
            "05 Rewindable cache",
            "06 Many streams",
            "07 Speculative decoding",
            "08 Sources of drafts",
            "09 The gate",
            "10 A draft model",
            "11 Constrained decoding",
            "12 KV reuse",
            "13 Experts from disk",
            "14 The GPU seam",
            "15 Serving",
        ),
    ),
    ("III Memory, learning", ("16 Cartridges", "17 Engram", "18 Fine-tuning", "19 Low-bit frontier")),
)
WIDTH, ROW, MOST = 172, 34, 6


def course_map(here: str = "00") -> Figure:
    """Chapters by part; the chapter whose number is `here` is marked."""
    columns = [
        (name if i == 0 else "", chapters[i : i + MOST])
        for name, chapters in PARTS
        for i in range(0, len(chapters), MOST)
    ]
    drawing = Drawing(len(columns) * WIDTH + 14, 44 + ROW * MOST)
    for c, (name, chapters) in enumerate(columns):
        x = 10 + c * WIDTH
        drawing.text(x, 22, name, 13, "start", bold=True)
        for r, chapter in enumerate(chapters):
            marked = chapter.startswith(here)
            drawing.rect(
                x, 34 + ROW * r, WIDTH - 10, 27, ORANGE if marked else BLUE, "var(--line)", 0.4 if marked else 0.1
            )
            drawing.text(x + 8, 52 + ROW * r, chapter, 12, "start", bold=marked)
    said = "; ".join(f"part {name}: {', '.join(chapters)}" for name, chapters in PARTS)
    return Figure(drawing, "Map of the course", f"Map of the course. {said}. You are in chapter {here}.")
