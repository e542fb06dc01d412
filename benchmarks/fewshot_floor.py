"""The floor of few-shot accuracy: models that have learned nothing, and colours alone.

    python benchmarks/fewshot_floor.py flower_photos [--shots 5] [--seeds 0 1 2]

Frozen features of untrained models and histograms of 4 x 4 x 4 colours, at 32 pixels, are asked as
the studies `data-size` and `optimizer` ask their trained models: the same photos are held out, the
same draws of N images a class are learned from, with the same penalty.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import patchwords as pw
from patchwords.data.dataset import ImageDataset
from patchwords.device import choose_device
from patchwords.evaluation.probes.cache import FeatureCache
from patchwords.evaluation.probes.fewshot import (
    build_fewshot_table,
    draw_probe_shots,
    extract_drawn_features,
    score_shot_draws,
)
from patchwords.evaluation.probes.inputs import open_probe_inputs
from patchwords.evaluation.statistics import compute_seed_statistics
from patchwords.studies.paper.setups import MIDDLE_VIT_SHAPE, RESNET_14
from patchwords.studies.training import FEWSHOT_DRAWS

SIDE = 32
LEVELS = 4  # of each of three colours
MODELS: Mapping[str, Mapping[str, Any]] = {"ViT": MIDDLE_VIT_SHAPE, "ResNet": RESNET_14}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", help="images without a split, a folder for each class")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    for name, settings in MODELS.items():
        seeds = [untrained(settings, seed, asked.data, asked.shots) for seed in asked.seeds]
        print(f"{name}, untrained: {in_words(seeds)} over seeds")
    print(f"{LEVELS**3} colours: {in_words(by_colours(asked.data, asked.shots))} over draws")


def untrained(settings: Mapping[str, Any], seed: int, data: str, shots: int) -> float:
    """Few-shot accuracy of random weights, the mean of the draws."""
    own = {key: value for key, value in settings.items() if key != "model"}
    model = pw.create_model(settings["model"], image_size=SIDE, seed=seed, **own)
    with tempfile.TemporaryDirectory() as folder:
        pw.save_pretrained(model, folder)
        device, cache = choose_device("cpu", "fp32"), FeatureCache(Path(folder) / "features")
        with open_probe_inputs(folder, data, device, cache) as inputs:
            drawn = draw_probe_shots(inputs.split, (shots,), FEWSHOT_DRAWS)
            frozen, draws = extract_drawn_features(inputs.extract, inputs.split, drawn)
    [row] = build_fewshot_table(frozen, draws)["table"]
    return float(row["mean"])


def by_colours(data: str, shots: int) -> list[float]:
    """Few-shot accuracy of histograms, draw by draw."""
    with tempfile.TemporaryDirectory() as folder:
        pw.save_pretrained(pw.create_model("ViT-Ti/16", image_size=SIDE), folder)
        device, cache = choose_device("cpu", "fp32"), FeatureCache(Path(folder) / "features")
        with open_probe_inputs(folder, data, device, cache) as inputs:
            pair = inputs.split
    drawn = draw_probe_shots(pair, (shots,), FEWSHOT_DRAWS)
    learned, judged = pair.train.select(drawn.wanted), pair.test
    scores = score_shot_draws(
        histograms(learned),
        learned.labels,
        drawn.among(drawn.wanted),
        histograms(judged),
        judged.labels,
    )
    return [score.accuracy for score in scores]


def histograms(examples: ImageDataset) -> np.ndarray:
    """Shares of the colours of each image -> float32 [N, LEVELS ** 3]."""
    rows = []
    for i in range(len(examples)):
        image = Image.open(BytesIO(examples.read(i))).convert("RGB").resize((SIDE, SIDE))
        pixels = np.asarray(image, np.int64) // (256 // LEVELS)  # [H, W, 3]
        colours = pixels @ (LEVELS**2, LEVELS, 1)
        rows.append(np.bincount(colours.ravel(), minlength=LEVELS**3) / SIDE**2)
    return np.array(rows, np.float32)


def in_words(values: list[float]) -> str:
    found = compute_seed_statistics(values)
    return f"{found.mean:.1%} ± {found.std or 0:.1%}"


if __name__ == "__main__":
    main()
