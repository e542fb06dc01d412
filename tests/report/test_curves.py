"""Figures of evaluators: every line is there, bands where they are known, the same bytes again."""

from __future__ import annotations

from patchwords.report.figures.plots import LINE_STYLES, Curve, Panel, draw_panels


def panel(title: str, curves: int) -> Panel:
    x, y = [1, 5, 25], [0.1, 0.4, 0.6]
    lines = [Curve(f"$model {i}", x, y, low=y if i else None, high=y) for i in range(curves)]
    return Panel(title, "shots", "accuracy", lines, log_x=True, x_ticks=x)


def test_a_figure_has_every_panel_and_line_and_its_caption() -> None:
    figure = draw_panels([panel(f"panel {i}", 2) for i in range(5)], "What $is shown.", "few")
    assert sorted(figure) == ["few.png", "few.svg"]
    assert figure["few.png"].startswith(b"\x89PNG")
    drawn = figure["few.svg"].decode()
    for text in ("panel 0", "panel 4", "$model 0", "$model 1", "What $is shown.", "25"):
        assert f"<!-- {text} -->" in drawn
    assert drawn.count("PolyCollection") == 5  # the band of the second line, in each panel


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert draw_panels([panel("a", 2)], "b") == draw_panels([panel("a", 2)], "b")


def test_more_lines_than_looks_are_drawn() -> None:
    drawn = draw_panels([panel("a", len(LINE_STYLES) + 2)], "b")["curves.svg"].decode()
    assert f"<!-- $model {len(LINE_STYLES) + 1} -->" in drawn
