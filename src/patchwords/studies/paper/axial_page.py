"""The page of axial attention: what each model costs, and Figure 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.report.words import plural
from patchwords.studies.contents import Piece, Rows, Text
from patchwords.studies.paper.axial_numbers import (
    AXIAL_FEW,
    AXIAL_MANY,
    AXIAL_RESNET,
    DEEP,
    IMAGES,
    MODELS,
    RESNET,
    VIT_FEW,
    VIT_MANY,
    macs_of,
    rate_of,
)
from patchwords.studies.paper.paired import gaps, told


def tables(results: Mapping[str, Any]) -> list[Piece]:
    """What each model costs; and what axial attention brings beyond its compute."""
    first = {one["name"]: one for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rows = []
    for name in MODELS:
        macs, count = macs_of(first[name]), first[name].get("parameters")
        rows.append(
            (
                f"{name}: {model_of(results, name)}",
                "-" if count is None else f"{count:,.0f}",
                "-" if macs is None else f"{macs / 1e6:,.1f}",
                "-" if macs is None else f"{macs * labels[rate_of(name)]['mean'] / 1e9:.1f}",
            )
        )
    return [
        Text(
            "Speed is of frozen copies, asked one after the other in turn, "
            f"{IMAGES} images at a time, on {results['device']}, while other cells may be at work: "
            "compare models, not machines."
        ),
        Rows(("model", "parameters", "million MACs an image", "billion MACs a second"), rows),
        *beyond(results),
    ]


def model_of(results: Mapping[str, Any], name: str) -> str:
    own = results["grid"][name]
    depth = f", {own['depth']} blocks" if "depth" in own else ""
    return f"{own.get('model', own.get('recipe'))}{depth}"


def beyond(results: Mapping[str, Any]) -> list[Piece]:
    """Against the ViT of the same compute, which the figure lacks."""
    found = gaps(results, [AXIAL_MANY], DEEP)
    if AXIAL_MANY not in found:
        return []
    return [
        Text(
            "An Axial-ViT has two layers for each block. How many points it is above a ViT with "
            "so many more blocks that both cost the same, which the figure lacks: "
            f"{told(found[AXIAL_MANY])}."
        )
    ]


def draw(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Figure 13: left against compute, right against speed; a line for each family."""
    from patchwords.report.curves import Panel, draw_panels

    flops = {one["name"]: one.get("flops") for one in results["cells"] if one["seed"] == 0}
    labels = {one["label"]: one["over_seeds"] for one in results["labels"]}
    rates = {name: (labels[rate_of(name)] or {}).get("mean") for name in MODELS}
    caption = (
        f"{results['quantity'].capitalize()}; mean over {plural(results['seeds'], 'seed')}, "
        "lines join large patches with small ones. Left: 6 x MACs x images, over that of ViT with "
        "small patches. "
        f"Right: frozen copies, {IMAGES} images at a time."
    )
    usual = flops[VIT_MANY] or 1.0
    compute = {name: flops[name] and flops[name] / usual for name in MODELS}
    first, ticks = lines(labels, compute), (0.25, 0.5, 1, 2)
    panels = [
        Panel("Compute", "training compute", "accuracy, %", first, True, x_ticks=ticks),
        Panel("Speed", "images/s", "accuracy, %", lines(labels, rates), True),
    ]
    return draw_panels(panels, caption, "axial")


FAMILIES = {
    "ViT": (VIT_FEW, VIT_MANY),
    "Axial-ViT": (AXIAL_FEW, AXIAL_MANY),
    "ViT, deeper": (DEEP,),
    "ResNet": (RESNET,),
    "AxialResNet": (AXIAL_RESNET,),
}


def lines(labels: Mapping[str, Any], places: Mapping[str, float | None]) -> list[Any]:
    """What diverged is not drawn."""
    from patchwords.report.curves import Curve

    found = []
    for family, names in FAMILIES.items():
        alive = [name for name in names if labels[name] is not None and places[name]]
        heights = [100 * labels[name]["mean"] for name in alive]
        found.append(Curve(family, [places[name] or 0.0 for name in alive], heights))
    return found
