"""`patchwords predict MODEL IMAGES...`: what a trained model sees in new images."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import tyro

from patchwords.device import DeviceName, PrecisionName

if TYPE_CHECKING:
    from patchwords.data.examples import Examples
    from patchwords.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Predict:
    """Name the classes of images, the likeliest first.

    MODEL is a run folder or a model folder. IMAGES are files, folders (with all that is in them)
    and patterns such as 'new/*.jpg'. Images that cannot be read are named on stderr and left out.

    Exit code: 0 done, 2 when an image could not be read.

    Example: patchwords predict runs/photos new/ --csv answers.csv
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """a run folder or a model folder"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]
    """files, folders and patterns"""
    top_k: int = 5
    """how many classes to name per image"""
    csv: Path | None = None
    """write the answers here, a row per image and class, instead of a table on the screen"""
    json: bool = False
    """print a line of JSON per image"""
    overwrite: bool = False
    """write over an existing CSV"""
    batch_size: int = 32
    """images at once"""
    device: DeviceName = "auto"
    """where to compute"""
    precision: PrecisionName = "fp32"
    """of matrix products; bf16 is faster where the machine has it, and rounds the scores"""
    workers: int | None = None
    """processes that decode images"""


class Sink(Protocol):
    """Takes answers as they come."""

    def add(self, path: str, answers: list[dict[str, Any]]) -> None: ...
    def close(self, whole: bool) -> None: ...


def run(config: Predict) -> int:
    """Stream the images through the model; memory does not grow with their number."""
    import sys

    from patchwords.errors import ConfigError
    from patchwords.files import refuse_csv

    for name, value in {"--top-k": config.top_k, "--batch-size": config.batch_size}.items():
        if value < 1:
            raise ConfigError(f"{name} {value} must be at least 1")
    if config.csv is not None:
        refuse_csv(config.csv, config.overwrite)
    from patchwords.data.open import open_images
    from patchwords.weights.store import from_pretrained

    source = from_pretrained(config.model)
    examples = open_images(config.images)
    sink = choose_sink(config, len(examples))
    unreadable, whole = 0, False
    try:
        for path, answers, reason in answer(config, source, examples):
            if reason is None:
                sink.add(path, answers)
            else:
                unreadable += 1
                print(f"patchwords: {path}: {reason}", file=sys.stderr)
        whole = True
    finally:
        sink.close(whole)
    return 2 if unreadable else 0


def answer(
    config: Predict, source: Pretrained, examples: Examples
) -> Iterator[tuple[str, list[dict[str, Any]], str | None]]:
    """(path, best classes, None) of each image in turn, or (path, [], reason)."""
    from patchwords.data.loader import eval_batches
    from patchwords.data.workers import useful_workers
    from patchwords.device import choose_device

    device = choose_device(config.device, config.precision)
    source.model.to(device.torch_device)
    workers = config.workers if config.workers is not None else useful_workers(examples)
    for batch in eval_batches(examples, source.preprocess, config.batch_size, workers):
        for index, reason in batch.bad:
            yield examples.keys[index], [], reason
        if len(batch.indices):
            scores = source.scores(batch.images, device)  # [B, classes]
            for index, row in zip(batch.indices.tolist(), scores, strict=True):
                yield examples.keys[index], source.name(row, config.top_k), None


def choose_sink(config: Predict, images: int) -> Sink:
    if config.csv is not None:
        return CsvFile(config.csv, images)
    return JsonLines() if config.json else Screen(config.top_k)


class JsonLines:
    """{"path": ..., "predictions": [{"label", "score"}, ...]} a line."""

    def add(self, path: str, answers: list[dict[str, Any]]) -> None:
        print(jsonlib.dumps({"path": path, "predictions": answers}), flush=True)

    def close(self, whole: bool) -> None:
        pass


class CsvFile:
    """path,rank,label,score; in place only when all of it is there. Shows how far it is."""

    def __init__(self, path: Path, images: int) -> None:
        import csv

        from rich.console import Console
        from rich.progress import Progress

        from patchwords.files import explain

        self.path, self.part = path, path.with_name(f".{path.name}.part")
        try:
            self.file = open(self.part, "w", newline="", errors="surrogateescape")  # noqa: SIM115
        except OSError as error:
            raise explain(error, path) from error
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow(["path", "rank", "label", "score"])
        console = Console(stderr=True)
        self.progress = Progress(console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task(f"to {path}", total=images)
        self.progress.start()
        self.answered = 0

    def add(self, path: str, answers: list[dict[str, Any]]) -> None:
        for rank, best in enumerate(answers, 1):
            self.rows.writerow([path, rank, best["label"], f"{best['score']:.6f}"])
        self.answered += 1
        self.progress.advance(self.task)

    def close(self, whole: bool) -> None:
        self.progress.stop()
        self.file.close()
        if whole:
            self.part.replace(self.path)
            print(f"{self.answered:,} images answered: {self.path}")
        else:
            self.part.unlink()


class Screen:
    """A line per image, wide or narrow as the names need."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def add(self, path: str, answers: list[dict[str, Any]]) -> None:
        named = "  ".join(f"{best['label']} {best['score']:.1%}" for best in answers)
        print(f"{path}: {named}", flush=True)

    def close(self, whole: bool) -> None:
        pass
