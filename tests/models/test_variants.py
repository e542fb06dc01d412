from __future__ import annotations

from dataclasses import replace

import pytest

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig
from patchwords.models.zoo import (
    LISTED_PATCH_SIZES,
    RESNET_UNITS,
    SIZE_LETTERS,
    SIZE_WORDS,
    VIT_VARIANTS,
    list_models,
    resolve_model,
)


@pytest.mark.parametrize(
    ("name", "canonical", "image_size", "gelu", "norm_eps"),
    [
        ("ViT-B/16", "ViT-B/16", 224, "tanh", 1e-6),
        ("B/16", "ViT-B/16", 224, "tanh", 1e-6),
        ("b/16", "ViT-B/16", 224, "tanh", 1e-6),
        ("vit-b/16", "ViT-B/16", 224, "tanh", 1e-6),
        ("ViT-B_16", "ViT-B/16", 224, "tanh", 1e-6),
        ("ViT-B_16-224", "ViT-B/16", 224, "tanh", 1e-6),
        ("vit_b_16", "ViT-B/16", 224, "tanh", 1e-6),
        (" ViT-Ti/16 ", "ViT-Ti/16", 224, "tanh", 1e-6),
        ("ti/4", "ViT-Ti/4", 224, "tanh", 1e-6),
        ("VIT-MU/4", "ViT-mu/4", 224, "tanh", 1e-6),
        ("m/16", "ViT-M/16", 224, "tanh", 1e-6),
        ("ViT-b/32", "ViT-b/32", 224, "tanh", 1e-6),
        ("ViT-b_32", "ViT-b/32", 224, "tanh", 1e-6),
        ("vit_b_32", "ViT-B/32", 224, "tanh", 1e-6),
        ("g/14", "ViT-g/14", 224, "tanh", 1e-6),
        ("ViT-G/14", "ViT-G/14", 224, "tanh", 1e-6),
        ("ViT-B/20", "ViT-B/20", 220, "tanh", 1e-6),  # 224 does not divide by 20
        ("vit_base_patch16_224", "ViT-B/16", 224, "erf", 1e-6),
        ("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16", 384, "erf", 1e-6),
        ("timm/vit_giant_patch14_224", "ViT-g/14", 224, "erf", 1e-6),
        ("hf_hub:timm/vit_tiny_patch16_224.augreg_in21k", "ViT-Ti/16", 224, "erf", 1e-6),
        ("vit_large_patch32_224_in21k", "ViT-L/32", 224, "erf", 1e-6),
        ("vit_gigantic_patch14_224", "ViT-G/14", 224, "erf", 1e-6),
        ("google/vit-base-patch16-224-in21k", "ViT-B/16", 224, "erf", 1e-12),
        ("google/vit-huge-patch14-224-in21k", "ViT-H/14", 224, "erf", 1e-12),
        ("vit-large-patch32-384", "ViT-L/32", 384, "erf", 1e-12),
        (
            "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0",
            "ViT-B/16",
            224,
            "tanh",
            1e-6,
        ),
        (
            "Ti_16-i1k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
            "--imagenet2012-steps_20k-lr_0.03-res_384",
            "ViT-Ti/16",
            384,
            "tanh",
            1e-6,
        ),
    ],
)
def test_every_spelling_of_a_vit(
    name: str, canonical: str, image_size: int, gelu: str, norm_eps: float
) -> None:
    variant = resolve_model(name)
    config = variant.config
    assert variant.name == canonical
    assert config.image_size == (image_size, image_size)
    assert (config.gelu, config.norm_eps) == (gelu, norm_eps)
    letter = canonical.removeprefix("ViT-").split("/")[0]
    assert (config.width, config.depth, config.mlp_width, config.heads) == VIT_VARIANTS[letter]


# What timm's hybrids and BiTs have of their own: vision_transformer_hybrid.py, resnetv2.py.
TIMM_HYBRID = {"gelu": "erf", "standardise": "var+1e-8", "group_norm_eps": 1e-5}
TIMM_BIT = {"standardise": "var+1e-8"}


@pytest.mark.parametrize(
    ("name", "canonical", "image_size", "units", "numerics"),
    [
        ("R50+ViT-B/16", "R50+ViT-B/16", 224, (3, 4, 9), {}),
        ("R50+ViT-B_16", "R50+ViT-B/16", 224, (3, 4, 9), {}),
        ("r50+vit-b/16", "R50+ViT-B/16", 224, (3, 4, 9), {}),
        ("R50-ViT-B_16", "R50+ViT-B/16", 224, (3, 4, 9), {}),  # jeonsworld
        ("R50x1+ViT-L/16", "R50+ViT-L/16", 224, (3, 4, 9), {}),
        ("R50+ViT-B/16-384", "R50+ViT-B/16", 384, (3, 4, 9), {}),
        ("R26+ViT-S/32", "R26+ViT-S/32", 224, (2, 2, 2, 2), {}),
        ("R26+S/16", "R26+ViT-S/16", 224, (2, 2, 4), {}),
        ("R101+ViT-H/32", "R101+ViT-H/32", 224, (3, 4, 23, 3), {}),
        ("R152x2+ViT-Ti/16", "R152x2+ViT-Ti/16", 224, (3, 8, 39), {}),
        ("R200+ViT-b/32", "R200+ViT-b/32", 224, (3, 24, 36, 3), {}),
        ("R+ViT-Ti/16", "R+ViT-Ti/16", 224, (), {}),
        ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "R+ViT-Ti/16", 224, (), {}),
        (
            "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1"
            "--imagenet2012-steps_20k-lr_0.01-res_384",
            "R50+ViT-L/32",
            384,
            (3, 4, 6, 3),
            {},
        ),
        ("vit_base_r50_s16_224.orig_in21k", "R50+ViT-B/16", 224, (3, 4, 9), TIMM_HYBRID),
        ("vit_base_r50_s16_384", "R50+ViT-B/16", 384, (3, 4, 9), TIMM_HYBRID),
        ("vit_base_resnet50_384", "R50+ViT-B/16", 384, (3, 4, 9), TIMM_HYBRID),
        ("vit_base_resnet50_224_in21k", "R50+ViT-B/16", 224, (3, 4, 9), TIMM_HYBRID),
        ("vit_small_r26_s32_224.augreg_in21k", "R26+ViT-S/32", 224, (2, 2, 2, 2), TIMM_HYBRID),
        ("vit_base_r26_s32_224.untrained", "R26+ViT-B/32", 224, (2, 2, 2, 2), TIMM_HYBRID),
        ("timm/vit_large_r50_s32_384", "R50+ViT-L/32", 384, (3, 4, 6, 3), TIMM_HYBRID),
        ("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16", 224, (), TIMM_HYBRID),
    ],
)
def test_every_spelling_of_a_hybrid(
    name: str,
    canonical: str,
    image_size: int,
    units: tuple[int, ...],
    numerics: dict[str, str | float],
) -> None:
    variant = resolve_model(name)
    assert variant.name == canonical
    letter, stride = canonical.split("ViT-")[1].split("/")
    width, depth, mlp_width, heads = VIT_VARIANTS[letter]
    expected = ViTConfig(
        patch_size=1 if units else 8,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        image_size=(image_size, image_size),
        trunk=replace(HYBRID_TRUNK, units=units, width_factor=2 if "x2" in canonical else 1),
    )
    assert variant.config == expected.with_settings(**numerics)
    # The number is the stride, but for the root alone, whose model is /32 whatever its name says.
    assert variant.config.stride == (int(stride) if units else 32)


@pytest.mark.parametrize(
    ("name", "canonical", "image_size", "numerics"),
    [
        ("BiT-R50x1", "BiT-R50x1", 224, {}),
        ("BiT-R50", "BiT-R50x1", 224, {}),
        ("R50x1", "BiT-R50x1", 224, {}),
        ("r152X4", "BiT-R152x4", 224, {}),
        ("BiT-M-R50x1", "BiT-R50x1", 224, {}),
        ("BiT-S-R101x3-ILSVRC2012", "BiT-R101x3", 224, {}),
        ("BiT-R200x2", "BiT-R200x2", 224, {}),
        ("resnetv2_50x1_bit", "BiT-R50x1", 224, TIMM_BIT),
        ("resnetv2_50x3_bit.goog_in21k_ft_in1k", "BiT-R50x3", 224, TIMM_BIT),
        ("resnetv2_50x1_bitm", "BiT-R50x1", 224, TIMM_BIT),
        ("resnetv2_152x4_bitm_in21k", "BiT-R152x4", 224, TIMM_BIT),
        ("timm/resnetv2_50x1_bit_distilled", "BiT-R50x1", 224, TIMM_BIT),
        ("resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384", "BiT-R152x2", 384, TIMM_BIT),
        ("resnetv2_152x2_bit_teacher_384", "BiT-R152x2", 384, TIMM_BIT),
        ("google/bit-50", "BiT-R50x1", 224, TIMM_BIT),
    ],
)
def test_every_spelling_of_a_bit(
    name: str, canonical: str, image_size: int, numerics: dict[str, str]
) -> None:
    variant = resolve_model(name)
    assert variant.name == canonical
    depth, factor = canonical.removeprefix("BiT-R").split("x")
    expected = ResNetConfig(trunk=BIT_TRUNK, image_size=(image_size, image_size)).with_settings(
        units=RESNET_UNITS[int(depth)], width_factor=int(factor), **numerics
    )
    assert variant.config == expected


@pytest.mark.parametrize("name", ["Axial-ViT-B/16", "AxialViT-B/16", "axial_vit_b_16"])
def test_every_spelling_of_an_axial_vit(name: str) -> None:
    variant = resolve_model(name)
    assert variant.name == "Axial-ViT-B/16"
    assert variant.config == resolve_model("B/16").config.with_settings(
        mixer="axial", classifier="gap"
    )
    assert variant.config.layers == 24


@pytest.mark.parametrize("name", ["AxialResNet-50", "AxialResNet50", "axial_resnet_50"])
def test_every_spelling_of_an_axial_resnet(name: str) -> None:
    variant = resolve_model(name)
    assert variant.name == "AxialResNet-50"
    trunk = ResNetConfig(trunk=HYBRID_TRUNK).with_settings(units=(3, 4, 6, 3), spatial="axial")
    assert variant.config == trunk


def test_layers_of_a_resnet_make_its_number() -> None:
    for depth, units in RESNET_UNITS.items():
        assert 3 * sum(units) + 2 == depth


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ViT-X/16", "; did you mean 'ViT-"),
        ("vit_base_patch16_clip_224", "; did you mean 'vit_base_patch16_224'"),
        ("google/vit-bsae-patch16-224", "; did you mean 'google/vit-base-patch16-224'"),
        ("vit_base_patch16", "; did you mean 'vit_base_patch16_224'"),
        ("resnet50", "unknown model 'resnet50'"),
        ("ViT-B/0", "; did you mean 'ViT-B/"),
        ("ViT-B", "; did you mean 'ViT-B/"),
        ("R50+ViT-X/16", "; did you mean 'R50+ViT-L/16'"),
        ("R50+VitB/16", "; did you mean 'R50+ViT-B/16'"),
        ("vit_base_resnet50d_224", "unknown model"),  # another network than R50
        ("resnetv2_50x1", "; did you mean 'resnetv2_50x1_bit'"),
        ("Axial-ViT-X/16", "; did you mean 'Axial-ViT-"),
        ("AxialResNet-fifty", "; did you mean 'AxialResNet-50'"),
        ("", "; `patchwords models` lists the names"),
    ],
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model(name)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "would_do"),
    [
        ("R50+ViT-B/14", "but R50+ViT-B/16 and R50+ViT-B/32"),
        ("R+ViT-Ti/32", "but R+ViT-Ti/16"),
        ("vit_base_r50_s8_224", "but R50+ViT-B/16 and R50+ViT-B/32"),
        ("R34+ViT-B/16", "there is no R34; choose from R14, R26, R50, R101, R152, R200"),
        ("BiT-R18x1", "there is no R18; choose from R14, R26, R50, R101, R152, R200"),
        ("AxialResNet-34", "there is no R34; choose from R14, R26, R50, R101, R152, R200"),
    ],
)
def test_names_of_no_model_are_refused_with_what_there_is(name: str, would_do: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_model(name)
    assert would_do in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tables_are_complete_and_every_row_builds() -> None:
    assert tuple(VIT_VARIANTS) == SIZE_LETTERS
    assert set(LISTED_PATCH_SIZES) == set(VIT_VARIANTS)
    assert set(SIZE_WORDS.values()) <= set(VIT_VARIANTS)
    names = list_models()
    assert len(set(names)) == len(names)
    for name in names:
        assert resolve_model(name).name == name


def test_tokens_of_the_hybrids_are_the_papers() -> None:
    tokens = {name: resolve_model(name).config.tokens for name in list_models("R*+ViT*")}
    assert tokens.pop("R50+ViT-B/16") == tokens.pop("R50+ViT-L/16") == 14 * 14 + 1
    assert set(tokens.values()) == {7 * 7 + 1}


def test_list_models_filters_in_any_case() -> None:
    assert list_models("vit-h/*") == ["ViT-H/14"]
    assert "ViT-Ti/4" in list_models("ViT-*")
    assert list_models("bit-r152*") == ["BiT-R152x1", "BiT-R152x2", "BiT-R152x4"]
    assert list_models("resnet*") == []


def test_list_models_goes_by_family_and_then_by_size() -> None:
    families = [name.split("-")[0].split("+")[-1] for name in list_models()]
    assert list(dict.fromkeys(families)) == ["ViT", "BiT", "Axial", "AxialResNet", "CNN"]
    assert list_models()[0] == "ViT-mu/4"
    assert list_models("R*")[0] == "R+ViT-Ti/16"
