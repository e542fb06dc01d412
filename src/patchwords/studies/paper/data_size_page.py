"""The page of `data-size`: Figure 4 drawn again, and Table 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.report.words import plural
from patchwords.studies.contents import Piece, Rows, Text
from patchwords.studies.paper.bands import over_seeds
from patchwords.studies.paper.data_size_numbers import LARGE, RESNET, name_of, parts_of
from patchwords.studies.paper.judging import FEWSHOT
from patchwords.studies.paper.paired import differences

# Table 5: accuracy on ImageNet, fine-tuned at 384 pixels, after each of three data sets.
TABLE_5 = {
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-L/32": (71.16, 80.99, 84.37),
}
DATA_SETS = ("ImageNet, 1.3 million", "ImageNet-21k, 14 million", "JFT, 303 million")


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """The paper's numbers for Figure 3, as it has no subsets of one data set."""
    rows = [(model, *(f"{value:.2f}" for value in row)) for model, row in TABLE_5.items()]
    for patch in (16, 32):
        small, large = TABLE_5[f"ViT-B/{patch}"], TABLE_5[f"ViT-L/{patch}"]
        gaps = (f"{b - a:+.2f}" for a, b in zip(small, large, strict=True))
        rows.append((f"L/{patch} less B/{patch}", *gaps))
    return [
        Text("Table 5: accuracy on ImageNet in per cent, fine-tuned, by what it was trained on."),
        Rows(("paper", *DATA_SETS), rows),
    ]


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 4 by test images and by few shots, and the gap that the claims are about."""
    from patchwords.report.curves import Panel, draw_panels

    values = {one["label"]: one["values"] for one in results["labels"]}
    names = [parts_of(name) for name in results["grid"]]
    models, sizes = list(dict(names)), sorted({images for _, images in names})
    panels = []
    for title, suffix in (("Accuracy", ""), ("5-shot linear accuracy", f", {FEWSHOT}")):
        if name_of(RESNET, sizes[0]) + suffix not in values:
            continue  # all is judged by few shots
        curves = [
            over_seeds(model, {float(n): values[name_of(model, n) + suffix] for n in sizes})
            for model in models
        ]
        panels.append(Panel(title, "training images", "%", curves, log_x=True, x_ticks=sizes))
    lead = {float(n): differences(values, name_of(RESNET, n), name_of(LARGE, n)) for n in sizes}
    gap = [over_seeds("ResNet less large ViT", lead)]
    panels.append(Panel("ResNet's lead", "training images", "points", gap, True, x_ticks=sizes))
    caption = (
        f"Mean over {plural(results['seeds'], 'seed')}, bands from the lowest to the highest. "
        "Figure 4 has 5-shot linear accuracy on ImageNet after 9 to 300 million images of JFT. "
        "The lead is that over the large ViT."
    )
    return draw_panels(panels, caption, "data-size")
