"""A drawing: SVG elements, the words that stand for it, and the colours that every figure uses."""

from __future__ import annotations

import html
import unicodedata
import zlib
from pathlib import Path
from typing import Any

# After Okabe and Ito, apart for every kind of colour vision; the blue a little lighter, to be seen on black as well.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#1f86c7", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
SANS = "system-ui,-apple-system,Segoe UI,sans-serif"
LEAST = 0.8  # in a narrow window a figure becomes smaller, down to this part of its size, and then scrolls: words stay readable
TITLE_CHARACTER = 8.6  # pixels of a letter of a title: bold, size 14

# In a page of JupyterLab the variables follow its theme; in a file of its own the browser's preference decides.
STYLE = (
    ".{id}{{--ink:var(--jp-ui-font-color1,#222);--soft:var(--jp-ui-font-color2,#666);"
    "--line:var(--jp-border-color1,#bbb);--paper:var(--jp-layout-color1,#fff)}}"
    "@media(prefers-color-scheme:dark){{.{id}{{--ink:var(--jp-ui-font-color1,#e6e6e6);"
    "--soft:var(--jp-ui-font-color2,#aaa);--line:var(--jp-border-color1,#666);"
    "--paper:var(--jp-layout-color1,#1b1b1b)}}}}"
)


class Drawing:
    """Collects SVG elements; x to the right, y downwards, one unit a pixel at natural size."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str = "none",
        stroke: str = "var(--line)",
        opacity: float = 1.0,
        dash: str = "",
        radius: float = 3,
    ) -> None:
        """A rectangle."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill}" '
            f'fill-opacity="{opacity:g}" stroke="{stroke}"{dashes}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 13,
        anchor: str = "middle",
        fill: str = "var(--ink)",
        mono: bool = False,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Words; `anchor` is start, middle or end.  A halo keeps lines that lie below from crossing the letters."""
        weight = ' font-weight="bold"' if bold else ""
        if halo:
            weight += ' stroke="var(--paper)" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" '
            f'font-family="{MONO if mono else SANS}"{weight} xml:space="preserve">'
            f"{html.escape(words)}</text>"
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--line)", width: float = 1, dash: str = ""
    ) -> None:
        """A straight line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def path(self, points: list[tuple[float, float]], stroke: str, width: float = 2, dash: str = "") -> None:
        """A line through points."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        data = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path d="{data}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashes}/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--ink)") -> None:
        """A line with a head at its end."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        self.line(x1, y1, x2 - 6 * ux, y2 - 6 * uy, stroke, 1.5)
        corners = [(x2, y2), (x2 - 8 * ux - 4 * uy, y2 - 8 * uy + 4 * ux), (x2 - 8 * ux + 4 * uy, y2 - 8 * uy - 4 * ux)]
        data = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self.parts.append(f'<polygon points="{data}" fill="{stroke}"/>')


class Figure:
    """A finished figure.

    Attributes
    ----------
    svg : str
        The picture, a self-contained SVG with a title and a description inside.
    alt : str
        What it shows, in words; also the plain-text form.
    """

    def __init__(self, drawing: Drawing, title: str, alt: str) -> None:
        self.alt = alt
        body = "".join(drawing.parts)
        width = round(max(drawing.width, 20 + TITLE_CHARACTER * columns(title)))  # a title is never cut
        name = f"fucina-{zlib.crc32((title + body).encode('utf-8')):08x}"  # the same picture, the same name
        self.svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" role="img" aria-label="{html.escape(alt)}" '
            f'viewBox="0 0 {width} {drawing.height:.0f}" width="{width}" '
            f'height="{drawing.height:.0f}" style="max-width:100%;min-width:{LEAST * width:.0f}px;height:auto">'
            f"<title>{html.escape(title)}</title><desc>{html.escape(alt)}</desc><style>{STYLE.format(id=name)}</style>"
            f'<rect width="100%" height="100%" rx="6" fill="var(--paper)"/>{body}</svg>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/html": f'<div style="margin:8px 0;overflow-x:auto">{self.svg}</div>',
            "image/svg+xml": self.svg,
            "text/plain": self.alt,
        }

    def __repr__(self) -> str:
        return self.alt

    def save(self, path: str | Path) -> None:
        """Write the SVG."""
        from course.files import write_text  # here: drawing needs no files

        write_text(Path(path).absolute(), self.svg + "\n")


def printable(token: str | bytes) -> str:
    """A token's text in one visible line: spaces and line ends as signs, bytes that are no text as escapes."""
    text = token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token
    text = text.replace("\n", "\u21b5").replace("\t", "\u21e5").replace(" ", "\u00b7")
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\u{ord(c):04x}" for c in text) or "\u2205"


def columns(text: str) -> int:
    """Width of a text in the columns of a fixed font: wide characters count twice, combining ones not at all."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def percent(value: float) -> str:
    """A probability as a short percentage."""
    return "<0.1%" if 0 < value < 0.001 else f"{100 * value:.1f}%" if value < 0.1 else f"{100 * value:.0f}%"
