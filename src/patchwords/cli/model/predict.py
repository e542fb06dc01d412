"""`patchwords predict MODEL IMAGES...`: what a trained model sees in new images."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import tyro

from patchwords.device import DeviceName, InferencePrecision
from patchwords.errors import escape_control_characters

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from patchwords.export.runtime import ExportedModel
    from patchwords.tasks.segmentation.folder import Segmenter
    from patchwords.weights.pretrained import Pretrained

    Scores = Callable[[Tensor], np.ndarray]  # uint8 [B, C, H, W] -> probabilities [B, classes]


@dataclass(frozen=True)
class PredictCommand:
    """Classify images with a trained model, the most likely class first.

    A segmentation model writes a mask and an overlay for each image instead, into --output, and
    prints the share of each class.

    Images that cannot be read are named on stderr and left out.

    Exit code: 0 done, 2 if an image could not be read.

    Example: patchwords predict runs/photos new/ --csv answers.csv
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """run folder, model folder, or exported .onnx or .xml file"""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES")]
    """files, folders (searched recursively) and patterns such as 'new/*.jpg'"""
    top_k: int = 5
    """number of classes to print per image"""
    csv: Path | None = None
    """CSV file to write, a row per image and class; default: print a line per image"""
    output: Path | None = None
    """new folder for masks (index PNGs with a palette) and overlays of a segmentation model; default:
    predictions"""
    json: bool = False
    """print a line of JSON per image"""
    overwrite: bool = False
    """overwrite an existing CSV"""
    batch_size: int = 32
    """images per batch"""
    engine: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    """program to compute with; auto: by MODEL (a folder: torch)"""
    device: DeviceName = "auto"
    """device to compute on; auto: a GPU if there is one; exported files run on the CPU"""
    precision: InferencePrecision = "fp32"
    """precision of matrix products; auto: bf16 where it is fast, with rounded scores; int8: on a
    CPU, after `patchwords calibrate`"""
    workers: int | None = None
    """processes that decode images; 0: decode in this process; default: by the number of CPU cores
    """


class PredictionWriter(Protocol):
    """Takes predictions one image at a time."""

    def add(self, path: str, answers: list[dict[str, Any]]) -> None: ...
    def close(self, whole: bool) -> None: ...


def run_predict(config: PredictCommand) -> int:
    """Stream the images through the model, in memory that does not grow with their number."""
    import sys

    from patchwords.errors import ConfigError
    from patchwords.files import check_csv_writable

    for name, value in {"--top-k": config.top_k, "--batch-size": config.batch_size}.items():
        if value < 1:
            raise ConfigError(f"{name} {value} must be at least 1")
    if config.csv is not None:
        check_csv_writable(config.csv, config.overwrite)
    from patchwords.data.loader import choose_num_workers
    from patchwords.data.open import open_images
    from patchwords.tasks.segmentation.folder import Segmenter
    from patchwords.weights.pretrained import stream_predictions

    source, scores = open_predictor(config)
    if isinstance(source, Segmenter):
        return write_masks(config, source)
    if config.output is not None:
        raise ConfigError(
            f"--output {config.output} is for masks, and {config.model} names classes"
        )
    examples = open_images(config.images)
    writer = choose_writer(config, len(examples))
    unreadable, whole = 0, False
    try:
        for path, answers, reason in stream_predictions(
            source,
            examples,
            config.top_k,
            batch_size=config.batch_size,
            workers=choose_num_workers(examples) if config.workers is None else config.workers,
            scores=scores,
        ):
            if reason is None:
                writer.add(path, answers)
            else:
                unreadable += 1
                line = escape_control_characters(f"patchwords: {path}: {reason}")
                print(line, file=sys.stderr)
        whole = True
    finally:
        writer.close(whole)
    return 2 if unreadable else 0


def write_masks(config: PredictCommand, segmenter: Segmenter) -> int:
    """Write mask and overlay of every image, and print the share of each class; -> exit code."""
    import sys

    from patchwords.data.open import open_images
    from patchwords.errors import ConfigError
    from patchwords.tasks.segmentation.folder import MaskFolder

    if config.precision == "int8":
        raise ConfigError("--precision int8 is for classification; take fp32 or bf16")
    examples = open_images(config.images)
    folder = MaskFolder(config.output or Path("predictions"), config.overwrite)
    writer = choose_writer(config, len(examples))
    unreadable, whole = 0, False
    try:
        for path, answer, reason in segmenter.stream(examples):
            if answer is None:
                unreadable += 1
                line = escape_control_characters(f"patchwords: {path}: {reason}")
                print(line, file=sys.stderr)
                continue
            folder.write(answer)
            shares = list(answer.shares.items())[: config.top_k]
            writer.add(path, [{"label": label, "score": share} for label, share in shares])
        whole = True
    finally:
        writer.close(whole)
    print(f"{folder.written:,} masks and overlays: {folder.path}", file=sys.stderr)
    return 2 if unreadable else 0


def open_predictor(
    config: PredictCommand,
) -> tuple[Pretrained | ExportedModel | Segmenter, Scores | None]:
    """Open the model or exported file, with the function that computes its scores."""
    from functools import partial

    from patchwords.device import choose_device
    from patchwords.errors import ConfigError

    engine = choose_engine(config)
    if engine == "torch":
        from patchwords.weights.store import from_pretrained

        device = choose_device(config.device, config.precision)
        source = from_pretrained(config.model)
        if source.task is not None:
            from patchwords.tasks.segmentation.folder import open_segmenter

            return open_segmenter(source, device), None
        source.require_classes(config.model)
        source = source.for_inference(device)
        return source, partial(source.scores, device=device)
    from patchwords.export.runtime import open_exported_model

    if config.device == "cuda":
        raise ConfigError(f"{config.model} runs on the CPU: leave --device out, or give a folder")
    if config.precision == "int8":
        raise ConfigError(
            f"--precision int8 is not for {config.model}: give its run folder, or export it as "
            "ONNX with --quantize int8"
        )
    if engine == "onnx" and config.precision == "bf16":
        raise ConfigError(f"--precision bf16 is not for {config.model}: ONNX computes as exported")
    exported = open_exported_model(config.model, choose_device("cpu", config.precision).bf16)
    return exported, exported.scores


def choose_engine(config: PredictCommand) -> str:
    """Choose the engine by the model's name; raises ConfigError if --engine contradicts it."""
    from patchwords.errors import ConfigError
    from patchwords.export.runtime import ENGINE_SUFFIXES

    path = Path(config.model)
    default = "torch" if path.is_dir() else ENGINE_SUFFIXES.get(path.suffix.lower(), "torch")
    if config.engine in ("auto", default):
        return default
    if default == "torch":
        suffix = next(suffix for suffix, name in ENGINE_SUFFIXES.items() if name == config.engine)
        raise ConfigError(
            f"--engine {config.engine} runs an exported file, and {path} is not one: make one with "
            f"patchwords export {path} {path.name}{suffix}"
        )
    wants = "a run folder" if config.engine == "torch" else "another file; export writes it"
    raise ConfigError(
        f"{path} runs with --engine {default}; --engine {config.engine} takes {wants}"
    )


def choose_writer(config: PredictCommand, images: int) -> PredictionWriter:
    if config.csv is not None:
        return CsvWriter(config.csv, images)
    return JsonLinesWriter() if config.json else ConsoleWriter(config.top_k)


class JsonLinesWriter:
    """Prints {"path": ..., "predictions": [{"label", "score"}, ...]} per line."""

    def add(self, path: str, answers: list[dict[str, Any]]) -> None:
        print(jsonlib.dumps({"path": path, "predictions": answers}), flush=True)

    def close(self, whole: bool) -> None:
        pass


class CsvWriter:
    """Writes path,rank,label,score, with a progress bar; the file appears when it is complete."""

    def __init__(self, path: Path, images: int) -> None:
        import csv

        from rich.console import Console
        from rich.progress import Progress

        from patchwords.files import explain_write_error

        self.path, self.part = path, path.with_name(f".{path.name}.part")
        try:
            self.file = open(  # noqa: SIM115
                self.part, "w", encoding="utf-8", newline="", errors="surrogateescape"
            )
        except OSError as error:
            raise explain_write_error(error, path) from error
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


MAX_LABEL_LENGTH = 200  # characters of a label that are printed; a file may name a class by a book


def format_label(label: str) -> str:
    """Format a label out of a file for one line of a terminal."""
    shown = label if len(label) <= MAX_LABEL_LENGTH else f"{label[:MAX_LABEL_LENGTH]}..."
    return escape_control_characters(shown).replace("\n", "\\n")


class ConsoleWriter:
    """Prints a line per image."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def add(self, path: str, answers: list[dict[str, Any]]) -> None:
        named = "  ".join(f"{format_label(best['label'])} {best['score']:.1%}" for best in answers)
        print(f"{escape_control_characters(path)}: {named}", flush=True)

    def close(self, whole: bool) -> None:
        pass
