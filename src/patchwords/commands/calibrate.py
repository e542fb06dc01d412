"""`patchwords calibrate RUN`: what int8 needs to know of a model, and what int8 costs it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from patchwords.commands.evaluator import Images

if TYPE_CHECKING:
    from torch import Tensor

    from patchwords.data.examples import Data, Examples
    from patchwords.model.ranges import Ranges
    from patchwords.weights.pretrained import Pretrained

AT_ONCE = 32  # images, in calibration and where speed is measured


@dataclass(frozen=True)
class Calibrate:
    """Prepare a trained model for --precision int8 of predict, evaluate and app, on a CPU.

    The model sees some training images, in float32, and the ranges of what goes through its blocks
    are written beside the weights, as model/ranges.safetensors. Then held-out images are asked in
    float32, bfloat16 and int8: what each costs in accuracy, and what it gains in speed.

    RUN is a run folder or a model folder of patchwords, of a ViT with plain attention.

    Example: patchwords calibrate runs/photos

    Example: patchwords predict runs/photos new/ --precision int8
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """a run folder or a model folder"""
    data: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="DATA")] = None
    """a folder, CSV, parquet, tar shards, hf:NAME or digits; none given: the run's own"""
    images: int = 256
    """training images to find the ranges on"""
    judged: int = 2000
    """held-out images to measure the cost on; all of them where there are no more"""
    seed: int = 0
    """which training images are drawn"""
    json: bool = False
    """print everything as JSON"""
    workers: int | None = None
    """processes that decode images; none given: as many as are useful"""
    read: Images = field(default_factory=Images)


def run(config: Calibrate) -> int:
    from patchwords.errors import ConfigError
    from patchwords.evaluate.held_out import read_recorded, select
    from patchwords.weights.ranges import write_ranges

    for flag, value in {"--images": config.images, "--judged": config.judged}.items():
        if value < 1:
            raise ConfigError(f"{flag} {value} must be at least 1")
    source, home = open_model(config.run)
    data, training = open_training(config)
    recorded = read_recorded(Path(config.run))
    selection = select(data, recorded)
    seen, judged = draw(config, training, selection.examples)
    judged = as_known(source, config, judged)
    ranges, count = find_ranges(config, source, seen)
    measured = measure(config, source, ranges, judged)
    results = {
        "run": config.run,
        "model": source.architecture,
        "calibrated_on": count,
        "ranges": str(write_ranges(home, source.model, ranges, count)),
        "data": data.source,
        "split": selection.split,
        "trained_on": False if recorded else None,
        **measured,
    }
    if config.json:
        print(jsonlib.dumps(results))
    else:
        show(results)
    return 0


def open_model(run: str) -> tuple[Pretrained, Path]:
    """The model and its folder; raises where it cannot be quantised, or is in no folder of ours."""
    from patchwords.errors import ConfigError
    from patchwords.model.int8 import require_int8
    from patchwords.weights.store import from_pretrained

    source = from_pretrained(run)
    source.require_classes(run)
    require_int8(source.model)
    if source.home is None or not Path(run).exists():
        raise ConfigError(
            f"{run} is no folder of patchwords, and ranges are written beside the weights: run "
            f"patchwords convert {run} DST --to patchwords, then patchwords calibrate DST DATA"
        )
    return source, source.home


def open_training(config: Calibrate) -> tuple[Data, Examples]:
    """DATA or the run's own, and the training images of it."""
    from patchwords.commands.training_images import Wanted
    from patchwords.errors import ConfigError

    columns = config.read.image_column, config.read.label_column
    wanted = Wanted(config.run, f"patchwords calibrate {config.run}", config.data, *columns)
    data = wanted.open()
    if data is None:
        raise ConfigError(
            f"{config.run} does not say which images it was trained on: name them, patchwords "
            f"calibrate {config.run} DATA"
        )
    return data, wanted.training(data)[0]


def draw(config: Calibrate, training: Examples, held_out: Examples) -> tuple[Examples, Examples]:
    """The images to find ranges on, and those to measure the cost on: never the same.

    Data that nobody has divided are all to train on and all held out: half of them are for ranges.
    """
    import numpy as np

    from patchwords.evaluate.robustness.images import subset
    from patchwords.noise import numpy_generator

    def places(examples: Examples) -> list[tuple[str, int]]:
        return list(zip(examples.keys, examples.sizes.tolist(), strict=True))

    most = len(training)
    if not set(places(training)).isdisjoint(places(held_out)):
        most = (most + 1) // 2
    order = numpy_generator(config.seed, "calibrate").permutation(len(training))
    seen = training.select(np.sort(order[: min(config.images, most)]))
    known = set(places(seen))
    judged = held_out.select([i for i, at in enumerate(places(held_out)) if at not in known])
    return seen, judged.select(subset(judged, min(config.judged, len(judged))))


def as_known(source: Pretrained, config: Calibrate, judged: Examples) -> Examples:
    """With labels that are the model's; raises DataError for an unknown class."""
    from patchwords.evaluate.held_out import as_model_knows
    from patchwords.evaluate.imagenet import in_words_of

    judged = in_words_of(judged, source.labels, config.run)
    return as_model_knows(judged, source.labels, config.data or config.run)


def find_ranges(config: Calibrate, source: Pretrained, seen: Examples) -> tuple[Ranges, int]:
    """The ranges, and the number of images that could be read."""
    from patchwords.commands.doctor_summary import following
    from patchwords.data.bad import refuse_too_many_bad
    from patchwords.data.loader import eval_batches
    from patchwords.data.workers import useful_workers
    from patchwords.model.ranges import ranges_of

    workers = useful_workers(seen) if config.workers is None else config.workers
    bad: list[tuple[str, str]] = []

    with following("finding ranges") as progress:

        def batches() -> Iterator[Tensor]:
            done = 0
            for batch in eval_batches(seen, source.preprocess, AT_ONCE, workers):
                bad.extend((seen.keys[index], reason) for index, reason in batch.bad)
                if len(batch.indices):
                    yield source.preprocess.normalise(batch.images)
                done += len(batch.indices) + len(batch.bad)
                progress(done, len(seen))

        ranges = ranges_of(source.model, batches())
    refuse_too_many_bad(bad, len(seen), "images", config.read.max_bad)
    return ranges, len(seen) - len(bad)


def measure(
    config: Calibrate, source: Pretrained, ranges: Ranges, judged: Examples
) -> dict[str, Any]:
    """What each precision answers, and how fast."""
    from patchwords.commands.doctor_summary import following
    from patchwords.data.loader import eval_batches
    from patchwords.evaluate.ask import ask
    from patchwords.evaluate.rounding import cost, in_precisions, paces, timed_on

    subjects = in_precisions(config.run, source, ranges, config.workers)
    with following("asking in each precision") as progress:
        answers = ask(subjects, judged, config.read.max_bad, progress)
    rows = cost(dict(zip((s.device.precision for s in subjects), answers, strict=True)))
    some = next(
        batch.images
        for batch in eval_batches(judged, source.preprocess, AT_ONCE)
        if len(batch.indices)
    )
    speeds = paces(subjects, some)
    return {
        "images": len(answers[0]),
        "precisions": [{**row, "images_per_second": speeds[row["precision"]]} for row in rows],
        "timed_on": timed_on(some),
    }


def show(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ("accuracy", "less fp32", "95 %", "as fp32", "95 %", "images/s")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in results["precisions"]:
        table.add_row(row["precision"], *cells(row))
    console = Console()
    console.print(table)
    timed = results["timed_on"]
    lines = [
        f"asked: {results['images']:,} images of {results['split']}, {results['data']}; less fp32: "
        "points of accuracy; as fp32: the same answer, right or wrong",
        f"images/s: the model alone, {timed['batch']} images at a time, {timed['threads']} "
        f"thread{'s' * (timed['threads'] > 1)} of {timed['device']}",
        f"ranges of {results['calibrated_on']:,} training images: {results['ranges']}",
        f"now: patchwords predict {results['run']} IMAGES --precision int8",
    ]
    if results["trained_on"] is None:
        lines.append("beware: what the model was trained on is not recorded with it")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Of one precision; nothing is said of fp32 beside itself."""
    from patchwords.commands.compare_summary import points

    speed = f"{row['images_per_second']:,.1f}"
    if row["precision"] == "fp32":
        return f"{row['accuracy']:.2%}", "", "", "", "", speed
    ends = f"{row['agreement_low']:.1%} to {row['agreement_high']:.1%}"
    apart = points(row, "difference")
    return f"{row['accuracy']:.2%}", *apart, f"{row['agreement']:.2%}", ends, speed
