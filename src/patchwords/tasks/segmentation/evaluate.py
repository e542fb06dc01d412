"""Evaluation of a segmentation model on photos with masks, and what it writes.

    segmentation.json     mIoU and pixel accuracy with intervals, IoU of each class, confusion
    predictions/*.png     the answer for each photo: an index image with a palette
    overlays/*.jpg        the worst and the best photos, with truth and answer laid over

Sizes: h w photo, K classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from patchwords.data.dataset import VALIDATION, ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.loader import check_bad_image_share
from patchwords.data.preprocess import Preprocess
from patchwords.data.sources.mask_table import IGNORE, Colour
from patchwords.data.sources.masks import get_mask_reader
from patchwords.device import Device
from patchwords.errors import DataError, did_you_mean
from patchwords.evaluation.held_out import choose_final_split, describe_evaluated_model
from patchwords.evaluation.predictions import eval_mode
from patchwords.files import explain_write_error, write_atomically
from patchwords.tasks.segmentation.metrics import PixelCounts, compute_mask_metrics
from patchwords.tasks.segmentation.model import (
    answer_photo,
    compute_window_logits,
    list_unused_parameters,
)
from patchwords.tasks.segmentation.pictures import encode_index_png, encode_overlay
from patchwords.training.logs.run_folder import write_json
from patchwords.training.training_run import TrainingRun
from patchwords.weights.pretrained import Pretrained

RESULT_FILE = "segmentation.json"
PREDICTIONS, OVERLAYS = "predictions", "overlays"
READ_AHEAD = 4  # photos that are decoded while the model works
MAX_PICTURES = 6  # of the worst photos, and of the best


class Scene(NamedTuple):
    """A photo and its mask, or why they cannot be read."""

    place: int  # in the examples
    photo: np.ndarray | None  # uint8 [h, w, 3]
    truth: np.ndarray | None  # class indices, uint8 [h, w]
    reason: str = ""


@dataclass
class MaskAnswers:
    """What an evaluation has counted."""

    counts: PixelCounts
    loss: float = 0.0  # summed over labelled pixels
    pixels: int = 0  # labelled ones that the loss is of
    bad: list[tuple[str, str]] = field(default_factory=list)  # (path, reason)


def iterate_scenes(examples: ImageDataset, classes: Sequence[str], source: str) -> Iterator[Scene]:
    """Read photos and masks in order, a few ahead; classes are matched by name."""
    reader = get_mask_reader(examples, source)
    for name in reader.table.classes:
        if name not in classes:
            raise DataError(
                f"{source}: class {name!r} is not one of the model's{did_you_mean(name, classes)}"
            )
    table = reader.table.map_to(classes)

    def read(index: int) -> Scene:
        try:
            photo = read_pixels(examples.read(index))
            return Scene(index, photo, table[reader.read(int(examples.rows[index]))])
        except (DataError, OSError) as fault:
            return Scene(index, None, None, str(fault) or type(fault).__name__)

    waiting: deque[Future[Scene]] = deque()
    with ThreadPoolExecutor(READ_AHEAD) as pool:
        for index in range(len(examples)):
            waiting.append(pool.submit(read, index))
            if len(waiting) > READ_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def answer_scenes(
    model: nn.Module,
    examples: ImageDataset,
    classes: Sequence[str],
    preprocess: Preprocess,
    device: Device,
    *,
    source: str,
    keep: Path | None = None,
    palette: Sequence[Colour] = (),
) -> MaskAnswers:
    """Segment every photo and count its pixels; with `keep`, write the answers into that folder."""
    answers = MaskAnswers(PixelCounts(len(classes)))
    with eval_mode(model), torch.inference_mode():
        for scene in iterate_scenes(examples, classes, source):
            key = examples.keys[scene.place]
            if scene.photo is None or scene.truth is None:
                answers.bad.append((key, scene.reason))
                continue
            logits = compute_window_logits(model, scene.photo, preprocess, device)
            answer = answer_photo(logits, scene.truth.shape)
            answers.counts.add(key, scene.truth, answer)
            loss, pixels = sum_cross_entropy(logits, scene.truth)
            answers.loss, answers.pixels = answers.loss + loss, answers.pixels + pixels
            if keep is not None:
                path = keep / name_answer(key)
                make_folder(path.parent)
                write_atomically(path, encode_index_png(answer, palette))
    return answers


def sum_cross_entropy(logits: torch.Tensor, truth: np.ndarray) -> tuple[float, int]:
    """Sum the cross-entropy of logits [1, K, rows, columns] over the labelled pixels.

    The mask [h, w] is brought to the size of the logits by its nearest pixels.
    """
    size = logits.shape[2:]
    whole = torch.from_numpy(truth)[None, None].float()  # [1, 1, h, w]
    target = F.interpolate(whole, size, mode="nearest-exact")[:, 0].long().to(logits.device)
    loss = F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="sum")
    return float(loss), int((target != IGNORE).sum())


def name_answer(key: str) -> str:
    """Name the file of an answer: the path of the photo, as a PNG.

    >>> name_answer("test/images/a.jpg")
    'test/images/a.png'
    """
    return str(Path(key.lstrip("/")).with_suffix(".png"))


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error


# Final evaluation of a run.


def evaluate_segmentation_run(job: TrainingRun) -> dict[str, Any]:
    """Evaluate the model that a run ended with, in float32; writes segmentation.json and pictures."""
    split, examples = choose_final_split(job.data)
    task = job.objective.describe_task()
    assert task is not None
    source = Pretrained(job.start.model, job.start.preprocess, (), job.start.name, task=task)
    return evaluate_masks(
        job.state.model,
        source,
        examples,
        Device(job.device.torch_device, bf16=False),
        folder=job.folder.path,
        data=job.data.source,
        max_bad=job.config.data_settings.max_bad,
        about={
            "split": split,
            "selected": split == VALIDATION and job.config.recipe.early_stop is not None,
            "trained_on": False,
            "of": None,
        },
    )


def evaluate_masks(
    model: nn.Module,
    source: Pretrained,
    examples: ImageDataset,
    device: Device,
    *,
    folder: Path | None,
    data: str,
    max_bad: float,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Evaluate on photos with masks; with a folder, write the result and pictures into it."""
    task = source.task
    assert task is not None
    classes, palette = task["classes"], [tuple(colour) for colour in task["palette"]]
    answers = answer_scenes(
        model,
        examples,
        classes,
        source.preprocess,
        device,
        source=data,
        keep=None if folder is None else folder / PREDICTIONS,
        palette=palette,
    )
    check_bad_image_share(answers.bad, len(examples), "images", max_bad)
    result = {
        **about,
        **describe_evaluated_model(source, device),
        **count_model_cost(model, source.preprocess, device),
        "classes": classes,
        "palette": [list(colour) for colour in palette],
        "decoder": task["decoder"],
        "loss": answers.loss / max(1, answers.pixels),
        **compute_mask_metrics(answers.counts, classes),
        "skipped": [{"path": path, "reason": reason} for path, reason in answers.bad],
    }
    if folder is not None:
        result["pictures"] = write_pictures(folder, examples, answers.counts, data, task)
        write_json(folder / RESULT_FILE, result)
    return result


def count_model_cost(
    model: nn.Module, preprocess: Preprocess, device: Device
) -> dict[str, int | None]:
    """Count the parameters that logits depend on, and the products for one crop."""
    from torch.utils.flop_counter import FlopCounterMode

    shape = (1, preprocess.channels, *preprocess.image_size)
    with eval_mode(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(shape, device=device.torch_device))
    unused = {id(value) for value in list_unused_parameters(model)}  # type: ignore[arg-type]
    used = sum(value.numel() for value in model.parameters() if id(value) not in unused)
    return {"parameters": used, "macs": counter.get_total_flops() // 2}


def write_pictures(
    folder: Path, examples: ImageDataset, counts: PixelCounts, data: str, task: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write overlays of the worst and of the best photos by their own mIoU."""
    ious = counts.image_ious()
    ranked = [int(i) for i in np.argsort(ious, kind="stable") if not np.isnan(ious[i])]
    worst = ranked[:MAX_PICTURES]
    best = [i for i in reversed(ranked) if i not in worst][:MAX_PICTURES]
    place = {key: index for index, key in enumerate(examples.keys)}
    palette = [tuple(colour) for colour in task["palette"]]
    make_folder(folder / OVERLAYS)
    rows = []
    for kind, chosen in (("worst", worst), ("best", best)):
        for rank, image in enumerate(chosen):
            key = counts.keys[image]
            part = examples.select([place[key]])
            scene = next(iterate_scenes(part, task["classes"], data))
            answer = read_answer(folder / PREDICTIONS / name_answer(key))
            if scene.photo is None or scene.truth is None or answer is None:
                continue
            row: dict[str, Any] = {"path": key, "kind": kind, "miou": float(ious[image])}
            for name, mask in (("photo", None), ("truth", scene.truth), ("answer", answer)):
                row[name] = f"{OVERLAYS}/{kind}-{rank}-{name}.jpg"
                write_atomically(folder / row[name], encode_overlay(scene.photo, mask, palette))
            rows.append(row)
    return rows


def read_answer(path: Path) -> np.ndarray | None:
    """Read an answer that was written; None if it is gone."""
    from PIL import Image

    if not path.is_file():
        return None
    with Image.open(path) as image:
        return np.asarray(image)
