"""What the speeds of models at several sizes of the image come to: ratios of pairs, and powers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from patchwords.studies.study import TrialMetrics

IMAGE_SIZES = (64, 128, 224, 384, 512)  # pixels, of Figure 12
GROWTH_SPAN = (224, 512)  # between which the growth of the time is taken
# ViT and the ResNet of about as many multiplications at 224 pixels: 4.4 and 4.1, 17.6 and 16.1 G.
MODEL_PAIRS = (("ViT-B/32", "BiT-R50x1"), ("ViT-B/16", "BiT-R50x2"))

VIT_POWER, RESNET_POWER = "ViT: power of the side", "ResNet: power of the side"
VIT_POWER_EXCESS = "ViT: power of the side, less 2"


def make_speed_trial_name(model: str, size: int) -> str:
    """The cell."""
    return f"{model}, {size} px"


def make_speed_label(vit: str, resnet: str) -> str:
    return f"{vit} beside {resnet}: speed, in doublings"


def make_batch_label(vit: str, resnet: str) -> str:
    return f"{vit} beside {resnet}: largest batch, in doublings"


def parse_model_names(cells: Iterable[str]) -> list[str]:
    """In the order of the cells."""
    return list(dict.fromkeys(cell.rpartition(", ")[0] for cell in cells))


def is_vit(model: str) -> bool:
    return model.startswith("ViT")


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """What the claims are about, of one repeat."""
    models = parse_model_names(labels)
    values: dict[str, float | None] = {}
    for pair in MODEL_PAIRS:
        values[make_speed_label(*pair)] = mean_if_complete(
            compute_ratio_in_doublings(found, "images/s", pair, size) for size in IMAGE_SIZES
        )
    for pair in MODEL_PAIRS:
        values[make_batch_label(*pair)] = compute_ratio_in_doublings(
            found, "largest batch", pair, 224
        )
    powers = {model: fit_growth_power(found, model, "images/s") for model in models}
    values[VIT_POWER] = mean_if_complete(powers[model] for model in models if is_vit(model))
    values[RESNET_POWER] = mean_if_complete(powers[model] for model in models if not is_vit(model))
    ours = values[VIT_POWER]
    values[VIT_POWER_EXCESS] = None if ours is None else ours - 2
    return values


def compute_ratio_in_doublings(
    found: Mapping[str, TrialMetrics], what: str, pair: tuple[str, str], size: int
) -> float | None:
    """log2 of the first's over the second's; None where one of them fits nothing."""
    ours, theirs = (found[make_speed_trial_name(model, size)][what] for model in pair)
    return math.log2(ours / theirs) if ours and theirs else None


def fit_growth_power(found: Mapping[str, TrialMetrics], model: str, what: str) -> float | None:
    """k, where `what` falls as the side to the power of -k: 2 is in proportion to the pixels."""
    first, last = (found[make_speed_trial_name(model, size)] for size in GROWTH_SPAN)
    before, after, short, long = first[what], last[what], first["side"], last["side"]
    if not (before and after and short and long):
        return None
    return math.log(before / after) / math.log(long / short)


def mean_if_complete(values: Iterable[float | None]) -> float | None:
    """None where one is missing."""
    found = list(values)
    alive = [value for value in found if value is not None]
    return sum(alive) / len(alive) if alive and len(alive) == len(found) else None
