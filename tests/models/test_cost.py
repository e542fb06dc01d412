"""Counts of google-research/vision_transformer (models_test.py), of timm, and torch's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from patchwords.errors import ConfigError
from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.cost import (
    COUNTS_FILE,
    compute_training_flops,
    count_forward_macs,
    count_macs,
    count_parameters,
    count_parts,
    group_part_costs,
)
from patchwords.models.cost.counting import count_flops, count_model
from patchwords.models.zoo import list_models, resolve_model

# name -> parameters, MACs, MACs of the forward pass
COUNTS_OF_0_1 = json.loads(Path(__file__).with_name("counts_of_0_1.json").read_text())
# One or two of each family, the shallow ones: a count takes the deeper ones seconds.
COUNTED_AGAIN = (
    *("ViT-mu/4", "ViT-Ti/16", "ViT-B/16", "R+ViT-Ti/16", "R26+ViT-S/32", "C+ViT-Ti/4"),
    *("BiT-R26x1", "BiT-R50x2", "Axial-ViT-Ti/16", "AxialResNet-50"),
)

PUBLISHED_PARAMETERS = [
    ("Ti/16", {}, 5_717_416),
    ("S/32", {}, 22_878_952),
    ("S/16", {}, 22_050_664),
    ("B/32", {}, 88_224_232),
    ("B/16", {}, 86_567_656),
    ("B/8", {}, 86_576_872),
    ("L/32", {}, 306_535_400),
    ("L/16", {}, 304_326_632),
    ("H/14", {}, 632_045_800),
    ("g/14", {}, 1_012_611_432),
    ("G/14", {}, 1_844_440_680),
    ("S/16", {"classifier": "gap"}, 22_049_896),
    ("S/32", {"classifier": "gap"}, 22_878_184),
    ("B/16", {"classifier": "gap"}, 86_566_120),
    ("B/32", {"classifier": "gap"}, 88_222_696),
    ("B/16", {"image_size": 384}, 86_859_496),
    ("B/32", {"image_size": 384}, 88_297_192),
    ("L/16", {"image_size": 384}, 304_715_752),
    ("L/32", {"image_size": 384}, 306_632_680),
    ("S/16", {"image_size": 384}, 22_196_584),
    ("Ti/16", {"image_size": 384}, 5_790_376),
    ("B/16", {"num_classes": 21_843, "representation_size": 768}, 103_186_515),
    ("L/16", {"num_classes": 21_843, "representation_size": 1024}, 326_740_307),
    ("H/14", {"num_classes": 21_843, "representation_size": 1280}, 660_385_363),
    ("B/16", {"num_classes": 21_843}, 102_595_923),
    ("R+ViT-Ti/16", {}, 6_337_704),
    ("R26+ViT-S/32", {}, 36_431_912),
    ("R26+ViT-B/32", {}, 101_383_976),
    ("R50+ViT-B/16", {}, 98_659_112),
    ("R50+ViT-L/32", {}, 328_994_856),
    # timm's results table has these in millions: 25.55, 217.32, 44.54, 387.93, 236.34, 936.53
    ("BiT-R50x1", {}, 25_549_352),
    ("BiT-R50x3", {}, 217_319_080),
    ("BiT-R101x1", {}, 44_541_480),
    ("BiT-R101x3", {}, 387_934_888),
    ("BiT-R152x2", {}, 236_335_208),
    ("BiT-R152x4", {}, 936_533_224),
]

PUBLISHED_GMACS = [
    ("Ti/16", 224, 1.254),
    ("S/32", 224, 1.143),
    ("S/16", 224, 4.599),
    ("B/32", 224, 4.409),
    ("B/16", 224, 17.564),
    ("B/8", 224, 78.148),
    ("L/32", 224, 15.378),
    ("L/16", 224, 61.555),
    ("H/14", 224, 167.295),
    ("g/14", 224, 267.03),
    ("G/14", 224, 483.75),
    ("Ti/16", 384, 4.682),
    ("S/32", 384, 3.443),
    ("S/16", 384, 15.490),
    ("B/32", 384, 13.044),
    ("B/16", 384, 55.484),
    ("B/8", 384, 294.0),
    ("L/32", 384, 45.276),
    ("L/16", 384, 191.066),
    ("L/16", 512, 362.0),
    ("H/14", 518, 1016.7),
    ("R+ViT-Ti/16", 224, 0.434),
    ("R26+ViT-S/32", 224, 3.464),
    ("R26+ViT-B/32", 224, 6.711),
    ("R50+ViT-B/16", 224, 21.535),
    ("R50+ViT-L/32", 224, 19.413),
    ("R50+ViT-B/32", 224, 8.458),
    ("R50+ViT-L/16", 224, 65.539),
    ("BiT-R50x1", 224, 4.09),
    ("BiT-R50x2", 224, 16.12),
    ("BiT-R101x1", 224, 7.80),
    ("BiT-R152x1", 224, 11.51),
    ("BiT-R152x2", 224, 45.81),
    ("BiT-R152x4", 224, 182.8),
    ("BiT-R200x3", 224, 134.3),
    ("Axial-ViT-B/16", 224, 33.5),
]

# Name, image size of the config, settings. Grids are of primes, where the model lets them be.
SHAPES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("mu/16", (48, 80), {"depth": 2}),
    ("mu/16", (48, 80), {"classifier": "gap", "representation_size": 11}),
    ("mu/16", (48, 80), {"classifier": "map", "channels": 5, "depth": 3}),
    ("mu/16", (48, 80), {"position": "none"}),
    ("mu/16", (48, 80), {"position": "1d", "position_at": "every", "depth": 3}),
    ("mu/16", (48, 80), {"position": "2d", "position_at": "every", "depth": 3}),
    ("mu/16", (48, 80), {"position": "2d", "position_at": "shared", "classifier": "gap"}),
    ("mu/16", (48, 80), {"position": "sincos2d"}),
    ("mu/16", (48, 80), {"position": "relative", "depth": 2}),
    ("mu/16", (48, 80), {"position": "relative", "classifier": "gap"}),
    ("mu/16", (48, 80), {"mixer": "axial", "depth": 2}),
    ("mu/16", (48, 80), {"mixer": "axial", "position": "relative", "depth": 2}),
    ("mu/16", (48, 80), {"mixer": "local", "window": 3, "depth": 2}),
    ("mu/16", (48, 80), {"mixer": "local", "window": 3, "position": "relative"}),
    ("mu/16", (48, 80), {"mixer": "pooling"}),
    ("mu/16", (48, 80), {"mixer": "identity", "depth": 2}),
    ("mu/16", (48, 80), {"mixer": "mlp", "depth": 2}),
    ("R+ViT-mu/16", (96, 160), {}),
    ("R26+ViT-mu/16", (48, 80), {"patch_size": 1}),
    ("R26+ViT-mu/32", (64, 192), {"patch_size": 2, "position": "2d"}),
    ("C+ViT-mu/8", (37, 71), {}),
    ("C+ViT-mu/4", (40, 72), {"patch_size": 2, "layer_channels": (5, 11)}),
    ("R26x1", (37, 71), {}),
    ("R26x1", (37, 71), {"form": "post", "padding": "same", "pool_padding": "lowest"}),
    ("R26x1", (64, 64), {"units": (1, 2, 1), "width_factor": 2, "channels": 5}),
    ("AxialResNet-26", (53, 85), {}),
]


def config_of(name: str, image_size: tuple[int, int], settings: dict[str, Any]) -> ModelConfig:
    return resolve_model(name).config.with_settings(
        num_classes=7, image_size=image_size, **settings
    )


def on_meta(config: ModelConfig) -> Model:
    with torch.device("meta"):
        return build_model(config)


def numel(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("name", "settings", "published"), PUBLISHED_PARAMETERS)
def test_parameters_are_the_published_ones(
    name: str, settings: dict[str, Any], published: int
) -> None:
    assert count_parameters(resolve_model(name).config.with_settings(**settings)) == published


@pytest.mark.parametrize("name", COUNTS_OF_0_1)
def test_counts_are_those_of_0_1(name: str) -> None:
    """Version 0.1 worked them out by formulas, each checked against the module."""
    config = resolve_model(name).config
    counts = count_parameters(config), count_macs(config), count_forward_macs(config)
    assert list(counts) == COUNTS_OF_0_1[name]


def test_every_model_has_packaged_counts_and_no_other_has() -> None:
    packaged = json.loads(COUNTS_FILE.read_text())
    assert list(packaged) == list_models(), "run python -m patchwords.models.cost.counting"


@pytest.mark.parametrize("name", COUNTED_AGAIN)
def test_packaged_counts_are_those_of_the_module(name: str) -> None:
    config = resolve_model(name).config
    assert count_parts(config) == count_model(config), (
        "run python -m patchwords.models.cost.counting"
    )


@pytest.mark.parametrize("name", list_models())
def test_parameters_of_every_model_by_name_are_those_of_its_module(name: str) -> None:
    config = resolve_model(name).config
    assert count_parameters(config) == numel(on_meta(config))


@pytest.mark.parametrize(("name", "image_size", "published"), PUBLISHED_GMACS)
def test_macs_are_the_published_ones(name: str, image_size: int, published: float) -> None:
    assert count_macs(resolve_model(name).config, image_size) / 1e9 == pytest.approx(
        published, rel=1.3e-3
    )


@pytest.mark.parametrize(("name", "image_size", "settings"), SHAPES)
def test_the_forward_pass_leaves_out_what_is_counted_as_unread(
    name: str, image_size: tuple[int, int], settings: dict[str, Any]
) -> None:
    config = config_of(name, image_size, settings)
    images = torch.zeros(1, config.channels, *image_size, device="meta")
    with count_flops() as counter:
        on_meta(config).eval()(images)
    assert count_forward_macs(config) == counter.get_total_flops() / 2
    assert count_parameters(config) == numel(on_meta(config))


@pytest.mark.parametrize(
    ("settings", "macs"),
    [
        # 15 patches of 16x16x3 to 32, 16 tokens; each block 12 D^2 T + 2 T^2 D; 7 classes
        ({"depth": 2}, 15 * 768 * 32 + 2 * (12 * 32**2 * 16 + 2 * 16**2 * 32) + 32 * 7),
        ({"mixer": "pooling"}, 15 * 768 * 32 + 8 * 32**2 * 15 + 32 * 7),
        ({"mixer": "mlp"}, 15 * 768 * 32 + 8 * 32**2 * 15 + 2 * 15 * 16 * 32 + 32 * 7),
        # queries meet 2N - 1 + 3 embeddings of offsets
        (
            {"position": "relative"},
            15 * 768 * 32 + 12 * 32**2 * 16 + 2 * 16**2 * 32 + 16 * 32 * 32 + 32 * 7,
        ),
        # a row sees 5 patches, a column 3
        (
            {"mixer": "axial"},
            15 * 768 * 32 + 2 * 12 * 32**2 * 15 + 2 * 15 * (5 + 3) * 32 + 32 * 7,
        ),
    ],
    ids=str,
)
def test_macs_counted_out_by_hand(settings: dict[str, Any], macs: int) -> None:
    assert count_macs(config_of("mu/16", (48, 80), settings)) == macs


def test_macs_refuse_what_the_model_refuses() -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        count_macs(resolve_model("B/16").config, 100)


@pytest.mark.parametrize("name", ["B/16", "R50+ViT-B/16", "R50x1"])
def test_the_breakdown_is_the_whole(name: str) -> None:
    config = resolve_model(name).config
    parts = [part for same in group_part_costs(config).values() for part in same]
    assert sum(part.parameters for part in parts) == count_parameters(config)
    assert sum(part.macs for part in parts) == count_macs(config)


def test_the_breakdown_names_modules() -> None:
    config = resolve_model("R50+ViT-B/16").config
    model = on_meta(config)
    found = {
        name: sum(part.parameters for part in same)
        for name, same in group_part_costs(config).items()
    }
    assert found["stage 3"] == numel(model.trunk.stages[2])
    assert found["root"] == numel(model.trunk.root)
    assert found["MLP"] == sum(numel(b.mlp) + numel(b.norm2) for b in model.encoder.blocks)
    assert [len(same) for same in group_part_costs(config).values()][:4] == [1, 3, 4, 9]


def test_training_takes_six_operations_a_product() -> None:
    assert compute_training_flops(1_000, 7) == 42_000
