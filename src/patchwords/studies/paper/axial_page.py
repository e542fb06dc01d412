"""The page of axial attention: what each model costs, and Figure 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.report.words import pluralise
from patchwords.studies.contents import PageBlock, PageTable, PageText
from patchwords.studies.paper.axial_numbers import (
    AXIAL_LARGE_PATCHES,
    AXIAL_RESNET,
    AXIAL_SMALL_PATCHES,
    DEEPER_VIT,
    MODELS,
    RESNET,
    TIMED_BATCH,
    VIT_LARGE_PATCHES,
    VIT_SMALL_PATCHES,
    compute_macs_per_image,
    make_rate_label,
)
from patchwords.studies.paper.paired import compute_label_gaps, format_gap


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """What each model costs; and what axial attention brings beyond its compute."""
    first = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rows = []
    for name in MODELS:
        macs, count = compute_macs_per_image(first[name]), first[name].get("parameters")
        rows.append(
            (
                f"{name}: {format_trial_model(results, name)}",
                "-" if count is None else f"{count:,.0f}",
                "-" if macs is None else f"{macs / 1e6:,.1f}",
                "-"
                if macs is None
                else f"{macs * labels[make_rate_label(name)]['mean'] / 1e9:.1f}",
            )
        )
    return [
        PageText(
            "Speed is of frozen copies, asked one after the other in turn, "
            f"{TIMED_BATCH} images at a time, on {results['device']}, while other cells may be at work: "
            "compare models, not machines."
        ),
        PageTable(("model", "parameters", "million MACs an image", "billion MACs a second"), rows),
        *build_equal_compute_note(results),
    ]


def format_trial_model(results: Mapping[str, Any], name: str) -> str:
    own = results["grid"][name]
    depth = f", {own['depth']} blocks" if "depth" in own else ""
    return f"{own.get('model', own.get('recipe'))}{depth}"


def build_equal_compute_note(results: Mapping[str, Any]) -> list[PageBlock]:
    """Against the ViT of the same compute, which the figure lacks."""
    found = compute_label_gaps(results, [AXIAL_SMALL_PATCHES], DEEPER_VIT)
    if AXIAL_SMALL_PATCHES not in found:
        return []
    return [
        PageText(
            "An Axial-ViT has two layers for each block. How many points it is above a ViT with "
            "so many more blocks that both cost the same, which the figure lacks: "
            f"{format_gap(found[AXIAL_SMALL_PATCHES])}."
        )
    ]


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 13: left against compute, right against speed; a line for each family."""
    from patchwords.report.curves import Panel, draw_panels

    flops = {one["name"]: one.get("flops") for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rates = {name: (labels[make_rate_label(name)] or {}).get("mean") for name in MODELS}
    caption = (
        f"{results['quantity'].capitalize()}; mean over {pluralise(results['seeds'], 'seed')}, "
        "lines join large patches with small ones. Left: 6 x MACs x images, over that of ViT with "
        "small patches. "
        f"Right: frozen copies, {TIMED_BATCH} images at a time."
    )
    usual = flops[VIT_SMALL_PATCHES] or 1.0
    compute = {name: flops[name] and flops[name] / usual for name in MODELS}
    first, ticks = build_family_curves(labels, compute), (0.25, 0.5, 1, 2)
    panels = [
        Panel("Compute", "training compute", "accuracy, %", first, True, x_ticks=ticks),
        Panel("Speed", "images/s", "accuracy, %", build_family_curves(labels, rates), True),
    ]
    return draw_panels(panels, caption, "axial")


FAMILIES = {
    "ViT": (VIT_LARGE_PATCHES, VIT_SMALL_PATCHES),
    "Axial-ViT": (AXIAL_LARGE_PATCHES, AXIAL_SMALL_PATCHES),
    "ViT, deeper": (DEEPER_VIT,),
    "ResNet": (RESNET,),
    "AxialResNet": (AXIAL_RESNET,),
}


def build_family_curves(labels: Mapping[str, Any], places: Mapping[str, float | None]) -> list[Any]:
    """What diverged is not drawn."""
    from patchwords.report.curves import Curve

    found = []
    for family, names in FAMILIES.items():
        alive = [name for name in names if labels[name] is not None and places[name]]
        heights = [100 * labels[name]["mean"] for name in alive]
        found.append(Curve(family, [places[name] or 0.0 for name in alive], heights))
    return found
