"""Google's weights, read and written: vision_transformer, big_vision, big_transfer.

Nothing but arrays is in the files, so all else is inferred from their shapes or said by a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, WeightsError
from patchwords.models.build import Model, ModelConfig
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import (
    BIT_TRUNK,
    HYBRID_TRUNK,
    ConvStemConfig,
    ResNetConfig,
    TrunkConfig,
)
from patchwords.models.zoo import resolve_model
from patchwords.weights.adapt import get_tensor_shapes
from patchwords.weights.architecture import find_architecture_name
from patchwords.weights.convert import (
    LoadedWeights,
    add_zero_classifier,
    convert_from_torch,
    convert_to_torch,
    make_numbered_labels,
    refuse_not_finite,
    refuse_unsupported,
)
from patchwords.weights.google.config import config_from_google
from patchwords.weights.google.names import (
    ArrayNames,
    ParameterTree,
    build_parameter_tree,
    list_array_names,
)

MAX_KEYS_SHOWN = 3  # keys that a note names


def read_google(arrays: Mapping[str, np.ndarray], stem: str) -> LoadedWeights:
    """Read the arrays of a file as a model in parts, in float32.

    The name is for messages, and is held against the sizes. Raises WeightsError in one line with
    the key, and the shapes wanted and found.
    """
    tree = build_parameter_tree(arrays, stem)
    config = config_from_google(tree)
    names = list_array_names(config)
    headless = names["head.linear.weight"].keys[0] not in tree
    if headless:
        names = {ours: place for ours, place in names.items() if not ours.startswith("head.linear")}
    weights = convert_to_torch(select_arrays(tree, config, names), names)
    notes = tree.notes + note_unused_arrays(tree, names)
    refuse_not_finite(weights, tree.stem)
    if headless:
        features = get_tensor_shapes(config)["head.linear.weight"][1]
        notes.insert(0, add_zero_classifier(weights, config.num_classes, features))
    else:
        notes = note_classifier(weights, config) + notes
    return LoadedWeights(
        config=config,
        weights=weights,
        labels=make_numbered_labels(config.num_classes),
        preprocess=infer_google_preprocess(tree, config),
        architecture=find_architecture_name(config),
        notes=(*notes, *note_name_mismatch(config, stem)),
    )


def select_arrays(tree: ParameterTree, config: ModelConfig, names: ArrayNames) -> dict[str, Tensor]:
    """Select the arrays that the model needs, by key, if they have its shapes."""
    meta = {
        name: torch.empty(shape, device="meta") for name, shape in get_tensor_shapes(config).items()
    }
    needed = convert_from_torch(meta, names, config.heads if isinstance(config, ViTConfig) else 1)
    arrays = {}
    for key, place in needed.items():
        shape = list(place.shape)
        if key not in tree:
            raise WeightsError(f"{tree.stem}: there is no array {key}, which should be {shape}")
        array = tree.arrays[key]
        if list(array.shape) != shape:
            raise WeightsError(
                f"{tree.stem}: {tree.called[key]} should be {shape}, and is {list(array.shape)}"
            )
        if array.dtype.kind != "f":
            raise WeightsError(
                f"{tree.stem}: {tree.called[key]} is {array.dtype}, not real numbers"
            )
        arrays[key] = torch.from_numpy(array.astype(np.float32))
    return arrays


def infer_google_preprocess(tree: ParameterTree, config: ModelConfig) -> Preprocess:
    """Infer the preprocessing: vision_transformer, big_transfer and big_vision's models of several
    towers squash images, big_vision's classifiers cut them from the centre.
    """
    try:
        return Preprocess.from_dict(
            {
                "image_size": config.image_size,
                "channels": config.channels,
                "resize": "crop" if tree.big_vision and not tree.tower else "squash",
            }
        )
    except ConfigError as error:
        raise WeightsError(f"{tree.stem}: the images of this model: {error}") from error


def note_classifier(weights: Mapping[str, Tensor], config: ModelConfig) -> list[str]:
    """Note missing class names, and a head that was not trained."""
    if not weights["head.linear.weight"].any():
        return [
            "the classifier in the file is all zero, so all classes score alike: fine-tune it on "
            "classes of your own"
        ]
    return [f"the file does not name its {config.num_classes:,} classes: they are numbered from 0"]


def note_unused_arrays(tree: ParameterTree, names: ArrayNames) -> list[str]:
    """Note arrays that this model does not use."""
    used = {tree.called[key] for place in names.values() for key in place.keys}
    unknown = [key for key in tree.called.values() if key not in used] + list(tree.aside)
    return (
        [f"of the file, {format_keys(unknown)} {choose_verb(unknown)} left out"] if unknown else []
    )


def format_keys(keys: list[str]) -> str:
    """Shorten a list of keys, with their number."""
    first = ", ".join(key[:80] for key in keys[:MAX_KEYS_SHOWN])
    return first if len(keys) <= MAX_KEYS_SHOWN else f"{len(keys)} arrays ({first}, ...)"


def choose_verb(keys: list[str]) -> str:
    return "is" if len(keys) == 1 else "are"


def note_name_mismatch(config: ModelConfig, stem: str) -> list[str]:
    """Note a file name that says another model than the sizes do."""
    name = find_architecture_name(config)
    try:
        named = find_architecture_name(resolve_model(stem).config)
    except ConfigError:
        return []
    if named == name:
        return []
    return [f"the name {stem} speaks of {named}, and the arrays are of {name or 'no named model'}"]


def write_google(model: Model) -> dict[str, np.ndarray]:
    """Return float32 arrays as `checkpoint.load` of vision_transformer takes them; for a ResNet
    those of big_transfer (form "pre") or of big_vision's models/bit.py (form "post"). Attention
    pooling and sines are big_vision's alone, whose `fix_old_checkpoints` reads these names.

    `npz.save_npz` puts them into a file. Raises WeightsError for what their code cannot compute.
    """
    config = model.config
    if isinstance(config, ViTConfig):
        refuse_unsupported("Google's vision_transformer", list_vit_obstacles(config))
    else:
        refuse_unsupported("Google's big_transfer", list_resnet_obstacles(config))
    weights = {name: value.detach().cpu().float() for name, value in model.state_dict().items()}
    heads = config.heads if isinstance(config, ViTConfig) else 1
    return {
        key: value.numpy()
        for key, value in convert_from_torch(weights, list_array_names(config), heads).items()
    }


def list_vit_obstacles(config: ViTConfig) -> list[tuple[bool, str]]:
    """List (whether a fault applies, why the model then cannot be written)."""
    trunk = config.trunk
    return [
        (config.mixer != "attention", f"mixer {config.mixer!r}, it has attention alone"),
        (
            config.position not in ("1d", "sincos2d") or config.position_at != "stem",
            f"position {config.position!r} at {config.position_at!r}, it has '1d' at the stem "
            "(and big_vision 'sincos2d')",
        ),
        (config.classifier == "token+gap", "classifier 'token+gap', it has one pooling"),
        (bool(config.later_parts), f"{' and '.join(config.later_parts)}, it has none such"),
        (config.gelu != "tanh", f"gelu {config.gelu!r}, its GELU is the tanh approximation"),
        (config.norm_eps != 1e-6, f"norm_eps {config.norm_eps:g}, its LayerNorm has 1e-06"),
        (
            config.grid[0] != config.grid[1],
            f"a grid of {config.grid[0]}x{config.grid[1]} patches, its files hold squares alone",
        ),
        (
            trunk is not None and not has_same_numerics(trunk, HYBRID_TRUNK),
            "a ResNet of another form",
        ),
    ]


def list_resnet_obstacles(config: ResNetConfig) -> list[tuple[bool, str]]:
    trunk = config.trunk
    form = BIT_TRUNK if trunk.form == "pre" else HYBRID_TRUNK
    return [
        (trunk.form == "plain", "form 'plain', it has residual units"),
        (trunk.spatial == "axial", "spatial 'axial', it has convolutions alone"),
        (
            not has_same_numerics(trunk, form),
            f"standardise {trunk.standardise!r}, group_norm_eps {trunk.group_norm_eps:g}, padding "
            f"{trunk.padding!r}, pool_padding {trunk.pool_padding!r}; it has {form.standardise!r}, "
            f"{form.group_norm_eps:g}, {form.padding!r}, {form.pool_padding!r}",
        ),
    ]


def has_same_numerics(trunk: TrunkConfig | ConvStemConfig, other: TrunkConfig) -> bool:
    """Return whether two configs differ in sizes alone."""
    if isinstance(trunk, ConvStemConfig):
        return False
    return trunk == replace(other, units=trunk.units, width_factor=trunk.width_factor)
