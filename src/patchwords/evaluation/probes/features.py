"""Features of a frozen model, and the train and test images of a probe.

Features are the representation that the classifier would see, unless other tokens are asked for.
Sizes: n readable images, B batch, C channels, H W image, N patches, D width, R representation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np
from torch import Tensor, nn

from patchwords.data.dataset import (
    ALL,
    TEST,
    TRAIN,
    VALIDATION,
    DatasetSplits,
    ImageDataset,
    concatenate_datasets,
)
from patchwords.data.loader import load_eval_batches
from patchwords.data.preprocess import Preprocess
from patchwords.data.splits import split_dataset
from patchwords.device import Device
from patchwords.errors import ConfigError, DataError, did_you_mean
from patchwords.evaluation.predictions import collect_outputs, eval_mode
from patchwords.models.build import Model
from patchwords.models.inference.packed import pack_for_inference
from patchwords.models.vit import ViT

BATCH_SIZE = 64
# What the classifier sees, the class token, the mean of the patch tokens, or each of them.
TokenChoice = Literal["classifier", "class", "mean", "patches"]


@dataclass(frozen=True)
class Features:
    """Features of the readable images, in the order of the examples."""

    indices: np.ndarray  # [n] int64, position in the examples
    labels: np.ndarray  # [n] int64, -1 = no label
    values: np.ndarray  # [n, R] or [n, N, D] float32, or float16 where they were kept so
    bad: list[tuple[int, str]]  # (position in the examples, reason)


def extract_example_features(
    model: nn.Module,
    examples: ImageDataset,
    preprocess: Preprocess,
    device: Device,
    workers: int,
    tokens: TokenChoice = "classifier",
) -> Features:
    """Extract the features of every readable image in evaluation mode.

    It draws no random number, and every module gets its training mode back.
    """
    with eval_mode(model), device.autocast():
        batches = load_eval_batches(examples, preprocess, BATCH_SIZE, workers)
        return Features(
            *collect_outputs(
                build_batch_encoder(model, preprocess, device, tokens), batches, device.torch_device
            )
        )


def build_batch_encoder(
    model: nn.Module, preprocess: Preprocess, device: Device, tokens: TokenChoice = "classifier"
) -> Callable[[Tensor], Tensor]:
    """Build a function of uint8 [B, C, H, W] that returns features, float32 [B, R] or [B, N, D]."""
    check_token_choice(model, tokens)
    fast = pack_for_inference(cast(Model, model), device.bf16)

    def encode(images: Tensor) -> Tensor:
        return encode_tokens(fast, preprocess.normalise(images), tokens).float()

    return encode


def check_token_choice(model: nn.Module, tokens: str) -> None:
    """Raise ConfigError for an unknown choice, or a class token that the model does not have."""
    choices = get_args(TokenChoice)
    if tokens not in choices:
        raise ConfigError(f"--tokens {tokens!r} is not a choice{did_you_mean(tokens, choices)}")
    if tokens == "class" and not (isinstance(model, ViT) and model.class_token is not None):
        raise ConfigError("--tokens class: the model has no class token; choose classifier or mean")


def encode_tokens(model: Model, images: Tensor, tokens: TokenChoice) -> Tensor:
    """Compute the chosen tokens of images [B, C, H, W] after the final norm: [B, R] or [B, N, D].

    The patches of a ResNet are the positions of its last feature map, row by row.
    """
    if tokens == "classifier":
        return model.represent(images)
    if not isinstance(model, ViT):
        patches = model.forward_features(images).flatten(2).mT  # [B, N, D]
    elif tokens == "class":
        return model.encode(images, 1)[:, 0]  # [B, D]
    else:
        patches = model.forward_features(images)[:, model.num_prefix_tokens :]  # [B, N, D]
    return patches.mean(1) if tokens == "mean" else patches


# The split of a probe, without leaks. If the model's run used these images, its record decides: a
# probe must not be tested on images that the model was trained on. Otherwise the data's own splits
# count, and data without splits are split as training would.


DEFAULT_TEST_SHARE = 0.2  # of data without splits: as in training
# Shards have the same names in many data sets, and one row in some hundreds has the same length.
MAX_COINCIDENT_SHARE = 0.02  # of the images


@dataclass(frozen=True)
class ProbeSplit:
    """Train and test images of a probe, of the same classes."""

    train: ImageDataset
    test: ImageDataset
    origin: str  # origin of the split, human-readable


def split_for_probe(
    data: DatasetSplits,
    recorded: Mapping[tuple[str, int], str],
    seed: int = 0,
    share: float = DEFAULT_TEST_SHARE,
) -> ProbeSplit:
    """Split the data into train and test.

    Args:
        recorded: (path, bytes) -> split of the model's run (`read_run_splits`), or empty.
            Images that neither run nor data have split are left out.
        seed: of the split, if there is none; share: of the images held out for test then.

    Validation serves as test if there is no test. Raises DataError if a part is empty or has images
    without a label, if there is a single class, or if a class of test is not in train.
    """
    if is_run_data(data, recorded):
        parts, origin = split_as_recorded(data, recorded), "as the model's own run divided them"
    elif data.splits.keys() & {TEST, VALIDATION}:
        parts, origin = data.splits, "as the data are divided"
    else:
        test, validation = (share, 0.0) if ALL in data.splits else (0.0, share)
        cut = split_dataset(data, seed=seed, validation=validation, test=test, most_validation=None)
        off = TEST if TEST in cut.splits else VALIDATION  # the name that `split_dataset` gave it
        parts = {TRAIN: cut.splits[TRAIN], TEST: cut.splits[off]}
        origin = f"{share:.0%} of each class cut off for test, by seed {seed}"
    judged = next((name for name in (TEST, VALIDATION) if len(parts.get(name, ()))), None)
    if judged is None or not len(parts.get(TRAIN, ())):
        counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
        raise DataError(
            f"{data.source}: a probe needs images to learn from and others to be judged by; "
            f"there are {counts}"
        )
    if judged == VALIDATION:
        origin += "; there is no test split, so validation is the test"
    probe_split = ProbeSplit(parts[TRAIN], parts[judged], origin)
    require_learnable_split(probe_split, data.source)
    return probe_split


def is_run_data(data: DatasetSplits, recorded: Mapping[tuple[str, int], str]) -> bool:
    """Whether the run saw these images: more of them than by coincidence."""
    recorded_keys = [
        place in recorded
        for part in data.splits.values()
        for place in zip(part.keys, part.sizes.tolist(), strict=True)
    ]
    return sum(recorded_keys) > MAX_COINCIDENT_SHARE * len(recorded_keys)


def split_as_recorded(
    data: DatasetSplits, recorded: Mapping[tuple[str, int], str]
) -> dict[str, ImageDataset]:
    """Split images as the run recorded, else by the data's own splits.

    Images that neither has split stay in `all`, which nothing reads.
    """
    everything = concatenate_datasets(list(data.splits.values()))
    declared = [name for name, part in data.splits.items() for _ in range(len(part))]
    places = zip(everything.keys, everything.sizes.tolist(), strict=True)
    names = [
        recorded.get(place, declared_name)
        for place, declared_name in zip(places, declared, strict=True)
    ]
    order = np.array(names)
    return {name: everything.select(np.flatnonzero(order == name)) for name in Counter(names)}


def require_learnable_split(split: ProbeSplit, source: str) -> None:
    """Raise DataError for missing labels, unknown classes or a single class."""
    for name, part in (("train", split.train), ("test", split.test)):
        unlabelled = np.flatnonzero(part.labels < 0)
        if len(unlabelled):
            raise DataError(
                f"{source}: {len(unlabelled):,} of {len(part):,} images of {name} have no label; the "
                f"first is {part.keys[int(unlabelled[0])]}"
            )
    learned, judged = split.train.count_per_class(), split.test.count_per_class()
    names = split.train.classes
    unknown = np.flatnonzero(judged * (learned == 0))
    if len(unknown):
        name = names[int(unknown[0])]
        near = did_you_mean(name, [names[i] for i in np.flatnonzero(learned)])
        raise DataError(f"{source}: class {name!r} is in test and not in train{near}")
    present = np.flatnonzero(learned)
    if len(present) < 2:
        raise DataError(
            f"{source}: train has one class only, {names[int(present[0])]!r}; a probe needs two"
        )


def limit_train_images(split: ProbeSplit, positions: np.ndarray) -> ProbeSplit:
    """Keep only these training images."""
    return replace(split, train=split.train.select(positions))
