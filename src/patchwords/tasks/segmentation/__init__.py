"""Segmentation: a class for every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.data.loader import IMAGE, EvalTransform, ImageBatch, check_bad_image_share
from patchwords.data.sources.mask_table import IGNORE
from patchwords.data.sources.masks import get_mask_reader, survey_masks
from patchwords.device import Device
from patchwords.distributed import all_gather_objects, get_world, run_on_all_processes
from patchwords.errors import ConfigError, DataError
from patchwords.tasks.segmentation.decoders import WEIGHT_DECAY_RULES
from patchwords.tasks.segmentation.evaluate import answer_scenes
from patchwords.tasks.segmentation.folder import save_decoder
from patchwords.tasks.segmentation.metrics import PixelCounts, mean_iou
from patchwords.tasks.segmentation.model import SegmentationModel, build_segmentation_model
from patchwords.tasks.segmentation.scenes import MaskTransform, SceneTransform
from patchwords.tasks.segmentation.setup import choose_decoder, list_candidates, resolve_image_size
from patchwords.training.config import FinetuneConfig, flatten_config
from patchwords.training.model_setup import InitialModel
from patchwords.training.objectives import HeldOutExamples, Objective, Views
from patchwords.training.plan import ResolvedSetting
from patchwords.weights.pretrained import Pretrained

# Settings of classification that masks have no use for, with their defaults.
UNUSED_SETTINGS: Mapping[str, object] = {
    "crop_area": (0.05, 1.0),
    "crop_ratio": (0.75, 4 / 3),
    "random_crop": None,
    "randaugment": None,
    "mixup": 0.0,
    "cutmix": 0.0,
    "erase": 0.0,
}


class Segmentation(Objective):
    """Segmentation: cross-entropy of every labelled pixel, and mean intersection over union."""

    primary_metric, higher_is_better = "miou", True
    formats: ClassVar[Mapping[str, str]] = {"miou": ".1%", "pixel_accuracy": ".1%"}
    weight_decay_rules: ClassVar[Mapping[str, bool]] = WEIGHT_DECAY_RULES

    @classmethod
    def choose_settings(
        cls, config: FinetuneConfig, data: DatasetSplits, device: Device
    ) -> tuple[list[FinetuneConfig], list[ResolvedSetting]]:
        refuse_unused_settings(config)
        check_masks(data, config.data_settings.max_bad)
        return list_candidates(config, data, device)

    @classmethod
    def resolve(
        cls, config: FinetuneConfig, data: DatasetSplits, origin: Pretrained | None
    ) -> tuple[FinetuneConfig, list[ResolvedSetting]]:
        config, of_decoder = choose_decoder(config, origin)
        config, of_size = resolve_image_size(config, data, origin)
        return config, [*of_decoder, *of_size]

    def build(self, backbone: InitialModel, data: DatasetSplits) -> SegmentationModel:
        self.table = get_mask_reader(data.splits[TRAIN], data.source).table
        assert self.config.decoder is not None
        return build_segmentation_model(
            backbone.model, self.config.decoder, len(self.table.classes), self.config.seed
        )

    def views(self) -> Views:
        photo = SceneTransform(self.preprocess, self.config.augment, self.config.seed)
        return Views(
            {IMAGE: photo},
            {IMAGE: EvalTransform(self.preprocess)},
            train_targets={"mask": MaskTransform(photo, self.table)},
        )

    def describe_task(self) -> dict[str, Any]:
        """Describe what the model answers, for config.json of its folder."""
        return {
            "name": "segmentation",
            "decoder": self.config.decoder,
            "classes": list(self.table.classes),
            "values": list(self.table.values),
            "palette": [list(colour) for colour in self.table.palette],
        }

    def save_parts(self, learner: nn.Module, folder: Path) -> None:
        assert isinstance(learner, SegmentationModel)
        save_decoder(learner, folder)

    def loss(
        self, learner: nn.Module, batch: ImageBatch, step: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean cross-entropy over all pixels; those without a label count as 0.

        Dividing by all pixels keeps the loss a mean over images, however a batch is cut.
        """
        logits = learner(self.preprocess.normalise(batch.images))  # [B, K, H, W]
        truth = batch.targets["mask"].long()  # [B, H, W]
        total = F.cross_entropy(
            logits,
            truth,
            ignore_index=IGNORE,
            label_smoothing=self.config.recipe.label_smoothing,
            reduction="sum",
        )
        labelled = truth != IGNORE
        right = ((logits.detach().argmax(1) == truth) & labelled).sum()
        accuracy = right / labelled.sum().clamp(min=1)
        return total / truth.numel(), {"pixel_accuracy": accuracy}

    def evaluate(self, learner: nn.Module, examples: HeldOutExamples) -> dict[str, Any]:
        """Measure mIoU at the photos' own size; each of several processes measures its share."""
        world = get_world()
        share = examples.dataset.select(range(world.rank, len(examples.dataset), world.size))
        classes = self.table.classes
        answers = run_on_all_processes(
            lambda: answer_scenes(
                learner, share, classes, self.preprocess, examples.device, source=self.config.data
            )
        )
        counts, loss, pixels = PixelCounts(len(classes)), 0.0, 0
        for part in all_gather_objects(answers):
            counts.merge(part.counts)
            loss, pixels = loss + part.loss, pixels + part.pixels
        if not pixels:
            raise DataError("none of the validation masks can be read; patchwords doctor says why")
        total = np.stack(counts.per_image).sum(0)  # [3, K]
        return {
            "loss": loss / pixels,
            "miou": float(mean_iou(total)),
            "pixel_accuracy": float(total[0].sum() / total[1].sum()),
            "images": len(counts.keys),
        }


def refuse_unused_settings(config: FinetuneConfig) -> None:
    """Raise ConfigError for settings of classification that masks have no use for."""
    flat = flatten_config(config)
    for name, default in UNUSED_SETTINGS.items():
        if flat[name] != default:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for classification; segmentation has --scale-range, "
                "--flip and --color-jitter"
            )
    if config.recipe.balance not in {"none", "auto"}:
        raise ConfigError(
            f"--balance {config.recipe.balance} counts images of a class, and masks have several "
            "classes; leave it out"
        )


def check_masks(data: DatasetSplits, max_bad: float) -> None:
    """Raise DataError where more than a share `max_bad` of the masks cannot be used."""
    for split, sights in survey_masks(data).items():
        keys = data.splits[split].keys
        bad = [(keys[sight.place], sight.reason) for sight in sights if sight.kind]
        check_bad_image_share(bad, len(sights), f"{split} images with masks", max_bad)
