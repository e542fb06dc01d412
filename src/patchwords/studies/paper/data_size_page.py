"""The page of `data-size`: Figure 4 drawn again, and Table 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.report.words import pluralise
from patchwords.studies.contents import PageBlock, PageTable, PageText
from patchwords.studies.paper.bands import build_seed_curve
from patchwords.studies.paper.data_size_numbers import (
    LARGE_VIT_NAME,
    RESNET_NAME,
    make_data_size_label,
    parse_data_size_label,
)
from patchwords.studies.paper.judging import FEWSHOT_LABEL
from patchwords.studies.paper.paired import compute_paired_differences

# Table 5: accuracy on ImageNet, fine-tuned at 384 pixels, after each of three data sets.
TABLE_5 = {
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-L/32": (71.16, 80.99, 84.37),
}
TABLE_5_DATA_SETS = ("ImageNet, 1.3 million", "ImageNet-21k, 14 million", "JFT, 303 million")


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """The paper's numbers for Figure 3, as it has no subsets of one data set."""
    rows = [(model, *(f"{value:.2f}" for value in row)) for model, row in TABLE_5.items()]
    for patch in (16, 32):
        small, large = TABLE_5[f"ViT-B/{patch}"], TABLE_5[f"ViT-L/{patch}"]
        gaps = (f"{b - a:+.2f}" for a, b in zip(small, large, strict=True))
        rows.append((f"L/{patch} less B/{patch}", *gaps))
    return [
        PageText(
            "Table 5: accuracy on ImageNet in per cent, fine-tuned, by what it was trained on."
        ),
        PageTable(("paper", *TABLE_5_DATA_SETS), rows),
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 4 by test images and by few shots, and the gap that the claims are about."""
    from patchwords.report.curves import Panel, draw_panels

    values = {one["label"]: one["values"] for one in results["labels"]}
    names = [parse_data_size_label(name) for name in results["grid"]]
    models, sizes = list(dict(names)), sorted({images for _, images in names})
    panels = []
    for title, suffix in (("Accuracy", ""), ("5-shot linear accuracy", f", {FEWSHOT_LABEL}")):
        if make_data_size_label(RESNET_NAME, sizes[0]) + suffix not in values:
            continue  # all is judged by few shots
        curves = [
            build_seed_curve(
                model, {float(n): values[make_data_size_label(model, n) + suffix] for n in sizes}
            )
            for model in models
        ]
        panels.append(Panel(title, "training images", "%", curves, log_x=True, x_ticks=sizes))
    lead = {
        float(n): compute_paired_differences(
            values, make_data_size_label(RESNET_NAME, n), make_data_size_label(LARGE_VIT_NAME, n)
        )
        for n in sizes
    }
    gap = [build_seed_curve("ResNet less large ViT", lead)]
    panels.append(Panel("ResNet's lead", "training images", "points", gap, True, x_ticks=sizes))
    caption = (
        f"Mean over {pluralise(results['seeds'], 'seed')}, bands from the lowest to the highest. "
        "Figure 4 has 5-shot linear accuracy on ImageNet after 9 to 300 million images of JFT. "
        "The lead is that over the large ViT."
    )
    return draw_panels(panels, caption, "data-size")
