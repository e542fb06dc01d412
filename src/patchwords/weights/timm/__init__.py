"""timm's weights, read and written: ViT, hybrids and BiT.

    folder/
      config.json         architecture, model_args, and in pretrained_cfg preprocessing and labels
      model.safetensors   or pytorch_model.bin

Only what gives the same logits is read or written; all else is refused by name.
Sizes: T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchwords.errors import ConfigError, WeightsError
from patchwords.models.build import ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import TrunkConfig
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
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import format_first_line
from patchwords.weights.timm import names
from patchwords.weights.timm.architectures import get_architecture_args, resolve_timm_architecture
from patchwords.weights.timm.config import (
    has_half_pixel_margin,
    infer_timm_image_size,
    make_resnet_model_args,
    make_vit_model_args,
    preprocess_from_timm,
    preprocess_to_timm,
    resnet_config_from_timm,
    vit_config_from_timm,
)
from patchwords.weights.timm.defaults import default_pretrained_cfg


def read_timm(path: Path, architecture: str | None = None) -> LoadedWeights:
    """Read a folder of timm's, or a weights file and the name of its architecture.

    Raises WeightsError in one line.
    """
    table = read_json_table(path / CONFIG_FILE) if path.is_dir() else {}
    name = architecture or table.get("architecture")
    if not isinstance(name, str):
        raise WeightsError(
            f"{path} does not say which architecture it is of; name it as timm does, "
            "vit_base_patch16_224"
        )
    tensors = read_tensors(path)
    try:
        return read_timm_state_dict(tensors, name, table, path)
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from error
    except PARSE_ERRORS as error:
        raise WeightsError(f"{path} does not fit {name}: {format_first_line(error)}") from error


def read_timm_state_dict(
    tensors: Mapping[str, Tensor], name: str, table: Mapping[str, Any], source: Path
) -> LoadedWeights:
    """Convert a state dict; `table` is config.json, and may be empty."""
    pretrained = table.get("pretrained_cfg") or table
    cfg = {**default_pretrained_cfg(name), **pretrained}
    args = {"global_pool": table.get("global_pool"), **(table.get("model_args") or {})}
    heads, size = resolve_timm_architecture(name)
    size = infer_timm_image_size(args, cfg, size)
    notes: list[str] = []
    pairs = names.RESNET_NAMES if heads is None else choose_vit_names(tensors)
    weights, unknown = rename_tensors(tensors, reverse_pairs((*pairs, *names.OLDER_NAMES)))
    if unknown:
        raise WeightsError(
            f"{source} cannot be read: {unknown[0]} is {names.describe_unsupported_part(unknown[0])}"
        )
    labels = read_timm_labels(table, cfg)
    if "head.linear.weight" not in weights:
        notes.append(add_missing_classifier(weights, len(labels) or DEFAULT_NUM_CLASSES))
    if "distillation_token" in weights and "head.distillation.weight" not in weights:
        for parameter in ("weight", "bias"):
            like = weights[f"head.linear.{parameter}"]
            weights[f"head.distillation.{parameter}"] = torch.zeros_like(like)
    weights["head.linear.weight"] = weights["head.linear.weight"].flatten(1)  # BiT's is 1x1
    config: ModelConfig
    if heads is None:
        config = resnet_config_from_timm(weights, size)
    else:
        config = vit_config_from_timm(weights, heads, size, get_architecture_args(name) | args)
        notes += add_missing_qkv_biases(weights, config)
    preprocess, more = preprocess_from_timm(cfg, config.image_size, config.channels)
    if len(labels) != config.num_classes:
        if labels:
            notes.append(f"{len(labels)} labels for {config.num_classes} classes: left out")
        labels = make_numbered_labels(config.num_classes)
    if not pretrained:
        notes.append(
            f"the file came without config.json: images are made as timm does for {name}, crop_pct "
            f"{cfg['crop_pct']:g}, {cfg['interpolation']}, mean {format_numbers(preprocess.mean)}, "
            f"std {format_numbers(preprocess.std)}"
        )
    return LoadedWeights(
        config=config,
        weights=validate_tensors(weights, config, source),
        labels=labels,
        preprocess=preprocess,
        architecture=find_architecture_name(config),
        notes=(*notes, *more),
    )


def format_numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in dict.fromkeys(values))


def choose_vit_names(tensors: Mapping[str, Tensor]) -> NamePairs:
    """Return the names of a plain ViT, a hybrid, or one with a ResNet's root alone."""
    if "patch_embed.backbone.conv.weight" in tensors:
        return names.ROOT_ONLY_NAMES
    return (
        names.HYBRID_NAMES
        if "patch_embed.backbone.stem.conv.weight" in tensors
        else names.VIT_NAMES
    )


def add_missing_qkv_biases(weights: dict[str, Tensor], config: ViTConfig) -> list[str]:
    """Add zero biases of query, key and value where they are absent: the same function."""
    absent = False
    for block in range(config.depth):
        name = f"encoder.blocks.{block}.attention.qkv"
        if f"{name}.bias" not in weights:
            weights[f"{name}.bias"] = weights[f"{name}.weight"].new_zeros(3 * config.width)
            absent = True
    return ["query, key and value had no biases: they start from zero"] if absent else []


def read_timm_labels(table: Mapping[str, Any], cfg: Mapping[str, Any]) -> tuple[str, ...]:
    """Return class names, the descriptions if every class has one; () without any."""
    found = table.get("label_names") or cfg.get("label_names") or cfg.get("labels") or ()
    if isinstance(found, Mapping):  # by number, where timm left some out
        found = [found[number] for number in sorted(found, key=int)]
    keys = list(found)
    words = table.get("label_descriptions") or cfg.get("label_descriptions") or {}
    described = [words.get(key) for key in keys]
    if keys and all(described) and len(set(described)) == len(keys):
        return tuple(str(one) for one in described)
    return tuple(str(key) for key in keys)


def fold_class_position(
    weights: dict[str, Tensor], config: ViTConfig
) -> tuple[ViTConfig, list[str]]:
    """Add the class token's position to the token where timm has a place for neither.

    timm gives all prefix tokens positions, or none; next to registers, which have none, the class
    token has none either.
    """
    positioned = config.has_class_token and config.class_position
    table = weights.get("positions.table")  # [1, 1 + N, D]
    if not config.registers or not positioned or table is None or config.distillation:
        return config, []
    weights["class_token"] = weights["class_token"] + table[:, :1]
    weights["positions.table"] = table[:, 1:]
    note = "the class token's position is added to the token: with registers timm has none for it"
    return config.with_settings(class_position=False), [note]


def write_timm(pretrained: Pretrained, folder: Path) -> list[str]:
    """Write a folder for timm.create_model("local-dir:FOLDER", pretrained=True), or for the hub.

    -> what a person should know. Raises WeightsError for a model that timm cannot express.
    """
    config, preprocess = pretrained.model.config, pretrained.preprocess
    weights: dict[str, Tensor] = dict(pretrained.model.state_dict())
    notes: list[str] = []
    pairs: NamePairs
    if isinstance(config.trunk, TrunkConfig):
        weights, trunk, notes = rescale_to_epsilon_1e8(weights, config.trunk)
        config = config.with_settings(trunk=trunk)
    if isinstance(config, ViTConfig):
        config, more = fold_class_position(weights, config)
        notes += more
        name, args = make_vit_model_args(config)
        check_preprocess_size(preprocess, config)
        root_alone = isinstance(config.trunk, TrunkConfig) and not config.trunk.units
        pairs = names.ROOT_ONLY_NAMES if root_alone else names.HYBRID_NAMES
        classifier, features = "head", config.width
    else:
        name, args = make_resnet_model_args(config)
        pairs, classifier, features = names.RESNET_NAMES, "head.fc", config.trunk.channels
        weights["head.linear.weight"] = weights["head.linear.weight"][:, :, None, None]
    if preprocess.crop_rule == "floor" and has_half_pixel_margin(preprocess):
        notes.append("timm rounds the corner of its centre crop up here: a pixel lower and right")
    tensors, _ = rename_tensors(weights, pairs)
    first = next(one for one in names.FIRST_CONVS if f"{one}.weight" in tensors)
    table = {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": features,
        "global_pool": args.get("global_pool", "avg"),
        "label_names": list(pretrained.labels),
        "model_args": args,
        "pretrained_cfg": {
            **preprocess_to_timm(preprocess),
            "fixed_input_size": isinstance(config, ViTConfig),
            "num_classes": config.num_classes,
            "first_conv": first,
            "classifier": classifier,
        },
    }
    write_tensors(folder, tensors, {CONFIG_FILE: table})
    return notes
