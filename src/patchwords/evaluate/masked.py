"""The last word on masked patch prediction: its held-out images, and pictures of some of them.

Sizes: B images, C channels, H W image, P patch size, N patches, R corrupted patches of an image.
"""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchwords.data.bad import check_bad_image_share
from patchwords.data.examples import ImageDataset
from patchwords.data.loader import load_eval_batches
from patchwords.device import Device
from patchwords.evaluate.classify import eval_mode
from patchwords.evaluate.final import describe_evaluated_model
from patchwords.evaluate.held_out import choose_final_split
from patchwords.evaluate.pretraining import (
    average_metric_sums,
    build_masked_objective,
    iterate_masked_metrics,
    make_held_out_corruption,
)
from patchwords.files import explain_write_error, write_atomically
from patchwords.model.masked import PatchCorruption, gather_patches
from patchwords.model.vit import ViT
from patchwords.train.job import TrainingRun
from patchwords.train.masked import MaskedPatchLoss, count_corrupted_patches
from patchwords.train.patch_targets import patchify, unpatchify
from patchwords.train.plan import require_setting
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.run_folder import write_json
from patchwords.weights.pretrained import Pretrained

NUM_PICTURES = 8
PANEL_NAMES = ("image", "given", "predicted")
MAX_PICTURE_SIDE = 240  # pixels of the longer side at most
CHECKER_BRIGHT, CHECKER_DARK = 150, 105  # the chequers that stand for the mask embedding


def evaluate_masked_run(job: TrainingRun) -> dict[str, Any]:
    """Judge the model that a run ended with; writes masked.json and masked/*.png.

    In float32, whatever training used.
    """
    config = job.config
    assert isinstance(config, PretrainConfig)
    split, examples = choose_final_split(job.data)
    device = Device(job.device.torch_device, bf16=False)
    preprocess, learner = job.start.preprocess, job.state.model
    seen = list(iterate_masked_metrics(config, learner, examples, preprocess, device, job.workers))
    bad = [(examples.keys[index], reason) for answer in seen for index, reason in answer.bad]
    check_bad_image_share(bad, len(examples), "images", config.data_settings.max_bad)
    colours = sum((answer.colours for answer in seen), Counter[int]())
    source = Pretrained(job.start.model, preprocess, (), job.start.name)
    assert isinstance(source.model, ViT)
    patches, ratio = source.model.config.patches, require_setting(config.learn.mask_ratio)
    measured = average_metric_sums(
        sum(answer.loss for answer in seen),
        sum(answer.right for answer in seen),
        sum(answer.images for answer in seen),
    )
    result = {
        "split": split,
        **describe_evaluated_model(source, device),
        "target": config.learn.target,
        "mask_ratio": ratio,
        "patches": patches,
        "corrupted": count_corrupted_patches(patches, ratio),
        **measured,
        "baseline": max(colours.values()) / colours.total(),
        "pictures": write_reconstruction_pictures(job, examples, device),
        "skipped": [{"path": path, "reason": reason} for path, reason in bad],
    }
    write_json(job.folder.path / "masked.json", result)
    return result


def write_reconstruction_pictures(
    job: TrainingRun, examples: ImageDataset, device: Device
) -> list[dict[str, Any]]:
    """Write pictures of images spread over the examples; -> path, files and accuracy of each."""
    config, learner, preprocess = job.config, job.state.model, job.start.preprocess
    assert isinstance(config, PretrainConfig)
    objective = build_masked_objective(config, learner, preprocess)
    create_folder(job.folder.path / "masked")
    spread = np.unique(np.linspace(0, len(examples) - 1, NUM_PICTURES).astype(np.int64)).tolist()
    rows: list[dict[str, Any]] = []
    with eval_mode(learner), torch.inference_mode():
        for batch in load_eval_batches(examples.select(spread), preprocess, 1):
            if not len(batch.indices):  # it cannot be read, and is named elsewhere
                continue
            index = spread[int(batch.indices[0])]
            corruption = make_held_out_corruption(config, learner, [index]).to(device.torch_device)
            images = batch.images.to(device.torch_device)
            row: dict[str, Any] = {"path": examples.keys[index]}
            row["accuracy"] = float(objective(images, corruption)[1])
            for name, picture in zip(
                PANEL_NAMES, build_reconstruction_panels(objective, images, corruption), strict=True
            ):
                row[name] = f"masked/{len(rows)}-{name}.png"
                write_atomically(job.folder.path / row[name], encode_picture_png(picture[0]))
            rows.append(row)
    return rows


def build_reconstruction_panels(
    objective: MaskedPatchLoss, images: Tensor, corruption: PatchCorruption
) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 [B, C, H, W] -> the same, what the encoder was given of it, and with what it predicts

    The mask embedding has no colour: chequers stand for it.
    """
    size, rows = objective.patch_size, images.shape[2] // objective.patch_size
    patches = patchify(images, size)  # [B, N, C, P, P]
    shape = patches.shape[2:]
    given = gather_patches(patches.flatten(2), corruption.sources).unflatten(2, shape)
    given = torch.where(corruption.masked[..., None, None, None], make_checkerboard(given), given)
    predicted = patches.clone()
    painted = objective.target.paint(objective.forward(images, corruption).float())
    batch = torch.arange(len(images), device=images.device)[:, None]  # [B, 1], beside [B, R]
    predicted[batch, corruption.places] = painted
    return images, unpatchify(given, rows), unpatchify(predicted, rows)


def make_checkerboard(patches: Tensor) -> Tensor:
    """[..., P, P] -> uint8 [P, P]: 2 x 2 fields of two greys"""
    size = patches.shape[-1]
    half = torch.arange(size, device=patches.device) * 2 // size  # [P]
    return torch.where(half[:, None] == half, CHECKER_BRIGHT, CHECKER_DARK).to(torch.uint8)


def encode_picture_png(picture: Tensor) -> bytes:
    """uint8 [C, H, W] -> a file, no larger than a page has use for"""
    pixels = picture.permute(1, 2, 0).cpu().numpy()  # [H, W, C]
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((MAX_PICTURE_SIDE, MAX_PICTURE_SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def create_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
