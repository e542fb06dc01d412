"""The drawings of docs/models.md: `python docs/drawings/draw.py` writes the .svg files beside it.

A drawing is a list of shapes in pixels; nothing here but strings, so that a change shows in a diff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

INK, PALE, LINE = "#1f2933", "#ffffff", "#7b8794"
FILLS = {
    "image": "#fde8d7",
    "conv": "#fff3c4",
    "norm": "#e6e9ed",
    "mix": "#d3e8fb",
    "mlp": "#dcf2dc",
    "head": "#f3dcf0",
    "plain": "#ffffff",
}
FONT = "font-family='Helvetica, Arial, sans-serif'"

Drawing = list[str]


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "middle", bold: bool = False
) -> str:
    weight = " font-weight='600'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' fill='{INK}'{weight}>"
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, words: str, kind: str = "plain") -> str:
    """A rounded box; `words` may have several lines."""
    lines = words.split("\n")
    first = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
    shape = (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' "
        f"fill='{FILLS[kind]}' stroke='{LINE}'/>"
    )
    return shape + "".join(
        text(x + width / 2, first + 16 * i, line) for i, line in enumerate(lines)
    )


def path(points: Iterable[tuple[float, float]], arrow: bool = True) -> str:
    corners = " ".join(f"{x:g},{y:g}" for x, y in points)
    end = " marker-end='url(#tip)'" if arrow else ""
    return f"<polyline points='{corners}' fill='none' stroke='{INK}' stroke-width='1.3'{end}/>"


def plus(x: float, y: float) -> str:
    return (
        f"<circle cx='{x:g}' cy='{y:g}' r='9' fill='{PALE}' stroke='{INK}'/>"
        + path([(x - 5, y), (x + 5, y)], arrow=False)
        + path([(x, y - 5), (x, y + 5)], arrow=False)
    )


def frame(x: float, y: float, width: float, height: float, words: str) -> str:
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='8' fill='none' "
        f"stroke='{LINE}' stroke-dasharray='5 4'/>" + text(x + width - 8, y + 17, words, 12, "end")
    )


def cells(x: float, y: float, side: float, count: int, fill: Callable[[int, int], str]) -> Drawing:
    """A grid of count x count cells; `fill` gives the colour of (row, column)."""
    return [
        f"<rect x='{x + side * column:g}' y='{y + side * row:g}' width='{side:g}' "
        f"height='{side:g}' fill='{fill(row, column)}' stroke='{LINE}' stroke-width='0.7'/>"
        for row in range(count)
        for column in range(count)
    ]


def row_of(x: float, y: float, steps: list[tuple[float, str, str]], height: float = 46) -> Drawing:
    """Boxes from left to right with arrows between them: (width, words, kind)."""
    shapes: Drawing = []
    for place, (width, words, kind) in enumerate(steps):
        if place:
            shapes.append(path([(x - 22, y + height / 2), (x - 3, y + height / 2)]))
        shapes.append(box(x, y, width, height, words, kind))
        x += width + 24
    return shapes


def residual(x: float, y: float, mixer: str, kind: str, width: float = 110) -> Drawing:
    """Norm, a branch and the sum, from left to right; takes 2 * width + 84 pixels."""
    middle = y + 18
    end = x + 2 * width + 62
    return [
        path([(x - 8, middle), (x + 12, middle)]),
        box(x + 14, y, width - 30, 36, "LayerNorm", "norm"),
        path([(x + width - 16, middle), (x + width + 4, middle)]),
        box(x + width + 6, y, width + 14, 36, mixer, kind),
        path([(x + 2 * width + 20, middle), (end - 10, middle)]),
        path([(x - 2, middle), (x - 2, y - 16), (end, y - 16), (end, middle - 11)]),
        plus(end, middle),
    ]


def vit() -> tuple[int, int, Drawing]:
    shapes = [
        *row_of(
            16,
            40,
            [
                (92, "image\nH x W x C", "image"),
                (112, "patches P x P,\nN = HW / P²", "image"),
                (104, "E: linear\nto width D", "conv"),
                (136, "[class] before,\n+ positions (T x D)", "plain"),
                (84, "L blocks", "mix"),
                (84, "LayerNorm", "norm"),
                (96, "head: token,\ngap or map", "head"),
            ],
        ),
        frame(16, 122, 876, 108, "one block (Eqs. 2-3)"),
        text(36, 186, "T x D", 12),
        *residual(64, 166, "attention, or another mixer", "mix", 150),
        path([(435, 184), (464, 184)], arrow=False),
        *residual(470, 166, "MLP, hidden width M", "mlp", 140),
        path([(821, 184), (876, 184)]),
        text(858, 176, "T x D", 12),
    ]
    return 908, 246, shapes


def hybrid() -> tuple[int, int, Drawing]:
    shapes = row_of(
        16,
        34,
        [
            (78, "image\n224 x 224", "image"),
            (104, "root: 7x7 / 2,\npool / 2", "conv"),
            (72, "stage 1\n56 x 56", "conv"),
            (72, "stage 2\n28 x 28", "conv"),
            (72, "stage 3\n14 x 14", "conv"),
            (72, "stage 4\n7 x 7", "conv"),
            (110, "patches 1 x 1,\nE: linear to D", "conv"),
            (110, "[class], positions,\nL blocks, head", "mix"),
        ],
    )
    shapes += [
        text(
            16,
            20,
            "R50+ViT-B/32: units 3, 4, 6, 3; 49 tokens and the class token",
            13,
            "start",
            True,
        ),
        text(
            16,
            112,
            "R50+ViT-B/16: stage 4's units go into stage 3 (3, 4, 9), which has 14 x 14 places: "
            "196 tokens.",
            13,
            "start",
        ),
        text(
            16,
            132,
            "R+ViT-Ti/16: the root alone (56 x 56), and patches of 8 x 8 places: 49 tokens, "
            "despite its name.",
            13,
            "start",
        ),
    ]
    return 898, 146, shapes


def column(x: float, y: float, steps: list[tuple[str, str]], width: float = 150) -> Drawing:
    """Boxes from top to bottom with arrows between them."""
    shapes: Drawing = []
    for words, kind in steps:
        shapes += [
            path([(x + width / 2, y - 12), (x + width / 2, y - 2)]),
            box(x, y, width, 26, words, kind),
        ]
        y += 38
    return shapes


def resnet() -> tuple[int, int, Drawing]:
    post = [
        ("conv 1x1", "conv"),
        ("GroupNorm, ReLU", "norm"),
        ("conv 3x3, stride", "conv"),
        ("GroupNorm, ReLU", "norm"),
        ("conv 1x1, 4x channels", "conv"),
        ("GroupNorm, scale 0 at first", "norm"),
    ]
    pre = [
        ("GroupNorm, ReLU", "norm"),
        ("conv 1x1", "conv"),
        ("GroupNorm, ReLU", "norm"),
        ("conv 3x3, stride", "conv"),
        ("GroupNorm, ReLU", "norm"),
        ("conv 1x1, 4x channels", "conv"),
    ]
    shapes = [
        text(150, 22, "form post: the official hybrids", 14, "middle", True),
        *column(46, 62, post, 190),
        path([(141, 36), (141, 60)], arrow=False),
        path([(141, 42), (316, 42), (316, 106)]),
        box(256, 108, 120, 44, "conv 1x1, stride,\nGroupNorm", "conv"),
        path([(316, 152), (316, 300), (152, 300)]),
        text(322, 176, "where the shape", 11, "start"),
        text(322, 190, "changes, else as it is", 11, "start"),
        path([(141, 278), (141, 290)]),
        plus(141, 300),
        path([(141, 309), (141, 320)]),
        box(96, 322, 90, 26, "ReLU", "norm"),
        text(590, 22, "form pre: the BiT checkpoints", 14, "middle", True),
        *column(486, 62, pre, 190),
        path([(581, 36), (581, 60)], arrow=False),
        path([(581, 42), (800, 42), (800, 300), (592, 300)]),
        path([(676, 75), (735, 75), (735, 136)]),
        box(690, 138, 90, 44, "conv 1x1,\nstride", "conv"),
        path([(735, 182), (735, 300)], arrow=False),
        text(808, 150, "as it is,", 11, "start"),
        text(808, 164, "where the", 11, "start"),
        text(808, 178, "shape stays,", 11, "start"),
        text(808, 192, "else the conv", 11, "start"),
        path([(581, 278), (581, 290)]),
        plus(581, 300),
        path([(581, 309), (581, 330)]),
        text(141, 372, "head: mean over the grid, linear", 12),
        text(581, 372, "head: GroupNorm, ReLU, mean over the grid, linear", 12),
    ]
    return 890, 386, shapes


def axial() -> tuple[int, int, Drawing]:
    here, seen, none = "#f08c2e", "#9ccbf3", PALE

    def rows(row: int, column: int) -> str:
        return here if (row, column) == (2, 4) else seen if row == 2 else none

    def columns(row: int, column: int) -> str:
        return here if (row, column) == (2, 4) else seen if column == 4 else none

    shapes = [
        frame(10, 14, 870, 108, "a pair of blocks takes the place of each block of ViT"),
        *row_of(
            30,
            56,
            [
                (176, "LayerNorm, row\nattention, + input", "mix"),
                (176, "LayerNorm, MLP,\n+ input", "mlp"),
                (176, "LayerNorm, column\nattention, + input", "mix"),
                (176, "LayerNorm, MLP,\n+ input", "mlp"),
            ],
        ),
        *cells(62, 140, 16, 7, rows),
        *cells(500, 140, 16, 7, columns),
        text(192, 200, "the orange patch sees the blue ones", 12, "start"),
        text(632, 200, "its row first, its column next:", 12, "start"),
        text(632, 216, "after both, all patches", 12, "start"),
    ]
    return 890, 268, shapes


def mixers() -> tuple[int, int, Drawing]:
    here, seen, none, fixed = "#f08c2e", "#9ccbf3", PALE, "#bfe3bf"
    at = (3, 2)

    def near(row: int, column: int, reach: int) -> bool:
        return abs(row - at[0]) <= reach and abs(column - at[1]) <= reach

    kinds: list[tuple[str, str, Callable[[int, int], str]]] = [
        ("attention", "all, weighted by content", lambda r, c: seen),
        ("axial", "its row, then its column", lambda r, c: seen if r == at[0] else none),
        ("local", "a window, by content", lambda r, c: seen if near(r, c, 2) else none),
        ("pooling", "the mean of 3 x 3", lambda r, c: fixed if near(r, c, 1) else none),
        ("mlp", "all, by learned weights", lambda r, c: fixed),
        ("identity", "itself alone", lambda r, c: none),
    ]
    shapes: Drawing = []
    for place, (name, words, fill) in enumerate(kinds):
        x = 16 + 146 * place

        def shade(row: int, column: int, fill: Callable[[int, int], str] = fill) -> str:
            return here if (row, column) == at else fill(row, column)

        shapes += [
            text(x + 56, 24, name, 14, "middle", True),
            *cells(x, 36, 16, 7, shade),
            text(x + 56, 168, words, 11),
        ]
    return 884, 182, shapes


DRAWINGS = {"vit": vit, "hybrid": hybrid, "resnet": resnet, "axial": axial, "mixers": mixers}


def svg(name: str) -> str:
    """The drawing as a file's text."""
    width, height, shapes = DRAWINGS[name]()
    tip = (
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        f"markerHeight='7' orient='auto'><path d='M0 0L8 4L0 8z' fill='{INK}'/></marker></defs>"
    )
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' {FONT}>"
    )
    back = f"<rect width='{width}' height='{height}' fill='{PALE}'/>"
    return "\n".join([head, tip, back, *shapes, "</svg>", ""])


if __name__ == "__main__":
    for name in DRAWINGS:
        Path(__file__).with_name(f"{name}.svg").write_text(svg(name))
