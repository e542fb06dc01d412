"""Shared set-ups: small ViTs, ResNets and hybrids that train on CIFAR-10 in minutes per core.

The ResNets are matched by MACs: R14 to the middle ViT, R26 to the large one. They have 17 and 20
times the parameters of those, as the last stages of a ResNet are almost only parameters when an
image of 32 pixels has shrunk to one position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchwords.studies.study import ENCODER, DatasetSpec, StudyContext, Trial, TrialMetrics
from patchwords.studies.training import evaluate_by_fewshot, evaluate_on_test

if TYPE_CHECKING:
    from patchwords.data.dataset import DatasetSplits
    from patchwords.evaluation.predictions import LoadedModel


# The ViT of the small studies.


# 208 thousand parameters, 64 patches: 24 of them train within half an hour on two cores.
# Optimizer and crop are usual for small images; none of them was tuned for a trial.
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
    "steps": 1500,  # 1.9 epochs of the 50,000 images
    "warmup_steps": 150,
    "split_seed": 0,  # all seeds have the same validation images
}
SHAPE_SETTING_NAMES = ("model", "width", "depth", "heads", "mlp_width", "dropout")
# Settings shared by models of any shape; none were tuned.
SMALL_VIT_TRAINING = {
    name: value for name, value in SMALL_VIT_SETTINGS.items() if name not in SHAPE_SETTING_NAMES
}


# The comments have millions of MACs per image.
SMALL_VIT_SHAPE = {name: SMALL_VIT_SETTINGS[name] for name in SHAPE_SETTING_NAMES}  # 15
MIDDLE_VIT_SHAPE = {**SMALL_VIT_SHAPE, "width": 96, "heads": 3, "mlp_width": 384}  # 32
LARGE_VIT_SHAPE = {**MIDDLE_VIT_SHAPE, "depth": 6}  # 48
# A ResNet root with 8 x 8 features of 64 channels: the ViTs' number of tokens.
HYBRID_STEM = {"model": "R+ViT-Ti/16", "patch_size": 1}
SMALL_HYBRID, LARGE_HYBRID = (
    {**SMALL_VIT_SHAPE, **HYBRID_STEM},
    {**LARGE_VIT_SHAPE, **HYBRID_STEM},
)  # 18, 51
RESNET_14: dict[str, Any] = {"model": "BiT-R14x1"}  # 30
RESNET_26: dict[str, Any] = {"model": "BiT-R26x1"}  # 48


def build_step_schedule(images: int, batch_size: int) -> dict[str, int]:
    """Convert a number of images seen to steps, a tenth of them warm-up."""
    steps = images // batch_size
    return {"batch_size": batch_size, "steps": steps, "warmup_steps": steps // 10}


# Data sets of the studies, for --data and --transfer.


CIFAR10 = DatasetSpec(
    "CIFAR-10 (a folder with its parquet files, or hf:uoft-cs/cifar10)", 50_000, 10
)
FLOWERS = DatasetSpec(
    "flower_photos, TensorFlow's 3,670 photos in a folder for each of 5 classes", 2_936, 5
)
IMAGENET = DatasetSpec("ImageNet (ILSVRC-2012)", 1_281_167, 1000)
JFT = DatasetSpec("JFT-300M, or pre-training data of your own", 303_000_000, 18_000)


# The trained encoder of a trial, and the images with the splits of its training.


def load_encoder_model(trial: Trial, context: StudyContext) -> LoadedModel | None:
    """Load the model of the trial's encoder; None if its training diverged."""
    from patchwords.device import choose_device
    from patchwords.evaluation.predictions import load_model_on_device

    folder = context.encoder(trial)
    if not folder.is_dir():
        return None
    return load_model_on_device(str(folder), choose_device(context.device, context.precision))


def load_encoder_data(trial: Trial, context: StudyContext) -> DatasetSplits:
    """Open the data of the trial's encoder, with the splits of its training."""
    from patchwords.studies.training import build_training_config
    from patchwords.training.data_setup import load_dataset_splits

    name = trial.settings[ENCODER]
    trainings = context.scale.list_pretrainings(trial.seed + 1)
    [encoder] = [one for one in trainings if (one.name, one.seed) == (name, trial.seed)]
    return load_dataset_splits(build_training_config(encoder, context))


# Evaluation on test images and few-shot on another data set.


FEWSHOT_LABEL = "5-shot"  # in metrics of a trial and in labels
FEWSHOT_SHOTS = 5
# Of flower_photos at 32 pixels, by benchmarks/fewshot_floor.py.
FLOOR = (
    "by the same photos and draws a histogram of 64 colours has 34.2 %, an untrained ViT 30.0 ± "
    "1.6 %, an untrained ResNet 25.8 ± 0.8 % (benchmarks/fewshot_floor.py): what was learned "
    "hardly shows"
)


def evaluate_on_test_and_fewshot(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Measure test accuracy, and few-shot linear accuracy of the frozen model on --transfer.

    The few-shot accuracy counts as the accuracy if the scale says so, and is left out if trials are
    trained on --transfer.
    """
    if context.scale.shots is not None or context.scale.tuned:
        return evaluate_on_test(trial, context)
    few = evaluate_by_fewshot(trial, context, FEWSHOT_SHOTS)
    return {**evaluate_on_test(trial, context), FEWSHOT_LABEL: few["accuracy"]}
