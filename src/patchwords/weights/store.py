"""`from_pretrained` and `save_pretrained`, for every format of weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.build import Model
from patchwords.models.checks import to_height_width
from patchwords.models.zoo import resolve_model
from patchwords.weights.adapt import adapt_model, build_with_weights
from patchwords.weights.architecture import find_architecture_name, has_same_shape
from patchwords.weights.convert import LoadedWeights, make_numbered_labels
from patchwords.weights.folder import read_model_folder, write_model_folder
from patchwords.weights.formats import WeightsFormat
from patchwords.weights.google import read_google, write_google
from patchwords.weights.huggingface import read_huggingface, write_huggingface
from patchwords.weights.locate import WeightsLocation, locate_weights
from patchwords.weights.meta import read_state_dict
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import read_npz, save_npz
from patchwords.weights.timm import read_timm, write_timm


def from_pretrained(
    source: str | Path,
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    **settings: Any,
) -> Pretrained:
    """Load a trained model with its preprocessing and class names, in eval mode.

    Args:
        source: a run folder, a model folder, a file, a hub id or a published name; see
            `weights.locate`. What is not on this machine is fetched.
        architecture: the model's name, for a file that does not tell it; weights that do must be
            of it, with `settings` where these make another model of a name.
        num_classes: the head is replaced by zeros, for this many classes.
        image_size: one number or (height, width); positions are resized to it.
        settings: other fields of the config that weights do not fix, as classifier or dropout;
            another patch_size resizes the patch embedding by the pseudo-inverse.

    `changes` of the result says what was reset, resized or left out. Raises WeightsError.
    """
    loaded = read_weights(locate_weights(source), architecture, settings)
    model, changes = build_with_weights(loaded.config, loaded.weights), list(loaded.notes)
    labels, preprocess = loaded.labels, loaded.preprocess
    size = None if image_size is None else to_height_width(image_size)
    if num_classes is not None or size is not None or settings:
        model, changed = adapt_model(model, num_classes=num_classes, image_size=size, **settings)
        changes += changed
    name = loaded.architecture
    if getattr(model.config, "patch_size", None) != getattr(loaded.config, "patch_size", None):
        name = find_architecture_name(model.config)
    if num_classes is not None:
        labels = make_numbered_labels(num_classes)
    if size is not None:
        preprocess = replace(preprocess, image_size=size)
    return Pretrained(
        model=model.eval(),
        preprocess=preprocess,
        labels=labels,
        architecture=name,
        changes=tuple(changes),
        home=loaded.home,
        task=loaded.task,
    )


def read_weights(
    place: WeightsLocation,
    architecture: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> LoadedWeights:
    """Load a model in parts. Raises WeightsError, also for weights of another architecture."""
    if place.kind == "patchwords":
        loaded = read_model_folder(place.path)
    elif place.kind == "huggingface":
        loaded = read_huggingface(place.path)
    elif place.kind == "google":
        loaded = read_google(read_npz(place.path), place.name)
    elif place.alone:  # a file by itself needs to be told
        loaded = read_state_dict(place.path, place.name, architecture)
    else:
        loaded = read_timm(place.path)
    stored = loaded.architecture
    if architecture is None or stored is None or architecture == stored:
        return loaded
    requested = resolve_model(architecture)
    if requested.name == stored or has_same_shape(loaded.config, requested.config, settings or {}):
        return loaded
    raise WeightsError(
        f"{place.path} holds weights of {stored}, but {architecture} was asked for: leave that out"
    )


def save_pretrained(
    model: Model,
    path: str | Path,
    *,
    labels: Sequence[str] | None = None,
    preprocess: Preprocess | None = None,
    architecture: str | None = None,
    format: WeightsFormat = "patchwords",
    task: Mapping[str, Any] | None = None,
) -> Path:
    """Write the model for `from_pretrained`, or for another program.

    Args:
        path: a folder; a file NAME.npz for the format google. Files are replaced atomically.
        labels: names of the classes, in the order of the logits; "0", "1", ... by default; ()
            for a model that was trained without classes, whose head is a place for one.
        preprocess: how images are made; a centre crop of the model's image size by default.
        architecture: the name that the model was created by.
        format: patchwords, huggingface, timm or google.
        task: what the model is a backbone for, as segmentation; default: its own classes.

    Raises WeightsError for a model that the format cannot express.
    """
    classes = model.config.num_classes
    names = tuple(labels) if labels is not None else make_numbered_labels(classes)
    if len(names) != classes and (names or classes > 1):
        raise WeightsError(f"{len(names)} labels for a model of {classes} classes")
    if preprocess is None:
        preprocess = Preprocess.from_dict(
            {"image_size": model.config.image_size, "channels": model.config.channels}
        )
    pretrained = Pretrained(model, preprocess, names, architecture, task=task)
    if format != "patchwords":  # whose config.json alone can say that there are no classes
        pretrained.require_classes("RUN")
    for note in FORMAT_WRITERS[format](pretrained, Path(path)):
        warnings.warn(note, stacklevel=2)
    return Path(path)


def write_google_file(pretrained: Pretrained, path: Path) -> list[str]:
    """Write the arrays as NAME.npz, which has no place for labels and preprocessing."""
    save_npz(path, write_google(pretrained.model))
    return [] if pretrained.labels == make_numbered_labels(len(pretrained.labels)) else [NPZ_NOTE]


NPZ_NOTE = "an .npz file has no place for names of classes and for preprocessing: keep them apart"
FORMAT_WRITERS: dict[WeightsFormat, Callable[[Pretrained, Path], list[str]]] = {
    "patchwords": write_model_folder,
    "huggingface": write_huggingface,
    "timm": write_timm,
    "google": write_google_file,
}
