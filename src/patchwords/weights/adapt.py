"""Adapting weights to other classes (Sec. 3.2), image sizes and heads.

Nothing is changed in silence: what was reset or resized is returned as notes for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.errors import ConfigError
from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.config import LATER_PARTS, ViTConfig
from patchwords.models.init import make_initial_values
from patchwords.models.position import resize_position_parameters
from patchwords.models.resnet.config import TRUNK_SETTINGS
from patchwords.models.resnet.trunk import resize_axis_table

# The head on a trained encoder: another classifier, tanh layer or pooling than it came with.
#
# The encoder serves every kind of head, so each can be put on weights that had another.
# Sizes: n position tables, T tokens, D width.


POOLING_DESCRIPTIONS = {
    "token": "the class token",
    "gap": "the mean of all tokens",
    "map": "attention pooling",
    "token+gap": "the class token and the mean of the patches",
}
CLASSIFIERS = ("head.linear.", "head.distillation.")


def keep_classifier_rows(weights: dict[str, Tensor], rows: Sequence[int]) -> list[str]:
    """Keep these rows of the classifier, in this order; return notes for the user."""
    for name in weights:
        if name.startswith(CLASSIFIERS):
            weights[name] = weights[name][torch.as_tensor(rows)]
    return ["the head is kept: the weights know the classes of the data"]


def drop_classifier(weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> list[str]:
    """Remove what will be new: the classifier, and a tanh layer of another width."""
    for prefix in CLASSIFIERS:
        drop_parameters(weights, prefix)
    # A single class stands for none: it is that of pre-training without labels.
    if new.num_classes == 1:
        note = "the head is left out, as there are no classes to train it for"
    else:
        replaced = old.num_classes if old.num_classes > 1 else "none"
        note = (
            f"the head is new, for {new.num_classes} classes in place of {replaced}: it starts "
            "from zero (Sec. 3.2)"
        )
    if new.head_bias:
        note += f", with a bias of {new.head_bias:.3g}"
    before, after = get_tanh_layer_width(old), get_tanh_layer_width(new)
    if get_head_widths(old) != get_head_widths(new):
        drop_parameters(weights, "head.representation.")
    if after:
        origin = "that the weights have" if before == after else "with initial weights"
        note += f", on a tanh layer of {after} {origin}"
    elif before:
        note += f"; the tanh layer of {before} before it is left out, too"
    return [note]


def change_pooling(weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> list[str]:
    """Remove what another pooling does not use; make room for a class token's position."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig):
        return []
    if (old.classifier, old.class_token) == (new.classifier, new.class_token):
        return []
    notes = [
        f"the head reads {POOLING_DESCRIPTIONS[new.classifier]} in place of {POOLING_DESCRIPTIONS[old.classifier]}"
    ]
    table = weights.get("positions.table")  # [n, T, D]
    drop_parameters(weights, "head.pool.")
    if old.has_class_token and not new.has_class_token:
        for name in [name for name in weights if name.endswith("class_token")]:
            del weights[name]
        if table is not None and old.class_position:
            weights["positions.table"] = table[:, 1:].clone()
        notes.append("the class token and its position are dropped")
    if new.has_class_token and not old.has_class_token:
        if table is not None and new.class_position:
            row = table.new_zeros(table.shape[0], 1, table.shape[2])  # [n, 1, D]
            weights["positions.table"] = torch.cat([row, table], dim=1)
        notes.append("the class token and its position start from zero")
    if new.classifier == "map":
        notes.append("the pooling starts from initial weights")
    return ["; ".join(notes)]


def get_tanh_layer_width(config: ModelConfig) -> int | None:
    """Return the width of the tanh layer, if the head has one."""
    return config.representation_size if isinstance(config, ViTConfig) else None


def get_head_widths(config: ModelConfig) -> tuple[int | None, int | None]:
    """Return the widths of what is pooled and of the tanh layer, which fix the classifier's."""
    if not isinstance(config, ViTConfig):
        return None, None
    return config.pooled_width, config.representation_size


def drop_parameters(weights: dict[str, Tensor], prefix: str) -> None:
    for name in [name for name in weights if name.startswith(prefix)]:
        del weights[name]


# Settings that the weights themselves fix, and all of a trunk: another value needs other weights.
FIXED_SETTINGS = (
    *("width", "depth", "heads", "mlp_width", "channels", "trunk"),
    *("mixer", "window", "position", "position_at"),
    *(name for name in LATER_PARTS if name != "class_token"),
)


def adapt_model(
    model: Model,
    *,
    num_classes: int | None = None,
    image_size: tuple[int, int] | None = None,
    patch_size: int | None = None,
    head_rows: Sequence[int] | None = None,
    seed: int = 0,
    **settings: Any,
) -> tuple[Model, list[str]]:
    """Copy the model for these classes and this image size; return it and what changed.

    Args:
        num_classes: another number replaces the head (and the pre-training head's tanh layer, if
            `representation_size` does not ask for it) by zeros, as Sec. 3.2 has it; None keeps it.
        image_size: (H, W); positions are resized to its grid by the config's own method.
        patch_size: P; the patch embedding is resized to it (`resize_patch_kernel`).
        head_rows: keep the head, and take these rows of it in this order (classes by name).
        seed: of the initial weights, where a pooling or a tanh layer is new.
        settings: other fields of the config, such as dropout or the classifier.

    Raises ConfigError where other weights would be needed.
    """
    old = model.config
    refuse_fixed_settings(old, settings)
    grid_settings = get_grid_settings(old, image_size, patch_size)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if head_rows is not None:
        settings["num_classes"] = len(head_rows)
    elif num_classes is not None:
        settings["num_classes"] = num_classes
        if isinstance(old, ViTConfig):
            settings.setdefault("representation_size", None)
    refitted = old.with_settings(**settings)  # on the old grid
    new_head = head_rows is None and num_classes is not None
    if new_head or get_head_widths(old) != get_head_widths(refitted):
        refitted = refitted.with_settings(head_bias=settings.get("head_bias", 0.0))
        changes = drop_classifier(weights, old, refitted)
    else:
        changes = [] if head_rows is None else keep_classifier_rows(weights, head_rows)
    changes += change_pooling(weights, old, refitted)
    add_missing_weights(weights, refitted, seed)
    if not grid_settings:
        return build_with_weights(refitted, weights), changes
    new = refitted.with_settings(**grid_settings)
    changes += resize_patches(weights, refitted, new)
    changes += resize_trunk_tables(weights, refitted, new)
    changes += resize_encoder_positions(weights, refitted, new)
    return build_with_weights(new, weights), changes


def get_grid_settings(
    config: ModelConfig, image_size: tuple[int, int] | None, patch_size: int | None
) -> dict[str, Any]:
    """Return the settings that change the grid. Raises ConfigError for patches of a hybrid."""
    settings: dict[str, Any] = {} if image_size is None else {"image_size": image_size}
    if patch_size is None or patch_size == getattr(config, "patch_size", None):
        return settings
    if isinstance(config, ViTConfig) and config.trunk is not None:
        raise ConfigError(
            f"patch_size {patch_size} was asked for, but the weights are of a hybrid, whose patches are "
            "cut from feature maps: leave it out, or train from scratch"
        )
    return settings | {"patch_size": patch_size}


def resize_patches(weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> list[str]:
    """Resize the patch embedding to another patch size; return notes for the user."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig):
        return []
    if old.patch_size == new.patch_size:
        return []
    weights["embed.weight"] = resize_patch_kernel(weights["embed.weight"], new.patch_size)
    return [
        f"the patch embedding is resized from patches of {old.patch_size} to {new.patch_size} "
        "(pseudo-inverse, as FlexiViT)"
    ]


def resize_patch_kernel(kernel: Tensor, size: int) -> Tensor:
    """Resize [D, C, P, P] to [D, C, P', P'] by the pseudo-inverse (arXiv 2212.08013, Eq. 4).

    B is the bilinear resize of a patch; the new kernel gives B x what the old one gives x, exactly
    for P' above P, and as nearly as it can be below.
    """
    old = kernel.shape[-1]
    basis = torch.eye(old * old, dtype=torch.float64, device=kernel.device)
    patches = basis.unflatten(1, (1, old, old))  # [P*P, 1, P, P]
    resized = interpolate(patches, size=(size, size), mode="bilinear", align_corners=False)
    inverse = torch.linalg.pinv(resized.flatten(1))  # of [P*P, P'*P']: [P'*P', P*P]
    flat = kernel.double().flatten(2) @ inverse.mT  # [D, C, P'*P']
    return flat.unflatten(-1, (size, size)).to(kernel.dtype)


def refuse_fixed_settings(config: ModelConfig, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting that only other weights could have."""
    for part, names in ((config, FIXED_SETTINGS), (config.trunk, TRUNK_SETTINGS)):
        for name in names:
            if name not in settings or not hasattr(part, name):
                continue  # what the model has no place for, `with_settings` refuses
            if settings[name] != getattr(part, name):
                raise ConfigError(
                    f"{name} {settings[name]!r} was asked for, but the weights are of a model with "
                    f"{name} {getattr(part, name)!r}: leave it out, or train from scratch"
                )


def add_missing_weights(weights: dict[str, Tensor], config: ModelConfig, seed: int) -> None:
    """Initialise what the weights lack; a class token and its position are zero."""
    like = next(iter(weights.values()))
    for name, shape in get_tensor_shapes(config).items():
        if name not in weights and name.endswith("class_token"):
            weights[name] = like.new_zeros(shape)
        elif name not in weights:
            weights[name] = make_initial_values(name, shape, config, seed).to(like)


def resize_trunk_tables(
    weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig
) -> list[str]:
    """Resize the tables of an AxialResNet to other feature maps; a convolution fits them all."""
    outgrown = [
        (name, shape)
        for name, shape in get_tensor_shapes(new).items()
        if name.startswith("trunk.") and weights[name].shape != shape
    ]
    for name, shape in outgrown:
        weights[name] = resize_axis_table(weights[name], (shape[0] + 1) // 2)
    before, after = ("x".join(map(str, config.image_size)) for config in (old, new))
    said = f"relative positions of the ResNet resized from images of {before} to {after} (linear)"
    return [said] if outgrown else []


def resize_encoder_positions(
    weights: dict[str, Tensor], old: ModelConfig, new: ModelConfig
) -> list[str]:
    """Resize learned positions to another grid of patches."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.grid == new.grid:
        return []
    resized = resize_position_parameters(weights, old, new)
    same = all(resized[name] is value for name, value in weights.items())
    weights.update(resized)
    before, after = ("x".join(map(str, config.grid)) for config in (old, new))
    said = f"positions resized from {before} to {after} patches ({old.resize})"
    return [] if same else [said]


def get_tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a model by name."""
    with torch.device("meta"):
        return {
            name: tuple(value.shape) for name, value in build_model(config).state_dict().items()
        }


def build_with_weights(config: ModelConfig, weights: dict[str, Tensor]) -> Model:
    """Build a model of this config that holds these very tensors; they must fit."""
    with torch.device("meta"):
        model = build_model(config)
    whole = {name: value.contiguous() for name, value in weights.items()}  # resizing permutes
    model.load_state_dict(whole, assign=True)
    return model.requires_grad_(True)
