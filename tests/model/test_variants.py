from __future__ import annotations

import pytest

from patchwords.errors import ConfigError
from patchwords.model.variants import USUAL_PATCHES, VARIANTS, WORDS, list_models, resolve


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
def test_every_spelling(
    name: str, canonical: str, image_size: int, gelu: str, norm_eps: float
) -> None:
    variant = resolve(name)
    config = variant.config
    assert variant.name == canonical
    assert config.image_size == (image_size, image_size)
    assert (config.gelu, config.norm_eps) == (gelu, norm_eps)
    letter = canonical.removeprefix("ViT-").split("/")[0]
    assert (config.width, config.depth, config.mlp_width, config.heads) == VARIANTS[letter]


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
        ("R50+ViT-B/16", "unknown model"),  # a hybrid is not taken for its ViT
        ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "unknown model"),
        ("", "; `patchwords models` lists the names"),
    ],
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(name)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tables_are_complete_and_every_row_builds() -> None:
    assert set(USUAL_PATCHES) == set(VARIANTS)
    assert set(WORDS.values()) <= set(VARIANTS)
    for name in list_models():
        variant = resolve(name)
        assert variant.name == name
        assert variant.config.head_width >= 16


def test_list_models_filters_in_any_case() -> None:
    assert list_models("*-h/*") == ["ViT-H/14"]
    assert "ViT-Ti/4" in list_models("ViT-*")
    assert list_models("resnet*") == []
