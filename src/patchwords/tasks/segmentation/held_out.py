"""Evaluation of a saved segmentation model on a folder of photos and masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwords.data.dataset import TRAIN
from patchwords.data.open import open_data
from patchwords.data.splits import fingerprint_dataset
from patchwords.errors import ConfigError, WeightsError
from patchwords.evaluation.held_out import (
    HeldOutSelection,
    read_run_splits,
    recognise_run_images,
    select_held_out,
)
from patchwords.evaluation.predictions import LoadedModel
from patchwords.files import claim_output_folder
from patchwords.tasks.segmentation.evaluate import evaluate_masks
from patchwords.tasks.segmentation.folder import TASK, open_segmenter
from patchwords.training.logs.run_folder import (
    RunFolder,
    describe_data,
    describe_environment,
    write_json,
)


@dataclass(frozen=True)
class MaskEvaluation:
    """Metrics of a segmentation model, and the photos that they are of."""

    values: dict[str, Any]
    selection: HeldOutSelection


def evaluate_segmenter(
    loaded: LoadedModel,
    source: str,
    split: str,
    max_bad: float,
    output: Path | None,
    overwrite: bool,
) -> MaskEvaluation:
    """Evaluate on the photos of a split that the model's run was not trained on.

    With `output`, segmentation.json, masks and overlays are written into that folder.
    """
    task = loaded.source.task
    if task is None or task.get("name") != TASK:
        raise WeightsError(f"{loaded.name} is of an unknown task")
    if loaded.device.int8:
        raise ConfigError("--precision int8 is for classification; take fp32 or bf16")
    data = open_data(source, need_labels=False)
    recorded = {} if loaded.folder is None else read_run_splits(loaded.folder)
    renamed = {} if loaded.folder is None else recognise_run_images(loaded.folder, data)
    selection = select_held_out(data, recorded, split, renamed)
    folder = claim_output_folder(output, overwrite)
    segmenter = open_segmenter(loaded.source, loaded.device)
    values = evaluate_masks(
        segmenter.model,
        loaded.source,
        selection.examples,
        loaded.device,
        folder=folder,
        data=source,
        max_bad=max_bad,
        about={
            "split": selection.split,
            "selected": False,
            "trained_on": TRAIN in selection.split.split("+") if recorded else None,
            "of": loaded.name,
        },
    )
    if folder is not None:
        run = RunFolder(folder)
        about = {"source": source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
        write_json(run.environment, describe_environment(loaded.device.describe(), about))
        judged = replace(data, splits={selection.split: selection.examples})
        write_json(run.data, describe_data(judged, {}))
    return MaskEvaluation(values, selection)
