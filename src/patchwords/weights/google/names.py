"""Our parameters and the keys of Google's files, for ViTs, hybrids and both forms of ResNet.

Sources: models_vit.py and models_resnet.py of vision_transformer, models/vit.py and models/bit.py
of big_vision, bit_pytorch/models.py of big_transfer. Blocks are numbered as in the released files,
by submodule (LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3), before Flax
numbered them by kind; checkpoint.py of vision_transformer takes both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from patchwords.errors import WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import ResNetConfig, TrunkConfig
from patchwords.weights.convert import ArraySource, TensorLayout

ArrayNames = dict[str, ArraySource]

FLAX_ATTENTION = "MultiHeadDotProductAttention"
POSITIONS_KEY = "Transformer/posembed_input/pos_embedding"
PRE_LOGITS_KEY = "pre_logits"
MAP_HEAD_KEY = "MAPHead_0"
BIT_ROOT_KEY = "resnet/root_block/standardized_conv2d/kernel"


def list_array_names(config: ViTConfig | ResNetConfig) -> ArrayNames:
    """Return the place in Google's files of every parameter of the model."""
    if isinstance(config, ViTConfig):
        return list_vit_names(config)
    if config.trunk.form == "pre":
        return list_bit_names(config.trunk)
    return list_trunk_names(config.trunk) | dense_names("head.linear", "head")


def list_vit_names(config: ViTConfig) -> ArrayNames:
    names = list_trunk_names(config.trunk) if isinstance(config.trunk, TrunkConfig) else {}
    names |= dense_names("embed", "embedding", "convolution")
    if config.num_prefix_tokens:
        names["class_token"] = ArraySource(("cls",), "as is")
    if config.position == "1d":
        names["positions.table"] = ArraySource((POSITIONS_KEY,), "as is")
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", f"Transformer/encoderblock_{layer}"
        attention = f"{theirs}/{FLAX_ATTENTION}_1"
        names |= norm_names(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        names |= attention_names(f"{ours}.attention.qkv", attention, ("query", "key", "value"))
        names |= dense_names(f"{ours}.attention.out", f"{attention}/out", "from heads")
        names |= norm_names(f"{ours}.norm2", f"{theirs}/LayerNorm_2")
        names |= mlp_names(f"{ours}.mlp", f"{theirs}/MlpBlock_3")
    names |= norm_names("encoder.norm", "Transformer/encoder_norm")
    if config.classifier == "map":
        names |= list_map_head_names()
    if config.representation_size:
        names |= dense_names("head.representation", PRE_LOGITS_KEY)
    return names | dense_names("head.linear", "head")


def list_map_head_names() -> ArrayNames:
    """Return the places of attention pooling (big_vision)."""
    attention = f"{MAP_HEAD_KEY}/{FLAX_ATTENTION}_0"
    return {
        "head.pool.probe": ArraySource((f"{MAP_HEAD_KEY}/probe",), "as is"),
        **attention_names("head.pool.attention.query", attention, ("query",)),
        **attention_names("head.pool.attention.key_value", attention, ("key", "value")),
        **dense_names("head.pool.attention.out", f"{attention}/out", "from heads"),
        **norm_names("head.pool.norm", f"{MAP_HEAD_KEY}/LayerNorm_0"),
        **mlp_names("head.pool.mlp", f"{MAP_HEAD_KEY}/MlpBlock_0"),
    }


def list_trunk_names(trunk: TrunkConfig) -> ArrayNames:
    """Return the places of a hybrid's ResNet, or of one alone (big_vision's models/bit.py)."""
    names = {"trunk.root.conv.weight": ArraySource(("conv_root/kernel",), "convolution")}
    names |= norm_names("trunk.root.norm", "gn_root")
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours, theirs = f"trunk.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for i in (1, 2, 3):
                kernel = ArraySource((f"{theirs}/conv{i}/kernel",), "convolution")
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm_names(f"{ours}.norm{i}", f"{theirs}/gn{i}")
            if unit == 0:
                kernel = ArraySource((f"{theirs}/conv_proj/kernel",), "convolution")
                names[f"{ours}.shortcut.weight"] = kernel
                names |= norm_names(f"{ours}.shortcut_norm", f"{theirs}/gn_proj")
    return names


def list_bit_names(trunk: TrunkConfig) -> ArrayNames:
    """Return the places of a ResNet in BiT's form, with TensorFlow's names."""
    names = {"trunk.root.conv.weight": ArraySource((BIT_ROOT_KEY,), "convolution")}
    for stage, count in enumerate(trunk.units):
        for unit in range(count):
            ours = f"trunk.stages.{stage}.{unit}"
            theirs = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for i, letter in enumerate("abc", 1):
                kernel = ArraySource(
                    (f"{theirs}/{letter}/standardized_conv2d/kernel",), "convolution"
                )
                names[f"{ours}.conv{i}.weight"] = kernel
                names |= norm_names(
                    f"{ours}.norm{i}", f"{theirs}/{letter}/group_norm", "gamma", "beta"
                )
            if unit == 0:
                kernel = ArraySource(
                    (f"{theirs}/a/proj/standardized_conv2d/kernel",), "convolution"
                )
                names[f"{ours}.shortcut.weight"] = kernel
    names |= norm_names("norm", "resnet/group_norm", "gamma", "beta")
    return names | dense_names("head.linear", "resnet/head/conv2d", "1x1 dense")


def dense_names(ours: str, theirs: str, layout: TensorLayout = "dense") -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource((f"{theirs}/kernel",), layout),
        f"{ours}.bias": ArraySource((f"{theirs}/bias",), "as is"),
    }


def attention_names(ours: str, theirs: str, parts: tuple[str, ...]) -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource(
            tuple(f"{theirs}/{part}/kernel" for part in parts), "to heads"
        ),
        f"{ours}.bias": ArraySource(
            tuple(f"{theirs}/{part}/bias" for part in parts), "heads' bias"
        ),
    }


def norm_names(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> ArrayNames:
    return {
        f"{ours}.weight": ArraySource((f"{theirs}/{scale}",), "as is"),
        f"{ours}.bias": ArraySource((f"{theirs}/{bias}",), "as is"),
    }


def mlp_names(ours: str, theirs: str) -> ArrayNames:
    return dense_names(f"{ours}.fc1", f"{theirs}/Dense_0") | dense_names(
        f"{ours}.fc2", f"{theirs}/Dense_1"
    )


# Google's arrays under one set of names, whichever program wrote them.
#
# Among the files are those of vision_transformer before and after Flax changed its numbering, of
# big_vision (a tower among others, all layers in one array, positions outside of the encoder), and
# of big_transfer and its successor. What changes in value is said; nothing changes in what a model
# computes.


# Where the parameters are: Flax's optimizer, big_vision's image tower and whole state, bare.
MODEL_PREFIXES = ("opt/target/", "params/img/", "params/", "img/", "")
ROOT_KEYS = ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel", BIT_ROOT_KEY)

BLOCK_PATTERN = r"(Transformer/encoderblock(?:_\d+)?)"
UNIT_PATTERN = r"(block\d+/unit\d+)"
# (what a key may be, what it is called here). A key is changed by all that match, in this order.
KEY_RENAMES = (
    (r"(.*)/standardized_conv2d_\d+/(.*)", r"\1/standardized_conv2d/\2"),
    # Flax's numbering by kind -> by submodule
    (rf"{BLOCK_PATTERN}/LayerNorm_1/(.*)", r"\1/LayerNorm_2/\2"),
    (rf"{BLOCK_PATTERN}/{FLAX_ATTENTION}_0/(.*)", rf"\1/{FLAX_ATTENTION}_1/\2"),
    (rf"{BLOCK_PATTERN}/MlpBlock_0/(.*)", r"\1/MlpBlock_3/\2"),
    (r"(?:Transformer/)?pos_embedding", POSITIONS_KEY),
    (
        rf"(probe|(?:MlpBlock|LayerNorm|{FLAX_ATTENTION})_0/.*)",
        rf"{MAP_HEAD_KEY}/\1",
    ),  # before MAPHead
    # big_vision's models/bit_paper.py (and bit_jax) -> TensorFlow's
    (r"root_block/conv_root/kernel", BIT_ROOT_KEY),
    (r"norm-pre-head/scale", "resnet/group_norm/gamma"),
    (r"norm-pre-head/bias", "resnet/group_norm/beta"),
)
BIT_KEY_RENAMES = (
    *(
        rename
        for i, letter in enumerate("abc", 1)
        for rename in (
            (rf"{UNIT_PATTERN}/conv{i}/kernel", rf"resnet/\1/{letter}/standardized_conv2d/kernel"),
            (rf"{UNIT_PATTERN}/gn{i}/scale", rf"resnet/\1/{letter}/group_norm/gamma"),
            (rf"{UNIT_PATTERN}/gn{i}/bias", rf"resnet/\1/{letter}/group_norm/beta"),
        )
    ),
    (rf"{UNIT_PATTERN}/conv_proj/kernel", r"resnet/\1/a/proj/standardized_conv2d/kernel"),
    (r"(?:conv_)?head/(kernel|bias)", r"resnet/head/conv2d/\1"),
)
GROUP_NORM_PATTERN = re.compile(r".*\bgn(?:\d|_root|_proj)/(?:scale|bias)|resnet/.*group_norm/\w+")
SCANNED_PATTERN = re.compile(r"Transformer/encoderblock/(.*)")
MAX_SCANNED_LAYERS = 1000  # in one array; big_vision's largest model has 56
FLAX_NUMBERED_PATTERN = re.compile(r".*Transformer/encoderblock(?:_\d+)?/MlpBlock_0/.*")


@dataclass(frozen=True)
class ParameterTree:
    """The parameters of one model under the names of this module."""

    stem: str  # of the file, for messages
    arrays: dict[str, np.ndarray]
    called: dict[str, str]  # what the file calls them
    aside: tuple[str, ...] = ()  # keys of the file that are of no such model
    big_vision: bool = False  # who wrote it
    tower: bool = False  # one of several in the file, as of CLIP
    notes: list[str] = field(default_factory=list)

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def shape(self, key: str, axes: int) -> tuple[int, ...]:
        """Return the shape of an array; raises WeightsError if it is missing."""
        if key not in self.arrays:
            raise WeightsError(f"{self.stem}: there is no array {key}, and the model needs it")
        shape = self.arrays[key].shape
        if len(shape) != axes:
            raise WeightsError(
                f"{self.stem}: {self.called[key]} should have {axes} axes, and is {list(shape)}"
            )
        return shape

    def numbers(self, module: str, first: int) -> int:
        """Count the modules of a name that ends in a number, from `first` up."""
        matches = (re.match(rf"{module}(\d+)/", key) for key in self.arrays)
        found = {int(match[1][:9]) for match in matches if match}  # longer ones are missed anyway
        for number in range(first, first + len(found)):
            if number not in found:
                raise WeightsError(
                    f"{self.stem}: {module}{number} is missing, and they run up to {max(found)}"
                )
        return len(found)


def build_parameter_tree(arrays: Mapping[str, np.ndarray], stem: str) -> ParameterTree:
    """Find the model among the arrays of a file. Raises WeightsError."""
    prefix, root = find_model_root(arrays, stem)
    bit = root in ROOT_KEYS[2:]
    tree = ParameterTree(
        stem,
        {},
        {},
        aside=tuple(key for key in arrays if not key.startswith(prefix)),
        big_vision=is_big_vision(arrays, root),
        tower=prefix.endswith("img/"),
    )
    for key, array in arrays.items():
        if key.startswith(prefix):
            name = rename_key(key.removeprefix(prefix), bit)
            for one, part in unscan_layers(name, array):
                if one in tree.arrays:
                    raise WeightsError(f"{stem}: {key} and {tree.called[one]} are the same weights")
                tree.arrays[one], tree.called[one] = flatten_group_norm(one, part), key
    add_class_token_row(tree)
    return tree


def find_model_root(arrays: Mapping[str, np.ndarray], stem: str) -> tuple[str, str]:
    """Return the prefix of the names, and the first array of the model."""
    plain = {rename_key(key, bit=False): key for key in arrays}
    for prefix in MODEL_PREFIXES:
        for root in ROOT_KEYS:
            if prefix + root in arrays or prefix + root in plain:
                return prefix, root
    some = ", ".join(list(arrays)[:3]) or "nothing"
    raise WeightsError(
        f"{stem} is no ViT, hybrid or BiT of Google's: it has no {ROOT_KEYS[0]} and no {BIT_ROOT_KEY}, but "
        f"{some[:120]}"
    )


def is_big_vision(arrays: Mapping[str, np.ndarray], root: str) -> bool:
    """Return whether the arrays are big_vision's: its ResNets have other roots; its ViTs are
    numbered as Flax does today, and have no module for positions.
    """
    if root in ("conv_root/kernel", "root_block/conv_root/kernel"):
        return True
    numbered = any(map(FLAX_NUMBERED_PATTERN.fullmatch, arrays))
    return numbered and not any("posembed_input" in key for key in arrays)


def rename_key(key: str, bit: bool) -> str:
    for pattern, name in (*KEY_RENAMES, *(BIT_KEY_RENAMES if bit else ())):
        if match := re.fullmatch(pattern, key):
            key = match.expand(name)
    return key


def unscan_layers(name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Split [L, ...] arrays of all layers, as `nn.scan` writes them, into each layer's own."""
    match = SCANNED_PATTERN.fullmatch(name)
    if match is None or array.ndim < 2 or len(array) > MAX_SCANNED_LAYERS:
        return [(name, array)]  # where it is none of a model's, and will be missed
    return [(f"Transformer/encoderblock_{i}/{match[1]}", part) for i, part in enumerate(array)]


def flatten_group_norm(name: str, array: np.ndarray) -> np.ndarray:
    """Flatten GroupNorm's parameters, which are [1, 1, 1, C] in files before Flax 0.3.6."""
    if name.startswith("resnet/head/conv2d/kernel") and array.ndim == 2:
        return array[None, None]  # [1, 1, I, O], as TensorFlow has it
    if GROUP_NORM_PATTERN.fullmatch(name) and array.shape[:-1] == (1, 1, 1):
        return array.reshape(-1)
    return array


def add_class_token_row(tree: ParameterTree) -> None:
    """Prepend the class token's position, zero: big_vision adds positions before the token."""
    table = tree.arrays.get(POSITIONS_KEY)
    if table is None or table.ndim != 3 or "cls" not in tree:
        return
    rows = table.shape[1]
    if is_square(rows) and not (rows > 1 and is_square(rows - 1)):
        none = np.zeros_like(table[:, :1])  # [1, 1, D]
        tree.arrays[POSITIONS_KEY] = np.concatenate([none, table], axis=1)
        tree.notes.append(
            "the file has no position for the class token: it is added before; ours is zero, which "
            "gives the same"
        )


def is_square(count: int) -> bool:
    return math.isqrt(count) ** 2 == count
