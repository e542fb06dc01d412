"""Recipes that start from new weights: Table 3, masked patches, better plain ViT, BiT.

A weight decay here is multiplied by the learning rate of the step, as in AugReg's section 3.3 and
torch's AdamW. big_vision's is not, it only follows the schedule: its 0.0001 beside a rate of 0.001
is 0.1 here.
"""

from __future__ import annotations

import math
from typing import Any

from patchwords.train.recipe_row import DATA, Row

# All of them see 224 pixels. Crop and flip: vit_jax input_pipeline.py, big_vision configs.
# Evaluation: the short side to 256, the centre 224 (big_vision configs).
PIXELS: dict[str, Any] = {
    "image_size": (224,),
    "crop_area": (0.05, 1.0),
    "crop_ratio": (0.75, 4 / 3),
    "random_crop": None,
    "flip": True,
    "randaugment": None,
    "mixup": 0.0,
    "cutmix": 0.0,
    "resize": "crop",
    "crop_fraction": 224 / 256,
}
ADAM: dict[str, Any] = {"optimizer": "adamw", "ema": None, "label_smoothing": 0.0}
SGD: dict[str, Any] = {"optimizer": "sgd", "ema": None, "label_smoothing": 0.0}

SILENT = (
    "the paper gives no loss, augmentation or label smoothing for pre-training: those of the "
    "authors' code"
)
BIAS = "the head's bias of -10 (-6.9 for 1,000 classes) there is -ln(classes - 1) here"
T17 = "Section 4.1 has a linear schedule and a weight decay of 0.1 for all models: Table 3 governs"
T22 = "the official configs have other dropouts, but they are for fine-tuning"


def _short(model: str) -> str:
    """
    >>> _short("R50+ViT-B/16"), _short("BiT-R152x2"), _short("ViT-H/14")
    ('r50-vit-b16', 'r152x2', 'vit-h14')
    """
    return model.removeprefix("BiT-").replace("+", "-").replace("/", "").lower()


def _jft(model: str, epochs: int, lr: float, suffix: str = "") -> Row:
    resnet = model.startswith("BiT")
    settings = {
        **PIXELS,
        **ADAM,
        "schedule": "linear",
        "weight_decay": 0.1,
        "clip": math.inf,  # Appendix B.1 clips on ImageNet only
        "loss": "sigmoid",
        **({"head": "linear"} if resnet else {"head": "tanh", "dropout": 0.0}),
    }
    return Row(
        f"{_short(model)}-jft{suffix}",
        "Table 3",
        DATA["jft"],
        ("epochs", epochs),
        4096,
        lr,
        10_000,
        settings,
        model=model,
        note=f"{SILENT}; {BIAS}",
    )


def _imagenet21k(model: str, epochs: int, suffix: str = "") -> Row:
    settings = {
        **PIXELS,
        **ADAM,
        "schedule": "linear",
        "weight_decay": 0.03,
        "clip": math.inf,
        "loss": "sigmoid",
        "head": "tanh",
        "dropout": 0.1,
    }
    return Row(
        f"{_short(model)}-imagenet21k{suffix}",
        "Table 3",
        DATA["imagenet21k"],
        ("epochs", epochs),
        4096,
        1e-3,
        10_000,
        settings,
        model=model,
        note=f"{T17}; {T22}; {SILENT}; {BIAS}",
    )


def _imagenet(model: str) -> Row:
    settings = {
        **PIXELS,
        **ADAM,
        "schedule": "cosine",
        "weight_decay": 0.3,
        "clip": 1.0,
        "loss": "softmax",
        "head": "tanh",
        "dropout": 0.1,
    }
    return Row(
        f"{_short(model)}-imagenet",
        "Table 3",
        DATA["imagenet"],
        ("epochs", 300),
        4096,
        3e-3,
        10_000,
        settings,
        model=model,
        note=f"{T17}; {T22}; {SILENT}, which has softmax and sigmoid for ImageNet: softmax here",
    )


# R200x3 on JFT and ViT-H/14 on ImageNet-21k are reported in the paper, but have no row in Table 3.
TABLE_3 = (
    _jft("ViT-B/16", 7, 8e-4),
    _jft("ViT-B/32", 7, 8e-4),
    _jft("ViT-L/32", 7, 6e-4),
    _jft("ViT-L/16", 7, 4e-4, "-7ep"),
    _jft("ViT-L/16", 14, 4e-4, "-14ep"),
    _jft("ViT-H/14", 14, 3e-4),
    _jft("BiT-R50x1", 7, 1e-3),
    _jft("BiT-R50x2", 7, 1e-3),
    _jft("BiT-R101x1", 7, 8e-4),
    _jft("BiT-R152x1", 7, 6e-4),
    _jft("BiT-R152x2", 7, 6e-4),
    _jft("R50+ViT-B/16", 7, 8e-4),
    _jft("R50+ViT-B/32", 7, 8e-4),
    _jft("R50+ViT-L/32", 7, 2e-4),
    _jft("R50+ViT-L/16", 7, 4e-4, "-7ep"),
    _jft("R50+ViT-L/16", 14, 4e-4, "-14ep"),
    _imagenet21k("ViT-B/16", 90),
    _imagenet21k("ViT-B/32", 90),
    _imagenet21k("ViT-L/16", 30, "-30ep"),
    _imagenet21k("ViT-L/16", 90, "-90ep"),
    _imagenet21k("ViT-L/32", 30, "-30ep"),
    _imagenet21k("ViT-L/32", 90, "-90ep"),
    _imagenet("ViT-B/16"),
    _imagenet("ViT-B/32"),
    _imagenet("ViT-L/16"),
    _imagenet("ViT-L/32"),
)

MASKED = (
    Row(
        "masked-vit-b16-jft",
        "Appendix B.1.2",
        DATA["jft"],
        ("steps", 1_000_000),
        4096,
        2e-4,
        10_000,
        {
            **PIXELS,
            **ADAM,
            "schedule": "cosine",
            "weight_decay": 0.1,
            "clip": math.inf,
            "dropout": 0.0,
            "objective": "masked",
            "target": "mean-colour",
            "mask_ratio": 0.5,
        },
        model="ViT-B/16",
        note=(
            "B.1.2 gives no weight decay, dropout or clipping: those of Table 3 for JFT-300M; "
            "100,000 steps bring most of it (Section 4.6)"
        ),
    ),
)


def _better_plain(epochs: int) -> Row:
    settings = {
        **PIXELS,
        **ADAM,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "clip": 1.0,
        "loss": "softmax",
        "head": "tanh",
        "dropout": 0.0,
        "classifier": "gap",
        "position": "sincos2d",
        "randaugment": (2, 10),
        "mixup": 0.2,
    }
    return Row(
        f"better-plain-vit-s16-{epochs}ep",
        "big_vision configs/vit_s16_i1k.py",
        DATA["imagenet"],
        ("epochs", epochs),
        1024,
        1e-3,
        10_000,
        settings,
        model="ViT-S/16",
        note="arXiv 2205.01580; wd there is 0.0001, not multiplied by the rate of 0.001",
    )


BETTER_PLAIN = tuple(_better_plain(epochs) for epochs in (90, 150, 300))


def _bit(data: str, lr_of_256: float, warmup: int, loss: str, file: str) -> Row:
    note = "wd there is a thousandth of the rate, and not multiplied by it"
    settings = {
        **PIXELS,
        **SGD,
        "schedule": "cosine",
        "weight_decay": 1e-3,
        "clip": 1.0,
        "loss": loss,
        "head": "linear",
    }
    return Row(
        f"bit-{data}",
        f"big_vision configs/{file}",
        DATA[data],
        ("epochs", 90),
        4096,
        lr_of_256 * 4096 / 256,
        warmup,
        settings,
        model="BiT-R50x1",
        scaling="linear",  # the file says so
        note=f"{note}; {BIAS}" if loss == "sigmoid" else note,
    )


BIT = (
    _bit("imagenet", 0.1, 1_000, "softmax", "bit_i1k.py"),
    _bit("imagenet21k", 0.03, 5_000, "sigmoid", "bit_i21k.py"),
)

PRETRAIN = (*TABLE_3, *MASKED, *BETTER_PLAIN, *BIT)
