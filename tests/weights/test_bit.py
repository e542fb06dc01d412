"""BiT's files, in the three ways in which ResNets of Google's are stored."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from google_files import CLASSES, Arrays, bit_arrays, dense, drawn, prefixed, trunk_shapes

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.build import build_model
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.resnet.resnet import ResNet
from patchwords.models.zoo import resolve_model
from patchwords.weights.convert import LoadedWeights, convert_from_torch
from patchwords.weights.google import read_google, write_google
from patchwords.weights.google.names import list_array_names
from patchwords.weights.safe_load import read_npz, save_npz

UNITS = (1, 2, 1)


def numbered(arrays: Arrays) -> Arrays:
    """Some files number the convolutions."""
    names = {
        key: re.sub(r"standardized_conv2d", f"standardized_conv2d_{i}", key)
        for i, key in enumerate(arrays)
    }
    return {names[key]: value for key, value in arrays.items()}


def successor(arrays: Arrays) -> Arrays:
    """The names and shapes of big_vision's models/bit_paper.py."""
    found = {}
    for key, value in arrays.items():
        name = key.removeprefix("resnet/").replace("root_block/standardized", "root_block/root/")
        name = re.sub(r"a/proj/standardized_conv2d", "conv_proj", name)
        for i, letter in enumerate("abc", 1):
            name = name.replace(f"/{letter}/standardized_conv2d", f"/conv{i}")
            name = name.replace(f"/{letter}/group_norm", f"/gn{i}")
        name = re.sub("^group_norm", "norm-pre-head", name)
        name = name.replace("gamma", "scale").replace("beta", "bias")
        name = name.replace("head/conv2d", "head").replace("root//_conv2d", "root")
        name = name.replace("root_block/root/_conv2d", "root_block/conv_root")
        norm = name.endswith(("scale", "bias")) and not name.startswith("head/")
        found[name] = value[None, None, None] if norm else value
    found["head/kernel"] = found["head/kernel"][0, 0]
    return found


def is_the_same(found: LoadedWeights, arrays: Arrays) -> None:
    """Each array stands where it belongs."""
    weights = found.weights

    def kernel(name: str) -> np.ndarray:
        return weights[name].permute(2, 3, 1, 0).numpy()

    root = arrays["resnet/root_block/standardized_conv2d/kernel"]
    np.testing.assert_array_equal(kernel("trunk.root.conv.weight"), root)
    for stage, count in enumerate(UNITS):
        for unit in range(count):
            ours = f"trunk.stages.{stage}.{unit}"
            theirs = f"resnet/block{stage + 1}/unit0{unit + 1}"
            for i, letter in enumerate("abc", 1):
                at = f"{theirs}/{letter}"
                np.testing.assert_array_equal(
                    kernel(f"{ours}.conv{i}.weight"), arrays[f"{at}/standardized_conv2d/kernel"]
                )
                norm = weights[f"{ours}.norm{i}.weight"], weights[f"{ours}.norm{i}.bias"]
                np.testing.assert_array_equal(norm[0], arrays[f"{at}/group_norm/gamma"])
                np.testing.assert_array_equal(norm[1], arrays[f"{at}/group_norm/beta"])
        np.testing.assert_array_equal(
            kernel(f"trunk.stages.{stage}.0.shortcut.weight"),
            arrays[f"resnet/block{stage + 1}/unit01/a/proj/standardized_conv2d/kernel"],
        )
    np.testing.assert_array_equal(weights["norm.weight"], arrays["resnet/group_norm/gamma"])
    np.testing.assert_array_equal(weights["norm.bias"], arrays["resnet/group_norm/beta"])
    head = arrays["resnet/head/conv2d/kernel"]
    np.testing.assert_array_equal(weights["head.linear.weight"].T, head[0, 0])
    np.testing.assert_array_equal(weights["head.linear.bias"], arrays["resnet/head/conv2d/bias"])


@pytest.mark.parametrize("write", [dict, numbered])
def test_as_released(write: type[dict]) -> None:
    arrays = bit_arrays(UNITS)
    found = read_google(write(arrays) | {"global_step": np.int64(3)}, "x")
    assert found.config == ResNetConfig(
        replace(BIT_TRUNK, units=UNITS), image_size=(224, 224), num_classes=CLASSES
    )
    assert found.preprocess == Preprocess((224, 224), resize="squash")
    assert found.notes[1:] == (
        "the file does not tell the image size: 224 pixels are assumed",
        "of the file, global_step is left out",
    )
    is_the_same(found, arrays)


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/"])
def test_as_big_vision_saves_it(prefix: str) -> None:
    """It pads the root's pooling by the lowest value, and its weights were trained so."""
    arrays = bit_arrays(UNITS)
    found = read_google(prefixed(successor(arrays), prefix), "x")
    assert found.config.trunk == replace(BIT_TRUNK, units=UNITS, pool_padding="lowest")
    assert found.preprocess.resize == "crop"
    is_the_same(found, arrays)


@pytest.mark.parametrize("old", [False, True])
def test_in_the_form_of_the_hybrids(old: bool) -> None:
    """big_vision's models/bit.py."""
    arrays = drawn(trunk_shapes((2, 1)) | dense("head", 512, CLASSES))
    file = {k: v[None, None, None] if old and "gn" in k else v for k, v in arrays.items()}
    found = read_google(file, "x")
    assert found.config == ResNetConfig(replace(HYBRID_TRUNK, units=(2, 1)), num_classes=CLASSES)
    assert found.notes[2:] == ()  # all was used
    weight = found.weights["trunk.stages.0.1.conv2.weight"]
    np.testing.assert_array_equal(weight.permute(2, 3, 1, 0), arrays["block1/unit2/conv2/kernel"])
    np.testing.assert_array_equal(found.weights["head.linear.weight"].T, arrays["head/kernel"])


def test_a_wider_one_with_a_head_of_zeros() -> None:
    arrays = bit_arrays((1, 1), width=192)
    arrays["resnet/head/conv2d/kernel"][:] = 0
    found = read_google(arrays, "BiT-M-R50x3")
    assert found.config.trunk == replace(BIT_TRUNK, units=(1, 1), width_factor=3)
    assert found.notes[0].startswith("the classifier in the file is all zero")
    assert found.notes[-1].endswith("speaks of BiT-R50x3, and the arrays are of no named model")


def test_published_layout() -> None:
    config = resolve_model("BiT-R50x1").config
    with torch.device("meta"):
        state = build_model(config).state_dict()
    arrays = convert_from_torch(state, list_array_names(config))
    assert arrays["resnet/head/conv2d/kernel"].shape == (1, 1, 2048, 1000)
    unit = arrays["resnet/block4/unit03/b/standardized_conv2d/kernel"]
    assert unit.shape == (3, 3, 512, 512)
    assert sum(value.numel() for value in arrays.values()) == 25_549_352  # as timm counts it


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "resnet/block2/unit01/b/group_norm/beta",
            r"there is no array .*, which should be \[128\]",
        ),
        ("resnet/block2/unit01/", "x: resnet/block2/unit1 is missing, and they run up to 2"),
        ("resnet/block1/", "x: resnet/block1 is missing, and they run up to 3"),
        ("resnet/group_norm/gamma", r"no array resnet/group_norm/gamma, which should be \[1024\]"),
        ("resnet/root_block/", "x is no ViT, hybrid or BiT of Google's"),
    ],
)
def test_what_is_missing(key: str, message: str) -> None:
    arrays = {k: v for k, v in bit_arrays(UNITS).items() if not k.startswith(key)}
    with pytest.raises(WeightsError, match=message):
        read_google(arrays, "x")


@pytest.mark.parametrize("trunk", [replace(BIT_TRUNK, width_factor=2), HYBRID_TRUNK])
def test_out_and_in_again_is_bit_equal(tmp_path: Path, trunk: TrunkConfig) -> None:
    config = ResNetConfig(replace(trunk, units=(1, 2)), num_classes=CLASSES)
    model = build_model(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_npz(tmp_path / "x.npz", write_google(model))
    found = read_google(read_npz(tmp_path / "x.npz"), "x")
    assert found.config == config
    assert all(torch.equal(found.weights[k], v) for k, v in model.state_dict().items())


def test_out_gives_the_released_keys() -> None:
    model = ResNet(ResNetConfig(replace(BIT_TRUNK, units=UNITS), num_classes=CLASSES))
    theirs = bit_arrays(UNITS)
    assert {k: v.shape for k, v in write_google(model).items()} == {
        k: v.shape for k, v in theirs.items()
    }


@pytest.mark.parametrize(
    ("trunk", "reason"),
    [
        (replace(BIT_TRUNK, standardise="var+1e-8"), "standardise 'var.1e-8'"),
        (replace(BIT_TRUNK, pool_padding="lowest"), "pool_padding 'lowest'; it has"),
        (replace(HYBRID_TRUNK, spatial="axial"), "spatial 'axial'"),
    ],
)
def test_what_their_code_cannot_compute(trunk: TrunkConfig, reason: str) -> None:
    with pytest.raises(WeightsError, match=f"big_transfer cannot hold this model: .*{reason}"):
        write_google(build_model(ResNetConfig(replace(trunk, units=(1,)))))
