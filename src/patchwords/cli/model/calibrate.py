"""`patchwords calibrate RUN`: what int8 needs to know of a model, and what int8 costs it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from patchwords.cli.options import DataOptions

if TYPE_CHECKING:
    from torch import Tensor

    from patchwords.data.dataset import DatasetSplits, ImageDataset
    from patchwords.models.inference.calibration import ActivationRanges
    from patchwords.weights.pretrained import Pretrained

CALIBRATION_BATCH_SIZE = 32  # images, in calibration and where speed is measured


@dataclass(frozen=True)
class CalibrateCommand:
    """Prepare a trained ViT for --precision int8 of predict, evaluate and app, on a CPU.

    The model runs on some training images in float32, and the ranges of its activations are written
    next to the weights, as model/ranges.safetensors. Then float32, bfloat16 and int8 are compared
    on held-out images: what each precision costs in accuracy and gains in speed.

    Example: patchwords calibrate runs/photos

    Example: patchwords predict runs/photos new/ --precision int8
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """run folder or model folder"""
    data: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="DATA")] = None
    """labelled images: a folder, CSV, parquet, tar shards, hf:NAME or digits; default: the run's
    own data"""
    images: int = 256
    """number of training images to calibrate on"""
    judged: int = 2000
    """number of held-out images to measure the cost on, or all if there are fewer"""
    seed: int = 0
    """seed of the choice of training images"""
    json: bool = False
    """print the results as JSON"""
    workers: int | None = None
    """processes that decode images; 0: decode in this process; default: by the number of CPU cores
    """
    read: DataOptions = field(default_factory=DataOptions)


def run_calibrate(config: CalibrateCommand) -> int:
    from patchwords.errors import ConfigError
    from patchwords.evaluation.held_out import read_run_splits, select_held_out
    from patchwords.weights.pretrained import save_activation_ranges

    for flag, value in {"--images": config.images, "--judged": config.judged}.items():
        if value < 1:
            raise ConfigError(f"{flag} {value} must be at least 1")
    source, home = open_quantisable_model(config.run)
    data, training = open_calibration_data(config)
    recorded = read_run_splits(Path(config.run), data)
    selection = select_held_out(data, recorded)
    seen, judged = split_calibration_images(config, training, selection.examples)
    judged = match_model_labels(source, config, judged)
    ranges, count = find_activation_ranges(config, source, seen)
    measured = measure_precisions(config, source, ranges, judged)
    results = {
        "run": config.run,
        "model": source.architecture,
        "calibrated_on": count,
        "ranges": str(save_activation_ranges(home, source.model, ranges, count)),
        "data": data.source,
        "split": selection.split,
        "trained_on": False if recorded else None,
        **measured,
    }
    if config.json:
        print(jsonlib.dumps(results))
    else:
        print_precisions(results)
    return 0


def open_quantisable_model(run: str) -> tuple[Pretrained, Path]:
    """Load a model that can be quantised, with its folder; raises ConfigError for another one."""
    from patchwords.errors import ConfigError
    from patchwords.models.inference.int8 import check_int8_support
    from patchwords.weights.store import from_pretrained

    source = from_pretrained(run)
    source.require_classes(run)
    check_int8_support(source.model)
    if source.home is None or not Path(run).exists():
        raise ConfigError(
            f"{run} is not a folder of patchwords, and ranges are stored next to the weights: run "
            f"patchwords convert {run} DST --to patchwords, then patchwords calibrate DST DATA"
        )
    return source, source.home


def open_calibration_data(config: CalibrateCommand) -> tuple[DatasetSplits, ImageDataset]:
    """Open DATA or the run's own data, and find its training images."""
    from patchwords.errors import ConfigError
    from patchwords.report.run_data import DataRequest

    columns = config.read.image_column, config.read.label_column
    request = DataRequest(config.run, f"patchwords calibrate {config.run}", config.data, *columns)
    data = request.open()
    if data is None:
        raise ConfigError(
            f"{config.run} does not record its training images: give them, patchwords "
            f"calibrate {config.run} DATA"
        )
    return data, request.select_training(data)[0]


def split_calibration_images(
    config: CalibrateCommand, training: ImageDataset, held_out: ImageDataset
) -> tuple[ImageDataset, ImageDataset]:
    """Choose the images to calibrate on, and others to measure the cost on.

    Images of data without splits are both training and held-out images: half are for calibration.
    """
    import numpy as np

    from patchwords.evaluation.robustness.perturbation import draw_stratified_subset
    from patchwords.rng import numpy_generator

    def identify(examples: ImageDataset) -> list[tuple[str, int]]:
        return list(zip(examples.keys, examples.sizes.tolist(), strict=True))

    available = len(training)
    if not set(identify(training)).isdisjoint(identify(held_out)):
        available = (available + 1) // 2
    order = numpy_generator(config.seed, "calibrate").permutation(len(training))
    seen = training.select(np.sort(order[: min(config.images, available)]))
    used = set(identify(seen))
    judged = held_out.select([i for i, key in enumerate(identify(held_out)) if key not in used])
    return seen, judged.select(draw_stratified_subset(judged, min(config.judged, len(judged))))


def match_model_labels(
    source: Pretrained, config: CalibrateCommand, judged: ImageDataset
) -> ImageDataset:
    """Map the labels to the model's classes; raises DataError for an unknown class."""
    from patchwords.evaluation.held_out import map_to_model_labels
    from patchwords.evaluation.imagenet import rename_wnid_classes

    judged = rename_wnid_classes(judged, source.labels, config.run)
    return map_to_model_labels(judged, source.labels, config.data or config.run)


def find_activation_ranges(
    config: CalibrateCommand, source: Pretrained, seen: ImageDataset
) -> tuple[ActivationRanges, int]:
    """Find the ranges of activations; -> they and the number of images that could be read."""
    from patchwords.data.loader import check_bad_image_share, choose_num_workers, load_eval_batches
    from patchwords.models.inference.calibration import collect_activation_ranges
    from patchwords.training.logs.progress import show_progress

    workers = choose_num_workers(seen) if config.workers is None else config.workers
    bad: list[tuple[str, str]] = []

    with show_progress("finding ranges") as progress:

        def batches() -> Iterator[Tensor]:
            done = 0
            for batch in load_eval_batches(
                seen, source.preprocess, CALIBRATION_BATCH_SIZE, workers
            ):
                bad.extend((seen.keys[index], reason) for index, reason in batch.bad)
                if len(batch.indices):
                    yield source.preprocess.normalise(batch.images)
                done += len(batch.indices) + len(batch.bad)
                progress(done, len(seen))

        ranges = collect_activation_ranges(source.model, batches())
    check_bad_image_share(bad, len(seen), "images", config.read.max_bad)
    return ranges, len(seen) - len(bad)


def measure_precisions(
    config: CalibrateCommand, source: Pretrained, ranges: ActivationRanges, judged: ImageDataset
) -> dict[str, Any]:
    """Measure accuracy and speed in each precision."""
    from patchwords.data.loader import load_eval_batches
    from patchwords.evaluation.compare import predict_with_models
    from patchwords.evaluation.quantisation import (
        build_precision_variants,
        compare_precisions,
        describe_timing_setup,
        measure_precision_throughput,
    )
    from patchwords.training.logs.progress import show_progress

    subjects = build_precision_variants(config.run, source, ranges, config.workers)
    with show_progress("running in each precision") as progress:
        predictions = predict_with_models(subjects, judged, config.read.max_bad, progress)
    rows = compare_precisions(
        dict(zip((s.device.precision for s in subjects), predictions, strict=True))
    )
    timed = next(
        batch.images
        for batch in load_eval_batches(judged, source.preprocess, CALIBRATION_BATCH_SIZE)
        if len(batch.indices)
    )
    speeds = measure_precision_throughput(subjects, timed)
    return {
        "images": len(predictions[0]),
        "precisions": [{**row, "images_per_second": speeds[row["precision"]]} for row in rows],
        "timed_on": describe_timing_setup(timed),
    }


def print_precisions(results: dict[str, Any]) -> None:
    from patchwords.cli.format import make_console, make_table, print_lines

    table = make_table("", "accuracy", "less fp32", "95 %", "as fp32", "95 %", "images/s")
    for row in results["precisions"]:
        table.add_row(row["precision"], *format_precision_cells(row))
    console = make_console()
    console.print(table)
    timed = results["timed_on"]
    lines = [
        f"measured on {results['images']:,} images of {results['split']}, {results['data']}; less fp32: "
        "points of accuracy; as fp32: the same prediction, right or wrong",
        f"images/s: the model alone, {timed['batch']} images at a time, {timed['threads']} "
        f"thread{'s' * (timed['threads'] > 1)} of {timed['device']}",
        f"ranges of {results['calibrated_on']:,} training images: {results['ranges']}",
        f"next: patchwords predict {results['run']} IMAGES --precision int8",
    ]
    if results["trained_on"] is None:
        lines.append("warning: the training images of the model are not recorded")
    print_lines(console, *lines)


def format_precision_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Format the row of one precision; fp32 is not compared with itself."""
    from patchwords.cli.evaluate.compare import format_point_cells

    speed = f"{row['images_per_second']:,.1f}"
    if row["precision"] == "fp32":
        return f"{row['accuracy']:.2%}", "", "", "", "", speed
    ends = f"{row['agreement_low']:.1%} to {row['agreement_high']:.1%}"
    difference = format_point_cells(row, "difference")
    return f"{row['accuracy']:.2%}", *difference, f"{row['agreement']:.2%}", ends, speed
