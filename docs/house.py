"""Measure the house: `python docs/house.py` prints the table of docs/architecture.md.

Sizes are read from the source. The two ways are traced: every file of the package in which a
function is called while one photo is predicted, and while a training starts, up to the first image
that is decoded.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import patchwords
from patchwords.cli import main

PACKAGE = Path(patchwords.__file__).parent
PHOTO_SIZE = 32
DECODERS = {"image", "pixels", "decode_image", "decode_jpeg"}  # of data/decode.py: the first pixel


class FirstPixel(Exception):
    """Ends a training when its first image is about to be decoded."""


def measure_sizes() -> dict[str, str]:
    files = sorted(PACKAGE.rglob("*.py"))
    lines, import_lines, functions = [], 0, []
    for path in files:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            continue
        lines.append(text.count("\n"))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                import_lines += (node.end_lineno or node.lineno) - node.lineno + 1
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
    folders = [sum(p.stat().st_size > 0 for p in d.glob("*.py")) for d in {f.parent for f in files}]
    deciles = statistics.quantiles(lines, n=10)
    return {
        "files": f"{len(lines)}",
        "lines": f"{sum(lines):,}",
        "lines of a file: median, 90 %, largest": (
            f"{statistics.median(lines):.0f} / {deciles[8]:.0f} / {max(lines)}"
        ),
        "lines of a function: median, largest": (
            f"{statistics.median(functions):.0f} / {max(functions)}"
        ),
        "import lines": f"{import_lines / sum(lines):.1%}",
        "files of the fullest folder": f"{max(folders)}",
    }


@contextlib.contextmanager
def trace(on_call: Callable[[FrameType], None]) -> Iterator[list[str]]:
    """Files of the package in which functions are called inside, in order, repeats included."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(PACKAGE)):
            return
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return
        file = str(Path(name).relative_to(PACKAGE))
        if not entered or entered[-1] != file:
            entered.append(file)
        on_call(frame)

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def trace_prediction(folder: Path) -> list[str]:
    from PIL import Image

    photo = folder / "photo.png"
    Image.new("RGB", (PHOTO_SIZE, PHOTO_SIZE), (200, 40, 40)).save(photo)
    words = ["predict", "patchwords:cifar10-small", str(photo), "--device", "cpu", "--workers", "0"]
    with contextlib.redirect_stdout(io.StringIO()), trace(lambda _: None) as entered:
        main(words)
    return entered


def trace_start_of_training(folder: Path) -> list[str]:
    from PIL import Image

    for label in ("blue", "red"):
        for number in range(8):
            path = folder / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shade = (20 * number, 0, 250) if label == "blue" else (250, 0, 20 * number)
            Image.new("RGB", (PHOTO_SIZE, PHOTO_SIZE), shade).save(path)
    words = ["finetune", str(folder / "photos"), "--model", "ViT-mu/4", "--image-size", "32"]
    words += ["--output", str(folder / "run"), "--device", "cpu", "--workers", "0", "--steps", "1"]

    def stop(frame: FrameType) -> None:
        code = frame.f_code
        if code.co_name in DECODERS and code.co_filename.endswith("decode.py"):
            raise FirstPixel

    with (
        contextlib.suppress(FirstPixel),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        trace(stop) as entered,
    ):
        main(words)
    return entered


def report() -> None:
    for name, value in measure_sizes().items():
        print(f"| {name} | {value} |")
    with tempfile.TemporaryDirectory() as folder:
        for name, entered in (
            ("prediction of one photo", trace_prediction(Path(folder))),
            ("training, before the first pixel", trace_start_of_training(Path(folder))),
        ):
            files = list(dict.fromkeys(entered))
            print(f"| files on the way: {name} | {len(files)} |")
            if "--files" in sys.argv:
                print("  " + "\n  ".join(files))


if __name__ == "__main__":
    report()
