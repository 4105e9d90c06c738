"""One layer of a transformer as a flow of boxes, with shapes."""

from __future__ import annotations

from course.figures.svg import BLUE, GREEN, ORANGE, PURPLE, Drawing, Figure

WIDTH, ROW, BOX, TALL = 860, 210, 112, 44


def transformer_layer(
    dim: int, heads: int, kv_heads: int, head_dim: int, ffn_dim: int, title: str = "One layer"
) -> Figure:
    """The two halves of a pre-norm layer: attention and feed-forward, each added to what was there.

    Parameters
    ----------
    dim, heads, kv_heads, head_dim, ffn_dim : int
        Sizes of the model; the shapes below the boxes are made of them.
    title : str
    """
    drawing = Drawing(WIDTH, 2 * ROW + 16)
    drawing.text(10, 21, title, 14, "start", bold=True)
    row, wide, narrow, ffn = (
        f"[m, {dim}]",
        f"[m, {heads} x {head_dim}]",
        f"[m, {kv_heads} x {head_dim}]",
        f"[m, {ffn_dim}]",
    )
    top = 142.0
    end = _half(
        drawing,
        top,
        "x",
        row,
        [("q: product, rope", wide, BLUE), ("k: product, rope", narrow, PURPLE), ("v: product", narrow, PURPLE)],
        ("attention", wide),
        "k and v go into the cache",
    )
    _half(drawing, top + ROW, "x", row, [("gate: product", ffn, BLUE), ("up: product", ffn, BLUE)], ("swiglu", ffn), "")
    low = top + ROW / 2 + 8
    turns = [(end, top), (end + 26, top), (end + 26, low), (20.0, low), (20.0, top + ROW), (26.0, top + ROW)]
    drawing.path(turns, "var(--ink)", 1.5)
    return Figure(
        drawing,
        title,
        f"{title}, in two halves. First: x {row} is normed; products give q {wide}, k and v "
        f"{narrow}; q and k are turned by position, k and v go into the cache; attention gives {wide}, a "
        f"product brings that back to {row}, and it is added to x. Second: x is normed; products give gate and "
        f"up {ffn}; swiglu of both, a product back to {row}, and it is added to x.",
    )


def _box(drawing: Drawing, x: float, y: float, words: str, shape: str, colour: str, width: float = BOX) -> None:
    drawing.rect(x, y - TALL / 2, width, TALL, colour, colour, 0.18)
    drawing.text(x + width / 2, y - 2, words, 12)
    drawing.text(x + width / 2, y + 14, shape, 10, fill="var(--soft)", mono=True)


def _half(
    drawing: Drawing,
    y: float,
    name: str,
    row: str,
    products: list[tuple[str, str, str]],
    middle: tuple[str, str],
    remark: str,
) -> float:
    """norm -> products -> middle -> product -> +, with the residual line above; returns where the + ends."""
    drawing.text(34, y + 5, name, 14, bold=True)
    drawing.arrow(46, y, 78, y)
    _box(drawing, 80, y, "rms norm", row, ORANGE, 92)
    gap = 52 if len(products) == 3 else 60
    for i, (words, shape, colour) in enumerate(products):
        at = y + gap * (i - (len(products) - 1) / 2)
        drawing.arrow(172, y, 212, at)
        _box(drawing, 214, at, words, shape, colour, 136)
        drawing.arrow(350, at, 394, y)
    if remark:
        drawing.text(282, y + gap + 42, remark, 11, fill="var(--soft)")
    _box(drawing, 396, y, *middle, GREEN)
    drawing.arrow(508, y, 546, y)
    _box(drawing, 548, y, "product", row, BLUE)
    drawing.arrow(660, y, 708, y)
    drawing.rect(710, y - 15, 30, 30, ORANGE, ORANGE, 0.3, radius=15)
    drawing.text(725, y + 6, "+", 18)
    roof = y - 92 if len(products) == 3 else y - 66
    drawing.line(62, y, 62, roof, "var(--ink)", 1.5)
    drawing.line(62, roof, 725, roof, "var(--ink)", 1.5)
    drawing.arrow(725, roof, 725, y - 17)
    drawing.text(548, roof - 5, "x as it was: the residual connection", 11, fill="var(--soft)")
    return 740.0
