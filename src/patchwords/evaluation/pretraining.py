"""Final evaluation of learning from hidden patches: held-out images, and pictures of some.

What is hidden of a held-out image is a function of (seed, image): the same at every evaluation,
so that two of them differ by the weights alone.
Sizes: B images, C channels, H W image, P patch size, N patches, R corrupted or hidden patches of an
image, V pixels of a patch.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import ImageBatch, check_bad_image_share, load_eval_batches
from patchwords.device import Device
from patchwords.errors import DataError
from patchwords.evaluation.held_out import (
    EVAL_BATCH_SIZE,
    choose_final_split,
    describe_evaluated_model,
)
from patchwords.evaluation.predictions import eval_mode
from patchwords.files import explain_write_error, write_atomically
from patchwords.models.pretraining.masked import gather_patches
from patchwords.models.vit import ViT
from patchwords.training.config import PretrainConfig
from patchwords.training.logs.run_folder import write_json
from patchwords.training.objectives.mae import (
    MaskedAutoencoding,
    count_visible_patches,
    normalise_patches,
)
from patchwords.training.objectives.masked import (
    MaskedPatchPrediction,
    count_corrupted_patches,
    patchify,
    unpatchify,
)
from patchwords.training.plan import require_setting
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained

NUM_PICTURES = 8
PANEL_NAMES = ("image", "given", "predicted")
MAX_PICTURE_SIDE = 240  # maximum of the longer side, in pixels
CHECKER_BRIGHT, CHECKER_DARK = 150, 105  # greys of the checkerboard of masked patches


def evaluate_masked_run(job: TrainingRun) -> dict[str, Any]:
    """Evaluate the model that a run ended with; writes masked.json and masked/*.png.

    In float32, whatever training used.
    """
    config, objective = job.config, get_masked_objective(job)
    assert isinstance(config, PretrainConfig)
    split, examples = choose_final_split(job.data)
    device = Device(job.device.torch_device, bf16=False)
    bad: list[tuple[str, str]] = []
    colours: Counter[int] = Counter()
    loss, right, images = 0.0, 0.0, 0
    with eval_mode(job.state.model), torch.inference_mode(), device.autocast():
        for batch in iterate_held_out(job, examples, device, bad):
            mean, metrics = objective.loss(job.state.model, batch, step=0)
            loss, images = loss + float(mean) * len(batch), images + len(batch)
            right += float(metrics["accuracy"]) * len(batch)
            hidden = objective.target.wanted(objective.hidden_patches(batch))
            colours.update(objective.target.colours(hidden).flatten().tolist())
    source = Pretrained(job.start.model, job.start.preprocess, (), job.start.name)
    assert isinstance(source.model, ViT)
    patches, ratio = source.model.config.patches, require_setting(config.learn.mask_ratio)

    def picture(batch: ImageBatch) -> tuple[dict[str, float], Panels]:
        accuracy = objective.loss(job.state.model, batch, step=0)[1]["accuracy"]
        panels = build_reconstruction_panels(objective, job.state.model, batch)
        return {"accuracy": float(accuracy)}, panels

    result = {
        "split": split,
        **describe_evaluated_model(source, device),
        "target": config.learn.target,
        "mask_ratio": ratio,
        "patches": patches,
        "corrupted": count_corrupted_patches(patches, ratio),
        **{"loss": loss / images, "accuracy": right / images, "images": images},
        "baseline": max(colours.values()) / colours.total(),
        "pictures": write_reconstruction_pictures(job, examples, device, "masked", picture),
        "skipped": [{"path": path, "reason": reason} for path, reason in bad],
    }
    write_json(job.folder.path / "masked.json", result)
    return result


def evaluate_mae_run(job: TrainingRun) -> dict[str, Any]:
    """Evaluate the masked autoencoder that a run ended with; writes mae.json and mae/*.png.

    In float32, whatever training used. "baseline" is the loss of predicting every hidden patch in
    its mean colour, "explained" the share of it that the model takes away.
    """
    config, objective = job.config, job.objective
    assert isinstance(config, PretrainConfig)
    assert isinstance(objective, MaskedAutoencoding)
    split, examples = choose_final_split(job.data)
    device = Device(job.device.torch_device, bf16=False)
    bad: list[tuple[str, str]] = []
    loss, baseline, images = 0.0, 0.0, 0
    with eval_mode(job.state.model), torch.inference_mode(), device.autocast():
        for batch in iterate_held_out(job, examples, device, bad):
            losses = measure_mae(objective, job.state.model, batch)
            loss, baseline = loss + losses[0] * len(batch), baseline + losses[1] * len(batch)
            images += len(batch)
    source = Pretrained(job.start.model, job.start.preprocess, (), job.start.name)
    assert isinstance(source.model, ViT)
    patches, ratio = source.model.config.patches, require_setting(config.learn.mask_ratio)

    def picture(batch: ImageBatch) -> tuple[dict[str, float], Panels]:
        found = measure_mae(objective, job.state.model, batch)
        panels = build_mae_panels(objective, job.state.model, batch)
        return {"explained": compute_explained_share(*found)}, panels

    result = {
        "objective": "mae",
        "split": split,
        **describe_evaluated_model(source, device),
        "mask_ratio": ratio,
        "patches": patches,
        "hidden": patches - count_visible_patches(patches, ratio),
        "decoder": [config.learn.decoder_width, config.learn.decoder_depth],
        **{"loss": loss / images, "baseline": baseline / images, "images": images},
        "explained": compute_explained_share(loss, baseline),
        "pictures": write_reconstruction_pictures(job, examples, device, "mae", picture),
        "skipped": [{"path": path, "reason": reason} for path, reason in bad],
    }
    write_json(job.folder.path / "mae.json", result)
    return result


def iterate_held_out(
    job: TrainingRun, examples: ImageDataset, device: Device, bad: list[tuple[str, str]]
) -> Iterator[ImageBatch]:
    """Iterate over all held-out images as the objective prepares them; note unreadable ones."""
    images = 0
    for decoded in load_eval_batches(examples, job.start.preprocess, EVAL_BATCH_SIZE, job.workers):
        bad += [(examples.keys[index], reason) for index, reason in decoded.bad]
        if len(decoded):
            images += len(decoded)
            yield job.objective.prepare_held_out(decoded.to(device.torch_device))
    check_bad_image_share(bad, len(examples), "images", job.config.data_settings.max_bad)
    if not images:
        raise DataError("none of the held-out images can be read; patchwords doctor says why")


def measure_mae(
    objective: MaskedAutoencoding, learner: nn.Module, batch: ImageBatch
) -> tuple[float, float]:
    """Measure the loss of a batch; -> it, and that of each hidden patch in its mean colour."""
    wanted, _, _ = normalise_patches(objective.hidden_pixels(batch))  # [B, R, V]
    error = objective.predict(learner, batch) - wanted
    return float(error.square().mean()), float(wanted.square().mean())


def compute_explained_share(loss: float, baseline: float) -> float:
    """Compute the share of the variance within hidden patches that predictions explain."""
    return 1 - loss / baseline if baseline else 0.0


def get_masked_objective(job: TrainingRun) -> MaskedPatchPrediction:
    assert isinstance(job.objective, MaskedPatchPrediction)
    return job.objective


Panels = tuple[Tensor, Tensor, Tensor]  # the image, what was given of it, what is predicted


def write_reconstruction_pictures(
    job: TrainingRun,
    examples: ImageDataset,
    device: Device,
    folder: str,
    picture: Callable[[ImageBatch], tuple[dict[str, float], Panels]],
) -> list[dict[str, Any]]:
    """Write images spread over the examples; return path, files and scores of each."""
    create_folder(job.folder.path / folder)
    spread = np.unique(np.linspace(0, len(examples) - 1, NUM_PICTURES).astype(np.int64))
    rows: list[dict[str, Any]] = []
    with eval_mode(job.state.model), torch.inference_mode():
        for decoded in load_eval_batches(examples.select(spread), job.start.preprocess, 1):
            if not len(decoded):  # unreadable: reported elsewhere
                continue
            placed = replace(decoded, indices=torch.from_numpy(spread)[decoded.indices])
            batch = job.objective.prepare_held_out(placed.to(device.torch_device))
            scores, panels = picture(batch)
            row: dict[str, Any] = {"path": examples.keys[int(batch.indices[0])], **scores}
            for name, panel in zip(PANEL_NAMES, panels, strict=True):
                row[name] = f"{folder}/{len(rows)}-{name}.png"
                write_atomically(job.folder.path / row[name], encode_picture_png(panel[0]))
            rows.append(row)
    return rows


def build_reconstruction_panels(
    objective: MaskedPatchPrediction, learner: nn.Module, batch: ImageBatch
) -> Panels:
    """-> the images, what the encoder was given of them, and with what it predicts

    Each uint8 [B, C, H, W]. The mask embedding has no colour: chequers stand for it.
    """
    images, corruption = batch.images, batch.targets
    size, rows = objective.patch_size, images.shape[2] // objective.patch_size
    patches = patchify(images, size)  # [B, N, C, P, P]
    shape = patches.shape[2:]
    given = gather_patches(patches.flatten(2), corruption.sources).unflatten(2, shape)
    given = torch.where(corruption.masked[..., None, None, None], make_checkerboard(given), given)
    predicted = patches.clone()
    painted = objective.target.paint(objective.predict(learner, batch))
    row = torch.arange(len(images), device=images.device)[:, None]  # [B, 1], next to [B, R]
    predicted[row, corruption.places] = painted
    return images, unpatchify(given, rows), unpatchify(predicted, rows)


def build_mae_panels(
    objective: MaskedAutoencoding, learner: nn.Module, batch: ImageBatch
) -> Panels:
    """-> the images, their visible patches, and with the predictions for hidden ones

    Each uint8 [B, C, H, W]. Chequers stand for what is hidden.
    """
    images, hidden = batch.images, batch.targets.hidden
    size, rows = objective.patch_size, images.shape[2] // objective.patch_size
    patches = patchify(images, size)  # [B, N, C, P, P]
    given, predicted = patches.clone(), patches.clone()
    row = torch.arange(len(images), device=images.device)[:, None]  # [B, 1], next to [B, R]
    given[row, hidden] = make_checkerboard(patches)
    predicted[row, hidden] = objective.paint(learner, batch)
    return images, unpatchify(given, rows), unpatchify(predicted, rows)


def make_checkerboard(patches: Tensor) -> Tensor:
    """[..., P, P] -> uint8 [P, P]: 2 x 2 squares of two greys"""
    size = patches.shape[-1]
    half = torch.arange(size, device=patches.device) * 2 // size  # [P]
    return torch.where(half[:, None] == half, CHECKER_BRIGHT, CHECKER_DARK).to(torch.uint8)


def encode_picture_png(picture: Tensor) -> bytes:
    """Encode uint8 [C, H, W] as PNG, no larger than the page needs."""
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
