"""The program that `patchwords export` prints runs by itself, and answers as PyTorch does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import make

from patchwords.data.preprocess import Preprocess
from patchwords.export.example import write_example_program
from patchwords.weights.pretrained import Pretrained

ALONE = """\
import sys
for name in ("patchwords", "torch", "openvino_telemetry"):
    sys.modules[name] = None
"""


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """37 x 61 pixels, none like its neighbour."""
    pixels = np.random.default_rng(0).integers(0, 256, (61, 37, 3), dtype=np.uint8)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def answer(program: str) -> tuple[str, float]:
    command = [sys.executable, "-X", "utf8", "-c", ALONE + program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    label, score = result.stdout.strip().rsplit(" ", 1)
    return label, float(score)


@pytest.mark.parametrize("name", ["trees.onnx", "trees.xml"])
def test_the_program_answers_as_pytorch(
    files: Path, source: Pretrained, photo: Path, name: str
) -> None:
    best = source.predict(photo)[0]
    label, score = answer(write_example_program(files / name, source.preprocess, str(photo)))
    assert label == best["label"]
    assert score == pytest.approx(best["score"], abs=5e-4)  # of a level in a few pixels


def test_the_program_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    assert (
        f"```python\n{write_example_program(Path('photos.onnx'), Preprocess((224, 224)))}\n```"
        in page
    )


@pytest.mark.parametrize(
    "preprocess",
    [
        {"resize": "squash", "interpolation": "bicubic"},
        {"channels": 1, "mean": [0.2], "std": [0.7]},
        {"crop_fraction": 1.0},
        {"crop_fraction": 0.9, "crop_rule": "timm"},
    ],
)
def test_every_preprocessing_is_written_out(photo: Path, preprocess: dict[str, object]) -> None:
    """The lines between opening the photo and asking the model."""
    source = make(**preprocess)
    text = write_example_program(Path("a.onnx"), source.preprocess, str(photo))
    lines = text[text.index("image = ") : text.index("logits = ")]
    found: dict[str, np.ndarray] = {}
    exec(f"import numpy as np\nfrom PIL import Image, ImageOps\n{lines}", found)
    pixels = source.preprocess.resize_and_crop(np.array(Image.open(photo)))  # [H, W, C]
    mean, std = (np.float32(values) for values in (source.preprocess.mean, source.preprocess.std))
    wanted = ((pixels / np.float32(255) - mean) / std).transpose(2, 0, 1)[None]
    assert found["images"].dtype == np.float32
    # The program resizes by Pillow; that is our pixel to a level or two, where not to the bit.
    levels = np.abs(found["images"] - wanted) * 255 * np.float32(std).max()
    assert levels.max() < 2.01
    assert (levels > 0.01).mean() < 0.25  # see `crop.resize` on the order of the passes
