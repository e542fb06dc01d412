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

from patchwords.data.bad import refuse_too_many_bad
from patchwords.data.examples import Examples
from patchwords.data.loader import eval_batches
from patchwords.device import Device
from patchwords.evaluate.classify import evaluating
from patchwords.evaluate.final import describe
from patchwords.evaluate.held_out import final_split
from patchwords.evaluate.pretraining import answers, hide, objective_of, summary
from patchwords.files import explain, write_atomically
from patchwords.model.masked import Corruption, take
from patchwords.model.vit import ViT
from patchwords.train.job import Job
from patchwords.train.masked import MaskedPrediction, corrupted
from patchwords.train.patch_targets import cut_patches, join_patches
from patchwords.train.plan import decided
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.run_folder import write_json
from patchwords.weights.pretrained import Pretrained

PICTURES = 8
NAMES = ("image", "given", "predicted")
SIDE = 240  # pixels of the longer side at most
BRIGHT, DARK = 150, 105  # the chequers that stand for the mask embedding


def evaluate_masked(job: Job) -> dict[str, Any]:
    """Judge the model that a run ended with; writes masked.json and masked/*.png.

    In float32, whatever training used.
    """
    config = job.config
    assert isinstance(config, PretrainConfig)
    split, examples = final_split(job.data)
    device = Device(job.device.torch_device, bf16=False)
    preprocess, learner = job.start.preprocess, job.state.model
    seen = list(answers(config, learner, examples, preprocess, device, job.workers))
    bad = [(examples.keys[index], reason) for answer in seen for index, reason in answer.bad]
    refuse_too_many_bad(bad, len(examples), "images", config.data_settings.max_bad)
    colours = sum((answer.colours for answer in seen), Counter[int]())
    source = Pretrained(job.start.model, preprocess, (), job.start.name)
    assert isinstance(source.model, ViT)
    patches, ratio = source.model.config.patches, decided(config.learn.mask_ratio)
    measured = summary(
        sum(answer.loss for answer in seen),
        sum(answer.right for answer in seen),
        sum(answer.images for answer in seen),
    )
    result = {
        "split": split,
        **describe(source, device),
        "target": config.learn.target,
        "mask_ratio": ratio,
        "patches": patches,
        "corrupted": corrupted(patches, ratio),
        **measured,
        "baseline": max(colours.values()) / colours.total(),
        "pictures": draw_pictures(job, examples, device),
        "skipped": [{"path": path, "reason": reason} for path, reason in bad],
    }
    write_json(job.folder.path / "masked.json", result)
    return result


def draw_pictures(job: Job, examples: Examples, device: Device) -> list[dict[str, Any]]:
    """Write pictures of images spread over the examples; -> path, files and accuracy of each."""
    config, learner, preprocess = job.config, job.state.model, job.start.preprocess
    assert isinstance(config, PretrainConfig)
    objective = objective_of(config, learner, preprocess)
    make_folder(job.folder.path / "masked")
    spread = np.unique(np.linspace(0, len(examples) - 1, PICTURES).astype(np.int64)).tolist()
    rows: list[dict[str, Any]] = []
    with evaluating(learner), torch.inference_mode():
        for batch in eval_batches(examples.select(spread), preprocess, 1):
            if not len(batch.indices):  # it cannot be read, and is named elsewhere
                continue
            index = spread[int(batch.indices[0])]
            corruption = hide(config, learner, [index]).to(device.torch_device)
            images = batch.images.to(device.torch_device)
            row: dict[str, Any] = {"path": examples.keys[index]}
            row["accuracy"] = float(objective(images, corruption)[1])
            for name, picture in zip(NAMES, panels(objective, images, corruption), strict=True):
                row[name] = f"masked/{len(rows)}-{name}.png"
                write_atomically(job.folder.path / row[name], png(picture[0]))
            rows.append(row)
    return rows


def panels(
    objective: MaskedPrediction, images: Tensor, corruption: Corruption
) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 [B, C, H, W] -> the same, what the encoder was given of it, and with what it predicts

    The mask embedding has no colour: chequers stand for it.
    """
    size, rows = objective.patch_size, images.shape[2] // objective.patch_size
    patches = cut_patches(images, size)  # [B, N, C, P, P]
    shape = patches.shape[2:]
    given = take(patches.flatten(2), corruption.sources).unflatten(2, shape)
    given = torch.where(corruption.masked[..., None, None, None], chequers(given), given)
    predicted = patches.clone()
    painted = objective.target.paint(objective.forward(images, corruption).float())
    batch = torch.arange(len(images), device=images.device)[:, None]  # [B, 1], beside [B, R]
    predicted[batch, corruption.places] = painted
    return images, join_patches(given, rows), join_patches(predicted, rows)


def chequers(patches: Tensor) -> Tensor:
    """[..., P, P] -> uint8 [P, P]: 2 x 2 fields of two greys"""
    size = patches.shape[-1]
    half = torch.arange(size, device=patches.device) * 2 // size  # [P]
    return torch.where(half[:, None] == half, BRIGHT, DARK).to(torch.uint8)


def png(picture: Tensor) -> bytes:
    """uint8 [C, H, W] -> a file, no larger than a page has use for"""
    pixels = picture.permute(1, 2, 0).cpu().numpy()  # [H, W, C]
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise explain(error, folder) from error
