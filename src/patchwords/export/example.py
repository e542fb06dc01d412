"""Example programs that run an exported file without patchwords and PyTorch."""

from __future__ import annotations

from pathlib import Path

from patchwords.data.preprocess import Preprocess
from patchwords.export.metadata import INPUT_NAME, OUTPUT_NAME, PRODUCER
from patchwords.export.runtime import ENGINE_SUFFIXES

ONNX_TEMPLATE = """\
import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession({path!r})
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
{image}
logits = session.run(["{output}"], {{"{input}": images}})[0][0]
{answer}
"""
OPENVINO_TEMPLATE = """\
import json

import numpy as np
import openvino
from PIL import Image, ImageOps

core = openvino.Core()
model = core.read_model({path!r})
labels = json.loads(model.get_rt_info(["{producer}", "labels"]).astype(str))
compiled = core.compile_model(model, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})
{image}
logits = compiled({{"{input}": images}})["{output}"][0]
{answer}
"""
CROP_TEMPLATE = """\
rows, columns = {covered[0]}, {covered[1]}
{cover}
image = image.resize((columns, rows), {filter})
left, top = {corner}
image = image.crop((left, top, left + {width}, top + {height}))"""
COVER_LINES = """\
if rows * image.width >= columns * image.height:
    columns = rows * image.width // image.height
else:
    rows = columns * image.height // image.width"""
TIMM_COVER_LINES = """\
ratio = min(image.height / rows, image.width / columns)
rows, columns = round(image.height / ratio), round(image.width / ratio)"""
RESIZE_TEMPLATE = "image = image.resize(({width}, {height}), {filter})"
COLOUR_TEMPLATE = "pixels = np.asarray(image).transpose(2, 0, 1)  # [3, {height}, {width}]"
GREY_TEMPLATE = 'pixels = np.asarray(image.convert("L"))[None]  # [1, {height}, {width}]'
PREDICTION_TEMPLATE = """\
scores = np.exp(logits - logits.max())
scores /= scores.sum()
best = int(scores.argmax())
print(labels[best], float(scores[best]))"""


def write_example_program(path: Path, preprocess: Preprocess, photo: str = "photo.jpg") -> str:
    """Write a program that predicts the class of a photo with NumPy and Pillow only."""
    template = {"onnx": ONNX_TEMPLATE, "openvino": OPENVINO_TEMPLATE}[
        ENGINE_SUFFIXES[path.suffix.lower()]
    ]
    return template.format(
        path=str(path),
        input=INPUT_NAME,
        output=OUTPUT_NAME,
        producer=PRODUCER,
        image=write_preprocessing_lines(preprocess, photo),
        answer=PREDICTION_TEMPLATE,
    ).rstrip("\n")


def write_preprocessing_lines(preprocess: Preprocess, photo: str) -> str:
    """Write out the steps of `Preprocess` with their numbers."""
    height, width = preprocess.image_size
    rows, columns = preprocess.covered
    timm = preprocess.crop_rule == "timm"
    corner = (
        f"round((columns - {width}) / 2), round((rows - {height}) / 2)"
        if timm
        else f"(columns - {width}) // 2, (rows - {height}) // 2"
    )
    sizes = {
        "height": height,
        "width": width,
        "covered": (rows, columns),
        "cover": TIMM_COVER_LINES if timm and rows != columns else COVER_LINES,
        "corner": corner,
        "filter": f"Image.Resampling.{preprocess.interpolation.upper()}",
    }
    mean, std = (
        f"np.float32({list(values)})[:, None, None]" for values in (preprocess.mean, preprocess.std)
    )
    return "\n".join(
        [
            f'image = ImageOps.exif_transpose(Image.open({photo!r})).convert("RGB")',
            (CROP_TEMPLATE if preprocess.resize == "crop" else RESIZE_TEMPLATE).format(**sizes),
            (COLOUR_TEMPLATE if preprocess.channels == 3 else GREY_TEMPLATE).format(**sizes),
            f"mean = {mean}",
            f"std = {std}",
            "images = ((pixels / np.float32(255) - mean) / std)[None]",
        ]
    )
