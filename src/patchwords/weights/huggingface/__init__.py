"""Hugging Face's transformers, read and written: folders of ViTs (families.py) and BiT.

    folder/
      config.json                sizes, numerics, labels
      model.safetensors          or pytorch_model.bin, or either in parts with an index
      preprocessor_config.json   how images are cut and scaled

Only what gives the same logits is read or written; all else is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchwords.errors import ConfigError, WeightsError
from patchwords.models.build import ModelConfig
from patchwords.models.checks import to_height_width
from patchwords.models.config import ViTConfig
from patchwords.weights.architecture import find_architecture_name
from patchwords.weights.convert import (
    CONFIG_FILE,
    DEFAULT_NUM_CLASSES,
    PARSE_ERRORS,
    LoadedWeights,
    NamePairs,
    add_missing_classifier,
    check_preprocess_size,
    make_numbered_labels,
    read_json_table,
    read_tensors,
    rename_tensors,
    rescale_to_epsilon_1e8,
    reverse_pairs,
    validate_tensors,
    write_tensors,
)
from patchwords.weights.huggingface import names
from patchwords.weights.huggingface.config import (
    PROCESSOR_FILE,
    VIT_CONFIG_FIELDS,
    bit_config_from_huggingface,
    bit_config_to_huggingface,
    parse_processor_size,
    preprocess_from_huggingface,
    preprocess_to_huggingface,
    vit_config_from_huggingface,
    vit_config_to_huggingface,
)
from patchwords.weights.huggingface.families import (
    ARCHITECTURES,
    FAMILIES,
    Family,
    choose_family,
    make_family_config,
    make_tower_shapes,
    read_family_config,
    refuse_task_model,
    restore_tower_shapes,
)
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import format_first_line

MAX_NAMES_SHOWN = 4
REFUSED_MODEL_TYPES = {
    "vit-hybrid": (
        "transformers dropped it in version 5; timm has the same weights: "
        "vit_base_r50_s16_384.orig_in21k_ft_in1k"
    ),
}


def read_huggingface(folder: Path) -> LoadedWeights:
    """Read a ViT or BiT that transformers saved. Raises WeightsError in one line."""
    table = read_json_table(folder / CONFIG_FILE)
    kind = str(table.get("model_type"))
    if kind not in ("vit", "bit", *FAMILIES):
        known = ", ".join(("vit", "bit", *FAMILIES))
        why = REFUSED_MODEL_TYPES.get(kind, f"known are {known}")
        raise WeightsError(
            f"{folder / CONFIG_FILE}: model_type {table.get('model_type')!r} cannot be read: {why}"
        )
    processor = folder / PROCESSOR_FILE
    images = read_json_table(processor) if processor.is_file() else None
    tensors = read_tensors(folder)
    try:
        if kind in FAMILIES:
            return read_huggingface_family(kind, table, images, tensors, folder)
        tensors = names.restore_published_names(tensors, (f"{kind}.",), names.NEWER_NAMES)
        read = read_huggingface_vit if kind == "vit" else read_huggingface_bit
        return read(table, images, tensors, folder)
    except ConfigError as error:
        raise WeightsError(f"{folder}: {error}") from error
    except PARSE_ERRORS as error:
        raise WeightsError(
            f"{folder / CONFIG_FILE} is damaged: {format_first_line(error)}"
        ) from error


def read_huggingface_vit(
    table: Mapping[str, Any],
    images: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    source: Path,
) -> LoadedWeights:
    """Read ViTForImageClassification, or ViTModel, whose pooler is the tanh layer of pre-training."""
    weights, notes = rename_huggingface_tensors(tensors, names.VIT_NAMES, source)
    weights, unbiased = names.join_qkv(weights)
    if unbiased:
        notes.append("query, key and value had no biases: they start from zero")
    if "head.linear.weight" in weights and "head.representation.weight" in weights:
        # The classifier of ViTForImageClassification looks past the pooler.
        for parameter in ("weight", "bias"):
            weights.pop(f"head.representation.{parameter}", None)
        notes.append("the pooler is left out: the classifier does not use it")
    layer = weights.get("head.representation.weight")  # [R, D]
    labels = read_huggingface_labels(table, weights)
    config, more = vit_config_from_huggingface(
        table, len(labels), None if layer is None else len(layer)
    )
    if "head.linear.weight" not in weights:
        more.append(add_missing_classifier(weights, len(labels)))
    return assemble_loaded_weights(config, weights, labels, images, [*notes, *more], source)


def read_huggingface_family(
    kind: str,
    table: Mapping[str, Any],
    images: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    source: Path,
) -> LoadedWeights:
    """Read one of FAMILIES, with its own classifier or without."""
    family = FAMILIES[kind]
    pairs, newer = family.names, choose_newer_names(family)
    if pairs is names.DINOV2_NAMES:
        pairs = (*pairs, *names.SWIGLU_NAMES)
    tensors = names.restore_published_names(tensors, family.prefixes, newer)
    refuse_task_model(kind, tensors)
    weights, notes = rename_huggingface_tensors(restore_tower_shapes(tensors), pairs, source)
    weights, unbiased = names.join_qkv(weights)
    if unbiased:
        notes.append("query, key and value had no biases: they start from zero")
    for parameter in ("weight", "bias"):
        if weights.pop(f"head.representation.{parameter}", None) is not None and (
            parameter == "weight"
        ):
            notes.append("the pooler is left out: features are those before it")
    labels = read_huggingface_labels(table, weights)
    if "head.linear.weight" not in weights:
        notes.append(add_missing_classifier(weights, len(labels)))
    if kind == "deit" and "head.distillation.weight" not in weights:
        for parameter in ("weight", "bias"):
            like = weights[f"head.linear.{parameter}"]
            weights[f"head.distillation.{parameter}"] = torch.zeros_like(like)
    config = read_family_config(kind, table, weights, len(labels))
    if images is None and family.processor:
        notes.append(f"{source} has no {PROCESSOR_FILE}: images are made as is usual for {kind}")
        images = make_usual_processor(family.processor, config.image_size)
    return assemble_loaded_weights(config, weights, labels, images, notes, source)


def choose_newer_names(family: Family) -> Sequence[tuple[str, str]]:
    """Choose the names that transformers 5 has for a family in memory."""
    if family.names is names.DINOV2_NAMES:
        return names.NEWER_DINOV2_NAMES
    return names.NEWER_NAMES if family.fields is VIT_CONFIG_FIELDS else ()


def make_usual_processor(
    processor: Mapping[str, Any], image_size: tuple[int, int]
) -> dict[str, Any]:
    """Make the image processor of a family for this image size.

    A processor that crops takes 224 of 256 pixels (7/8), but CLIP's takes the whole short side.
    """
    kind = str(processor.get("image_processor_type", ""))
    height, width = image_size
    if kind.startswith("Siglip") or height != width:
        return {**processor, "size": [height, width]}
    side = height if kind.startswith("CLIP") else round(height * 8 / 7)
    crop: dict[str, Any] = {"do_center_crop": True, "resample": 3, "crop_size": height}
    if not kind:
        crop["image_processor_type"] = "BitImageProcessor"
    return {**processor, **crop, "size": {"shortest_edge": side}}


def read_huggingface_bit(
    table: Mapping[str, Any],
    images: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    source: Path,
) -> LoadedWeights:
    """Read BitForImageClassification, or BitModel without a classifier."""
    weights, notes = rename_huggingface_tensors(tensors, names.BIT_NAMES, source)
    labels = read_huggingface_labels(table, weights)
    config, more = bit_config_from_huggingface(table, len(labels), infer_bit_image_size(images))
    if "head.linear.weight" not in weights:
        more.append(add_missing_classifier(weights, len(labels)))
    return assemble_loaded_weights(config, weights, labels, images, [*notes, *more], source)


def infer_bit_image_size(images: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the processor's image size: a BiT's config does not say, and takes any size."""
    if images is None:
        return 224, 224
    size = parse_processor_size(images.get("crop_size") or images.get("size", 224))
    side = size.get("shortest_edge", 224)
    return to_height_width([size.get("height", side), size.get("width", side)])


def rename_huggingface_tensors(
    tensors: Mapping[str, Tensor], pairs: NamePairs, source: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Rename the tensors; parameters of other tasks are left out, with a note."""
    weights, unknown = rename_tensors(tensors, reverse_pairs(pairs))
    strange = [name for name in unknown if not name.startswith(names.IGNORED_PREFIXES)]
    if strange:
        raise WeightsError(
            f"{source}: {strange[0]} ({len(strange)} in all such) is no part of the model that "
            f"{CONFIG_FILE} describes"
        )
    return weights, [f"left out: {format_names(unknown)}"] if unknown else []


def format_names(unknown: list[str]) -> str:
    """List the first names, and say how many more there are."""
    more = len(unknown) - MAX_NAMES_SHOWN
    first = ", ".join(unknown[:MAX_NAMES_SHOWN])
    return f"{first} and {more} more" if more > 0 else first


def read_huggingface_labels(
    table: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Return class names in the order of the classifier's rows, or numbers without any."""
    names_by_index = table.get("id2label") or {}
    if names_by_index:
        order = sorted(names_by_index, key=int)
        return tuple(str(names_by_index[index]) for index in order)
    classifier = weights.get("head.linear.weight")  # [classes, D]
    return make_numbered_labels(DEFAULT_NUM_CLASSES if classifier is None else len(classifier))


def assemble_loaded_weights(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    labels: tuple[str, ...],
    images: Mapping[str, Any] | None,
    notes: list[str],
    source: Path,
) -> LoadedWeights:
    if images is None:
        height, width = config.image_size
        notes = [
            *notes,
            f"{source} has no {PROCESSOR_FILE}: images are squashed to {height}x{width}, as "
            "transformers' ViTImageProcessor does",
        ]
        images = {"size": [height, width]}
    preprocess, more = preprocess_from_huggingface(images, config.image_size, config.channels)
    return LoadedWeights(
        config=config,
        weights=validate_tensors(weights, config, source),
        labels=labels,
        preprocess=preprocess,
        architecture=find_architecture_name(config),
        notes=(*notes, *more),
    )


def rename_to_family(
    kind: str, weights: Mapping[str, Tensor], config: ViTConfig
) -> dict[str, Tensor]:
    """Rename tensors to those of a family's files; a head that it has not is left out."""
    pairs = FAMILIES[kind].names
    if config.swiglu:
        pairs = (*names.SWIGLU_NAMES, *pairs)
    tensors, _ = rename_tensors(names.split_qkv(weights), pairs)
    return make_tower_shapes(tensors)


def write_huggingface(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a folder for transformers' Auto classes and pipeline; return notes for the user.

    Raises WeightsError for a model or a preprocessing that transformers cannot express.
    """
    model, preprocess = pretrained.model, pretrained.preprocess
    config = model.config
    weights: dict[str, Tensor] = dict(model.state_dict())
    notes: list[str] = []
    if isinstance(config, ViTConfig) and (kind := choose_family(config)) is not None:
        check_preprocess_size(preprocess, config)
        headed = bool(weights["head.linear.weight"].any())
        table, prefix = make_family_config(kind, config, headed), FAMILIES[kind].prefixes[0]
        tensors = rename_to_family(kind, weights, config)
        if table["architectures"][0] == ARCHITECTURES[kind][1]:
            tensors = {key: value for key, value in tensors.items() if "classifier" not in key}
            prefix = "" if prefix != "vision_model." else prefix
            notes.append("the head is all zero and is left out")
    elif isinstance(config, ViTConfig):
        table, prefix = vit_config_to_huggingface(config), "vit."
        check_preprocess_size(preprocess, config)
        tensors, _ = rename_tensors(names.split_qkv(weights), names.VIT_NAMES)
    else:
        weights, trunk, notes = rescale_to_epsilon_1e8(weights, config.trunk)
        table, prefix = bit_config_to_huggingface(config.with_settings(trunk=trunk)), "bit."
        tensors, _ = rename_tensors(weights, names.BIT_NAMES)
    table |= {
        "id2label": {str(index): label for index, label in enumerate(pretrained.labels)},
        "label2id": {label: index for index, label in enumerate(pretrained.labels)},
        "dtype": str(weights["head.linear.weight"].dtype).removeprefix("torch."),
    }
    inside = {
        name if "classifier" in name else prefix + name: value for name, value in tensors.items()
    }
    write_tensors(
        folder, inside, {CONFIG_FILE: table, PROCESSOR_FILE: preprocess_to_huggingface(preprocess)}
    )
    if preprocess.resize == "crop" and preprocess.crop_rule == "timm":
        notes.append("transformers rounds the corner of its centre crop down: up to a pixel away")
    if preprocess.channels == 1:
        notes.append(
            "transformers' pipeline makes RGB of every image: hand grey ones to the processor"
        )
    return notes
