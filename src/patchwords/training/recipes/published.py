"""Published accuracies of recipes: what their sources reached, and by which protocol.

docs/reference.md has the tables that these rows are from, and more. A row stands here only where
its source names the recipe's own model, data and length; where it is silent there is no row.
"""

from __future__ import annotations

from dataclasses import dataclass

from patchwords.planning.table6 import TABLE6
from patchwords.training.recipes.pretrain import TABLE_3_RECIPES

TUNED_384 = "fine-tuned at 384 pixels"


@dataclass(frozen=True)
class PublishedResult:
    """An accuracy that a source reports for a recipe."""

    model: str  # canonical name
    accuracy: float  # percent, as printed
    on: str  # data set and split or measure
    protocol: str  # what was done: weights, resolution, seeds
    source: str

    def __str__(self) -> str:
        return f"{self.accuracy:g} % on {self.on}, {self.model}, {self.protocol} ({self.source})"


def _list_table_6() -> dict[str, tuple[PublishedResult, ...]]:
    """List the ImageNet column of Table 6: pre-trained on JFT-300M, then fine-tuned."""
    accuracies = {(row.model, row.epochs): row.accuracies[0] for row in TABLE6}
    return {
        row.name: (
            PublishedResult(
                row.model,
                accuracies[row.model, int(row.length[1])],
                "ImageNet",
                TUNED_384,
                "the ViT paper, Table 6",
            ),
        )
        for row in TABLE_3_RECIPES
        if row.model is not None and row.data.name == "JFT-300M"
    }


def _list_table_5() -> dict[str, tuple[PublishedResult, ...]]:
    """List the ImageNet rows of Table 5 whose recipe is certain.

    ViT-L has two lengths on ImageNet-21k, and the table does not say which it had.
    """
    rows = (
        ("vit-b16-imagenet21k", "ViT-B/16", 83.97),
        ("vit-b32-imagenet21k", "ViT-B/32", 81.28),
        ("vit-b16-imagenet", "ViT-B/16", 77.91),
        ("vit-b32-imagenet", "ViT-B/32", 73.38),
        ("vit-l16-imagenet", "ViT-L/16", 76.53),
        ("vit-l32-imagenet", "ViT-L/32", 71.16),
    )
    return {
        name: (PublishedResult(model, accuracy, "ImageNet", TUNED_384, "the ViT paper, Table 5"),)
        for name, model, accuracy in rows
    }


def _list_augreg() -> dict[str, tuple[PublishedResult, ...]]:
    """List AugReg's recommended models: 300 epochs of ImageNet-21k, fine-tuned at 224 and 384."""
    rows = (
        ("augreg-strong1", "ViT-L/16", 83.98, 85.59),
        ("augreg-medium1", "ViT-B/16", 83.96, 85.49),
        ("augreg-light1-wd0.03", "ViT-S/16", 80.46, 83.73),
        ("augreg-medium1-reg", "R50+ViT-L/32", 82.74, 85.99),
        ("augreg-light1", "R26+ViT-S/32", 80.81, 83.85),
        ("augreg-none-wd0.03", "ViT-Ti/16", 73.75, 78.22),
        ("augreg-light1", "ViT-B/32", 79.13, 83.59),
        ("augreg-none", "ViT-S/32", 73.47, 79.58),
        ("augreg-none-wd0.03", "R+ViT-Ti/16", 69.69, 75.40),
    )
    results: dict[str, tuple[PublishedResult, ...]] = {}
    for name, model, *accuracies in rows:
        both = tuple(
            PublishedResult(
                model, accuracy, "ImageNet", f"fine-tuned at {size} pixels", "AugReg, Table 3"
            )
            for size, accuracy in zip((224, 384), accuracies, strict=True)
        )
        results[name] = results.get(name, ()) + both
    return results


def _list_better_plain() -> dict[str, tuple[PublishedResult, ...]]:
    source = "arXiv 2205.01580"
    return {
        f"better-plain-vit-s16-{epochs}ep": (
            PublishedResult("ViT-S/16", accuracy, "ImageNet", "at 224 pixels", source),
        )
        for epochs, accuracy in ((90, 76.5), (150, 78.5), (300, 80.0))
    }


def _list_paper_finetuning() -> dict[str, tuple[PublishedResult, ...]]:
    """List Table 5 (weights of ImageNet-21k) and Table 2 for the rows of Table 4."""
    columns = {
        "cifar10": ("CIFAR-10", {"ViT-B/16": 98.95, "ViT-B/32": 98.79, "ViT-L/16": 99.16}),
        "cifar100": ("CIFAR-100", {"ViT-B/16": 91.67, "ViT-B/32": 91.97, "ViT-L/16": 93.44}),
        "imagenet": ("ImageNet", {"ViT-B/16": 83.97, "ViT-B/32": 81.28, "ViT-L/16": 85.15}),
        "flowers102": ("Flowers-102", {"ViT-B/16": 99.38, "ViT-B/32": 99.11, "ViT-L/16": 99.61}),
        "pets": ("Oxford-IIIT Pets", {"ViT-B/16": 94.43, "ViT-B/32": 93.02, "ViT-L/16": 94.73}),
    }
    weights = "from ImageNet-21k, at 384 pixels"
    results = {
        f"paper-finetune-{name}": tuple(
            PublishedResult(model, accuracy, on, weights, "the ViT paper, Table 5")
            for model, accuracy in models.items()
        )
        for name, (on, models) in columns.items()
    }
    table_2 = (
        ("imagenet-512", "ViT-L/16", 87.76, "ImageNet", "from JFT-300M, 512 pixels, 3 runs"),
        ("imagenet-512", "ViT-L/16", 85.30, "ImageNet", "from ImageNet-21k, 512 pixels, 3 runs"),
        ("imagenet-518", "ViT-H/14", 88.55, "ImageNet", "from JFT-300M, 518 pixels, 3 runs"),
        ("vtab", "ViT-H/14", 77.63, "VTAB-1k, mean of 19", "from JFT-300M, 3 runs"),
        ("vtab", "ViT-L/16", 76.28, "VTAB-1k, mean of 19", "from JFT-300M, 3 runs"),
        ("vtab", "ViT-L/16", 72.72, "VTAB-1k, mean of 19", "from ImageNet-21k, 3 runs"),
    )
    for name, model, accuracy, on, protocol in table_2:
        result = PublishedResult(model, accuracy, on, protocol, "the ViT paper, Table 2")
        key = f"paper-finetune-{name}"
        results[key] = (*results.get(key, ()), result)
    return results


def _list_code_finetuning() -> dict[str, tuple[PublishedResult, ...]]:
    """List what the READMEs and configs of the authors' code report."""
    readme, config = "README of vision_transformer", "big_vision configs/transfer.py"
    official = "from ImageNet-21k, at 384 pixels, no dropout"
    vit_jax = {
        "imagenet": ("ImageNet", {"ViT-B/16": 84.53, "ViT-B/32": 81.66, "ViT-L/16": 84.47}),
        "cifar100": ("CIFAR-100", {"ViT-B/16": 92.06, "ViT-B/32": 92.31, "ViT-L/16": 92.91}),
        "cifar10": ("CIFAR-10", {"ViT-B/32": 98.88, "ViT-L/16": 99.13}),
        "cifar10-b16": ("CIFAR-10", {"ViT-B/16": 99.02}),
    }
    big_vision = {
        "imagenet": ("ImageNet", 83.27),
        "cifar100": ("CIFAR-100", 91.35),
        "cifar10": ("CIFAR-10", 98.55),
        "pets": ("Oxford-IIIT Pets", 93.78),
        "flowers102": ("Flowers-102", 99.43),
    }
    augreg = "from AugReg's ImageNet-21k, at 384 pixels, mean of 5 runs"
    return {
        **{
            f"vit-jax-finetune-{name}": tuple(
                PublishedResult(model, accuracy, on, official, readme)
                for model, accuracy in models.items()
            )
            for name, (on, models) in vit_jax.items()
        },
        **{
            f"big-vision-finetune-{name}": (
                PublishedResult("ViT-B/32", accuracy, on, augreg, config),
            )
            for name, (on, accuracy) in big_vision.items()
        },
        "bit-finetune-cifar10": _list_bit("CIFAR-10", 97.4, 98.6),
        "bit-finetune-cifar100": _list_bit("CIFAR-100", 86.6, 91.2),
    }


def _list_bit(on: str, r50x1: float, r101x3: float) -> tuple[PublishedResult, ...]:
    models = (("BiT-R50x1", r50x1), ("BiT-R101x3", r101x3))
    return tuple(
        PublishedResult(
            model, accuracy, on, "from ImageNet-21k, median of runs", "README of big_transfer"
        )
        for model, accuracy in models
    )


PUBLISHED_RESULTS: dict[str, tuple[PublishedResult, ...]] = {
    **_list_table_6(),
    **_list_table_5(),
    "masked-vit-b16-jft": (
        PublishedResult(
            "ViT-B/16", 79.9, "ImageNet", "fine-tuned with labels", "the ViT paper, Section 4.6"
        ),
    ),
    "mae-vit-b16-imagenet": (
        PublishedResult(
            "ViT-B/16", 83.66, "ImageNet", "fine-tuned with labels", "FINETUNE.md of mae"
        ),
    ),
    **_list_augreg(),
    **_list_better_plain(),
    **_list_paper_finetuning(),
    **_list_code_finetuning(),
}


def list_published_results(recipe: str, model: str | None = None) -> tuple[PublishedResult, ...]:
    """List what is published of a recipe, or of a recipe with one model."""
    results = PUBLISHED_RESULTS.get(recipe, ())
    return tuple(result for result in results if model in (None, result.model))
