"""Formats of written weights, and the programs that open them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from patchwords.errors import ConfigError, did_you_mean

WeightsFormat = Literal["patchwords", "huggingface", "timm", "google"]

OPEN_SNIPPETS: dict[WeightsFormat, str] = {
    "patchwords": 'pw.from_pretrained("{path}"), or patchwords predict {path} photo.jpg',
    "huggingface": 'transformers.pipeline("image-classification", model="{path}")',
    "timm": 'timm.create_model("local-dir:{path}", pretrained=True)',
    "google": 'vit_jax.checkpoint.load("{path}")',
}


def check_weights_target(target: Path, form: WeightsFormat, overwrite: bool) -> None:
    """Raise ConfigError before the work if `target` exists or does not suit the format."""
    if form not in get_args(WeightsFormat):
        raise ConfigError(f"unknown format {form!r}{did_you_mean(form, get_args(WeightsFormat))}")
    is_file = form == "google"
    if is_file and target.suffix != ".npz":
        raise ConfigError(f"google weights are one file: call it {target.with_suffix('.npz')}")
    if not is_file and target.suffix in {".npz", ".safetensors", ".onnx"}:
        raise ConfigError(f"{form} weights are a folder: call it {target.with_suffix('')}")
    if target.is_dir() if is_file else target.is_file():
        raise ConfigError(f"{target} is a {'folder' if is_file else 'file'}; choose another name")
    taken = target.exists() and (is_file or any(target.iterdir()))
    if taken and not overwrite:
        raise ConfigError(f"{target} is there already; choose another name, or add --overwrite")


def format_open_hint(target: Path, form: WeightsFormat) -> str:
    """Return a line of code that opens the weights in their program."""
    return f"open it: {OPEN_SNIPPETS[form].format(path=target)}"
