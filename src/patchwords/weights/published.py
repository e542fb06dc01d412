"""Published weights by the names that their authors gave them, and where they lie.

Sources: README.md of google-research/vision_transformer and of google-research/big_transfer,
VANITY_NAMES in big_vision's models/vit.py.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from patchwords.errors import WeightsError, did_you_mean

STORAGE_URL = "https://storage.googleapis.com"
AUGREG_INDEX_URL = f"{STORAGE_URL}/vit_models/augreg/index.csv"

# Recommended by AugReg (arXiv 2106.10270, Table 3): 300 epochs on ImageNet-21k.
AUGREG_RECOMMENDED = {
    "howto-i21k-Ti/16": "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-S/32": "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-S/16": "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-B/32": "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-B/16": "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-B/8": "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-L/16": "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-R+Ti/16": "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-R26+S/32": "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-R50+L/32": "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1",
}
# Better plain ViT baselines (arXiv 2205.01580), ImageNet alone.
BIG_VISION_BASELINES = {
    f"i1k-s16-{epochs}ep": f"vit_s16_i1k_{epochs}ep" for epochs in (90, 150, 300)
}

# Other names, by their form -> their place in the storage.
PUBLISHED_NAME_PATTERNS = (
    (r"(imagenet21k|imagenet21k\+imagenet2012|augreg|sam|gsam)/([\w.+-]+?)(?:\.npz)?", r"\1/\2"),
    (r"()((?:R\d*_)?[A-Za-z]+_\d+-i(?:1|21)k-\d+ep-[\w.-]+?)(?:\.npz)?", r"augreg/\2"),
)
BIT_NAME_PATTERN = re.compile(r"(BiT-[SM]-R\d+x\d)(-ILSVRC2012|-imagenet2012)?(?:\.npz)?")


def find_published_url(name: str) -> str | None:
    """Where the weights of a published name lie; None if it is no such name.

    >>> find_published_url("imagenet21k/ViT-B_16")
    'https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz'
    """
    if name in AUGREG_RECOMMENDED:
        return f"{STORAGE_URL}/vit_models/augreg/{AUGREG_RECOMMENDED[name]}.npz"
    if name in BIG_VISION_BASELINES:
        return f"{STORAGE_URL}/big_vision/{BIG_VISION_BASELINES[name]}.npz"
    if match := BIT_NAME_PATTERN.fullmatch(name):
        return f"{STORAGE_URL}/bit_models/{match[1]}{'-ILSVRC2012' if match[2] else ''}.npz"
    for form, place in PUBLISHED_NAME_PATTERNS:
        if match := re.fullmatch(form, name):
            return f"{STORAGE_URL}/vit_models/{match.expand(place)}.npz"
    return f"{STORAGE_URL}/{name.removeprefix('gs://')}" if name.startswith("gs://") else None


def find_best_augreg(model: str, index: Path) -> str:
    """The AugReg checkpoint of ImageNet-21k with the best final validation accuracy, as a stem.

    The authors' own choice where only a model is named (vit_jax/train.py). `model` is spelled as
    in the table, "R26+S/32", or as in file names, "R26_S_32".
    """
    wanted = model.replace("+", "_").replace("/", "_")
    best: dict[str, tuple[float, str]] = {}  # model -> (accuracy, stem)
    try:
        with open(index, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                name = row["name"].replace("+", "_").replace("/", "_")
                if row["ds"] == "i21k":
                    best[name] = max(
                        best.get(name, (-1.0, "")), (float(row["final_val"]), row["filename"])
                    )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{index} is not AugReg's table of models ({error}); delete it to fetch it anew"
        ) from error
    if wanted not in best:
        raise WeightsError(f"AugReg has no model {model!r}{did_you_mean(wanted, best)}")
    return best[wanted][1].removesuffix(".npz")
