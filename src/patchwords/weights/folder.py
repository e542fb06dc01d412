"""A trained model as a folder: weights, architecture, labels and preprocessing, together.

    model/
      model.safetensors   the tensors, under our names
      config.json         {"format", "version", "architecture", "model", "labels", "preprocess"}

`from_pretrained` takes such a folder, or a run folder, which holds one as `model/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.files import explain, write_atomically
from patchwords.model.config import ViTConfig, height_width
from patchwords.model.vit import ViT
from patchwords.weights.adapt import adapt, load
from patchwords.weights.pretrained import Pretrained

FORMAT, VERSION = "patchwords", 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save_pretrained(
    model: ViT,
    folder: str | Path,
    *,
    labels: Sequence[str] | None = None,
    preprocess: Preprocess | None = None,
    architecture: str | None = None,
) -> Path:
    """Write the model where `from_pretrained` finds it; existing files are replaced atomically.

    Labels default to "0", "1", ...; preprocessing to a centre crop of the model's image size.
    """
    folder = Path(folder)
    names = (
        list(labels) if labels is not None else [str(i) for i in range(model.config.num_classes)]
    )
    if len(names) != model.config.num_classes:
        raise WeightsError(f"{len(names)} labels for a model of {model.config.num_classes} classes")
    if preprocess is None:
        preprocess = Preprocess.from_dict(
            {"image_size": model.config.image_size, "channels": model.config.channels}
        )
    card: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "architecture": architecture,
        "model": model.config.to_dict(),
        "labels": names,
        "preprocess": preprocess.to_dict(),
    }
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, folder) from error
    write_atomically(folder / WEIGHTS, safetensors.torch.save(tensors, metadata={"format": "pt"}))
    write_atomically(folder / CONFIG, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    return folder


def from_pretrained(
    source: str | Path,
    *,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
) -> Pretrained:
    """Load a run folder or a model folder: `Pretrained(model, preprocess, labels)`.

    With `num_classes` the head is replaced by zeros; with `image_size` the positions are resized;
    `changes` of the result says so. Raises WeightsError where the folder is not whole.
    """
    folder = find_model(Path(source))
    card = _read_card(folder / CONFIG)
    weights = _read_weights(folder / WEIGHTS, card.config)
    model, labels, preprocess = load(card.config, weights), card.labels, card.preprocess
    changes: list[str] = []
    size = None if image_size is None else height_width(image_size)
    if num_classes is not None or size is not None:
        model, changes = adapt(model, num_classes=num_classes, image_size=size)
    if num_classes is not None:
        labels = tuple(str(i) for i in range(num_classes))
    if size is not None:
        preprocess = replace(preprocess, image_size=size)
    return Pretrained(
        model=model.eval(),
        preprocess=preprocess,
        labels=labels,
        architecture=card.architecture,
        changes=tuple(changes),
    )


def find_model(source: Path) -> Path:
    """The model folder that `source` is or holds; raises WeightsError."""
    for folder in (source / "model", source):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    if not source.exists():
        raise WeightsError(
            f"no weights at {source}: give a run folder or a model folder ({CONFIG} and {WEIGHTS})"
        )
    if (source / "config.yaml").is_file():
        raise WeightsError(
            f"{source} is a run that has not ended, so it has no model/ yet; go on with it by "
            "--resume"
        )
    raise WeightsError(f"{source} is no model folder: it lacks {CONFIG} and {WEIGHTS}")


@dataclass(frozen=True)
class Card:
    """What config.json says."""

    architecture: str | None
    config: ViTConfig
    labels: tuple[str, ...]
    preprocess: Preprocess


def _read_card(path: Path) -> Card:
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table.get("format") != FORMAT:
            raise WeightsError(
                f"{path} was not written by patchwords (format {table.get('format')!r})"
            )
        if table["version"] > VERSION:
            raise WeightsError(f"{path} is of a newer patchwords (version {table['version']})")
        missing = {"model", "labels", "preprocess"} - table.keys()
        if missing:
            raise WeightsError(f"{path} lacks {', '.join(sorted(missing))}")
        card = Card(
            table.get("architecture"),
            ViTConfig.from_dict(table["model"]),
            tuple(table["labels"]),
            Preprocess.from_dict(table["preprocess"]),
        )
    except WeightsError:
        raise
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from error
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    if len(card.labels) != card.config.num_classes:
        raise WeightsError(
            f"{path} has {len(card.labels)} labels for {card.config.num_classes} classes"
        )
    return card


def _read_weights(path: Path, config: ViTConfig) -> dict[str, torch.Tensor]:
    """The tensors, which must be those of the config, by name and shape."""
    try:
        weights = safetensors.torch.load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    with torch.device("meta"):
        wanted = {name: tuple(value.shape) for name, value in ViT(config).state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise WeightsError(
                f"{path}: {name} should be {wanted.get(name, 'absent')}, "
                f"and is {found.get(name, 'absent')}"
            )
    # Cloned: in the file's own memory tensors are not aligned, and the last digits would differ.
    return {name: value.clone() for name, value in weights.items()}
