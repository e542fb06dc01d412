"""ViT, ResNet and hybrid of two sizes or three, that learn CIFAR-10 within minutes on a core.

The ResNets are matched by their multiplications: R14 by the middle ViT, R26 by the large one. They
have 17 and 20 times the parameters of those: a ResNet's last stages are nothing but parameters
where an image of 32 pixels has come down to one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchwords.studies.study import ENCODER, DatasetSpec, StudyContext, Trial, TrialMetrics
from patchwords.studies.training import evaluate_by_fewshot, evaluate_on_test

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.evaluation.predictions import LoadedModel


# A ViT that learns CIFAR-10 within minutes on a core: what small studies train.


# 208 thousand parameters, 64 patches: 24 of them train within half an hour on two cores.
# Optimizer and crop are usual for small images; none of it was tuned for any cell.
SMALL_VIT_SETTINGS: dict[str, Any] = {
    "model": "ViT-Ti/4",
    "image_size": (32,),
    "width": 64,
    "depth": 4,
    "heads": 2,
    "mlp_width": 256,
    "dropout": 0.0,
    "optimizer": "adamw",
    "schedule": "cosine",
    "weight_decay": 0.05,
    "crop_area": (0.4, 1.0),
    "batch_size": 64,
    "steps": 1500,  # 1.9 passes over the 50,000 images
    "warmup_steps": 150,
    "split_seed": 0,  # every seed has the same images held out
}
SHAPE_SETTING_NAMES = ("model", "width", "depth", "heads", "mlp_width", "dropout")
# What models of any shape have in common: all are trained alike, and nothing is tuned for any.
SMALL_VIT_TRAINING = {
    name: value for name, value in SMALL_VIT_SETTINGS.items() if name not in SHAPE_SETTING_NAMES
}


# Millions of MACs an image stand beside each.
SMALL_VIT_SHAPE = {name: SMALL_VIT_SETTINGS[name] for name in SHAPE_SETTING_NAMES}  # 15
MIDDLE_VIT_SHAPE = {**SMALL_VIT_SHAPE, "width": 96, "heads": 3, "mlp_width": 384}  # 32
LARGE_VIT_SHAPE = {**MIDDLE_VIT_SHAPE, "depth": 6}  # 48
# The root of a ResNet in front, 8 x 8 features of 64 channels: as many tokens as the ViTs have.
HYBRID_STEM = {"model": "R+ViT-Ti/16", "patch_size": 1}
SMALL_HYBRID, LARGE_HYBRID = (
    {**SMALL_VIT_SHAPE, **HYBRID_STEM},
    {**LARGE_VIT_SHAPE, **HYBRID_STEM},
)  # 18, 51
RESNET_14: dict[str, Any] = {"model": "BiT-R14x1"}  # 30
RESNET_26: dict[str, Any] = {"model": "BiT-R26x1"}  # 48


def build_step_schedule(images: int, batch_size: int) -> dict[str, int]:
    """So many images seen, a tenth of them in the warm-up."""
    steps = images // batch_size
    return {"batch_size": batch_size, "steps": steps, "warmup_steps": steps // 10}


# The images that studies are about, as `--data` and `--transfer` take them.


CIFAR10 = DatasetSpec(
    "CIFAR-10 (a folder with its parquet files, or hf:uoft-cs/cifar10)", 50_000, 10
)
FLOWERS = DatasetSpec(
    "flower_photos, TensorFlow's 3,670 photos in a folder for each of 5 classes", 2_936, 5
)
IMAGENET = DatasetSpec("ImageNet (ILSVRC-2012)", 1_281_167, 1000)
JFT = DatasetSpec("JFT-300M, or pre-training data of your own", 303_000_000, 18_000)


# A trained model that a cell measures: loaded, with the images as its training divided them.


def load_encoder_model(cell: Trial, bench: StudyContext) -> LoadedModel | None:
    """The model of the cell's encoder on its device; None where its training diverged."""
    from patchwords.device import choose_device
    from patchwords.evaluation.predictions import load_model_on_device

    folder = bench.encoder(cell)
    if not folder.is_dir():
        return None
    return load_model_on_device(str(folder), choose_device(bench.device, bench.precision))


def load_encoder_data(cell: Trial, bench: StudyContext) -> DatasetSplits:
    """What the cell's encoder was trained on, and what was held out from it."""
    from patchwords.studies.training import build_training_config
    from patchwords.training.data_setup import load_dataset_splits

    name = cell.settings[ENCODER]
    trainings = bench.scale.pretrainings(cell.seed + 1)
    [encoder] = [one for one in trainings if (one.name, one.seed) == (name, cell.seed)]
    return load_dataset_splits(build_training_config(encoder, bench))


# By test images, and by a few images of another data set: both, where there are both.


FEWSHOT_LABEL = "5-shot"  # of a cell's numbers, and in labels
FEWSHOT_SHOTS = 5
# Of flower_photos at 32 pixels, by benchmarks/fewshot_floor.py.
FLOOR = (
    "by the same photos and draws a histogram of 64 colours has 34.2 %, an untrained ViT 30.0 ± "
    "1.6 %, an untrained ResNet 25.8 ± 0.8 % (benchmarks/fewshot_floor.py): what was learned "
    "hardly shows"
)


def evaluate_on_test_and_fewshot(cell: Trial, bench: StudyContext) -> TrialMetrics:
    """Accuracy on test images, and few-shot linear accuracy of the frozen model on --transfer.

    The latter is the accuracy where the scale says so, and is not there where cells are trained
    on --transfer.
    """
    if bench.scale.shots is not None or bench.scale.tuned:
        return evaluate_on_test(cell, bench)
    few = evaluate_by_fewshot(cell, bench, FEWSHOT_SHOTS)
    return {**evaluate_on_test(cell, bench), FEWSHOT_LABEL: few["accuracy"]}
