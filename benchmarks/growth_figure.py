"""The curves of growth.py: a row of panels for each kind of size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchwords.report.figures.plots import Curve, Panel, draw_panels

CAPTION = (
    "Time and memory of ViT-Ti/16 as one size grows. Counted: what the number "
    "of multiplications predicts, put through the first point. A straight line of slope p on these "
    "axes is growth by the power p."
)
TITLES = {"forward": "Forward pass", "step": "Training step"}
MIB = 2**20


def draw(rows: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """-> {"growth.png": ..., "growth.svg": ...}"""
    panels = []
    for grows in dict.fromkeys(row["grows"] for row in rows):
        passes = {
            what: [row for row in rows if (row["grows"], row["pass"]) == (grows, what)]
            for what in ("forward", "step")
        }
        panels += [time_panel(grows, what, of_one) for what, of_one in passes.items()]
        panels.append(memory_panel(grows, passes))
    return draw_panels(panels, CAPTION, "growth")


def time_panel(grows: str, what: str, rows: list[dict[str, Any]]) -> Panel:
    sizes = [row["size"] for row in rows]
    scale = rows[0]["seconds"] / rows[0]["macs"]
    curves = [
        Curve("measured", sizes, [1000 * row["seconds"] for row in rows]),
        Curve("counted", sizes, [1000 * scale * row["macs"] for row in rows]),
    ]
    title = f"{TITLES[what]}, over {grows}"
    return Panel(title, grows, "milliseconds", curves, log_x=True, log_y=True, x_ticks=sizes)


def memory_panel(grows: str, passes: dict[str, list[dict[str, Any]]]) -> Panel:
    curves = [
        Curve(TITLES[what], [row["size"] for row in rows], [row["bytes"] / MIB for row in rows])
        for what, rows in passes.items()
    ]
    sizes = curves[0].x
    title = f"Memory, over {grows}"
    return Panel(title, grows, "MiB", curves, log_x=True, log_y=True, x_ticks=sizes)
