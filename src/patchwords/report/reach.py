"""How far each head looks, as inline SVG: a dot for every head, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from patchwords.report.charts import ChartFrame, choose_ticks, svg_drawing, svg_text
from patchwords.report.html import Markup, tag

MAX_NUMBERED_LAYERS = 12  # layers with a number below


def head_distance_chart(found: dict[str, Any]) -> Markup:
    """`found` has pixels and standard_error, [layers][heads], and uniform"""
    pixels, errors, alike = found["pixels"], found["standard_error"], float(found["uniform"])
    layers, top = len(pixels), max(*map(max, pixels), alike) * 1.1 or 1.0
    frame = ChartFrame((-0.5, layers - 0.5), (0.0, top), width=520, height=250, top=14)
    end = frame.width - frame.right
    parts = []
    for value in choose_ticks(*frame.y):
        y = frame.down(value)
        parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="grid"))
        parts.append(svg_text(frame.left - 8, y + 4, f"{value:g}", class_="end"))
    floor = frame.height - frame.bottom
    for layer in range(0, layers, -(-layers // MAX_NUMBERED_LAYERS)):
        parts.append(svg_text(frame.across(layer), floor + 18, layer, class_="middle"))
    parts.append(svg_text(end, frame.height - 5, "layer; pixels upwards", class_="end"))
    y = frame.down(alike)
    parts.append(tag("line", x1=frame.left, x2=end, y1=y, y2=y, class_="diagonal"))
    for layer, (row, spread) in enumerate(zip(pixels, errors, strict=True)):
        aside = np.linspace(-0.3, 0.3, len(row)) if len(row) > 1 else [0.0]
        for head, (x, value, error) in enumerate(zip(aside, row, spread, strict=True)):
            words = f"layer {layer}, head {head}: {value:.3g} pixels, standard error {error:.2g}"
            dot = tag(
                "circle",
                tag("title", words),
                cx=frame.across(layer + float(x)),
                cy=frame.down(value),
                r=4,
                class_="dot first",
            )
            parts.append(dot)
    ends = f"{min(pixels[0]):.3g} to {max(pixels[0]):.3g} in the first layer"
    alt = f"Attention distance of every head, {ends}, everywhere alike {alike:.3g} pixels"
    return svg_drawing(frame.width, frame.height, alt, *parts)
