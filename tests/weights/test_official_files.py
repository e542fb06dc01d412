"""Files as DINO, DINOv2, MAE, MoCo, DeiT, CLIP and torchvision publish them, made here, tiny."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import patchwords as pw
from drawn import drawn
from patchwords.errors import WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.weights.convert import rename_tensors
from patchwords.weights.locate import find_published_url
from patchwords.weights.meta import find_origin, read_state_dict
from patchwords.weights.meta.layouts import CLIP_NAMES, TORCHVISION_NAMES
from patchwords.weights.timm.architectures import resolve_timm_architecture
from patchwords.weights.timm.names import OLDER_NAMES, VIT_NAMES

State = dict[str, Tensor]
# As wide as the S of their names, and 1 deep.
SMALL = ViTConfig(
    width=12, depth=1, heads=6, mlp_width=16, gelu="erf", image_size=(48, 48), num_classes=5
)


def make(**settings: Any) -> ViT:
    return drawn(ViT(SMALL.with_settings(**settings)))


def timm_names(model: ViT, head: bool = False, older: bool = False) -> State:
    pairs = (*OLDER_NAMES, *VIT_NAMES) if older else VIT_NAMES
    state = rename_tensors(model.state_dict(), pairs)[0]
    return {name: value for name, value in state.items() if head or not name.startswith("head")}


def with_prefix(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


PROJECTOR = {"mlp.0.weight": torch.zeros(3, 12), "last_layer.weight_g": torch.zeros(4, 1)}


def dino(model: ViT) -> Any:
    return timm_names(model)


def dino_full(model: ViT) -> Any:
    student = with_prefix("module.backbone.", timm_names(make()))
    head = with_prefix("head.", PROJECTOR)
    return {
        "student": student | with_prefix("module.", head),
        "teacher": with_prefix("backbone.", timm_names(model)) | head,
        "epoch": 3,
        "args": argparse.Namespace(arch="vit_small"),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }


def dinov2(model: ViT) -> Any:
    return timm_names(model, older=True) | {"mask_token": torch.zeros(1, 12)}


def dinov2_as_timm_has_scales(model: ViT) -> Any:
    names = {"ls1.gamma": "gamma_1", "ls2.gamma": "gamma_2"}
    state = dinov2(model)
    for new, old in names.items():
        state = {name.replace(old, new): value for name, value in state.items()}
    return state


def mae(model: ViT) -> Any:
    decoder = {"decoder_embed.weight": torch.zeros(2, 12), "decoder_pos_embed": torch.zeros(1, 2)}
    return {"model": timm_names(model) | decoder | {"mask_token": torch.zeros(1, 1, 2)}}


def finetuned(model: ViT) -> Any:
    return {"model": timm_names(model, head=True)}


def moco(model: ViT) -> Any:
    base = timm_names(model) | {"head.0.weight": torch.zeros(4, 12)}
    return {
        "epoch": 300,
        "state_dict": with_prefix("module.base_encoder.", base)
        | with_prefix("module.momentum_encoder.", base)
        | {"module.predictor.0.weight": torch.zeros(2, 2)},
    }


def torchvision(model: ViT) -> Any:
    back = [(theirs, ours) for ours, theirs in TORCHVISION_NAMES if "linear_" not in ours]
    return rename_tensors(timm_names(model, head=True), back)[0]


FILES: dict[str, tuple[str, Callable[[ViT], Any], dict[str, Any], str]] = {
    "DINO": ("dino_deitsmall16_pretrain", dino, {}, "bicubic-offset"),
    "DINO, all": ("dino_deitsmall16_full_checkpoint", dino_full, {}, "bicubic-offset"),
    "DINOv2": (
        "dinov2_vits14_pretrain",
        dinov2,
        {"patch_size": 14, "layer_scale": 1e-5, "image_size": 42},
        "bicubic-offset",
    ),
    "DINOv2, registers": (
        "dinov2_vits14_reg4_pretrain",
        dinov2_as_timm_has_scales,
        {"patch_size": 14, "layer_scale": 1e-5, "image_size": 42, "registers": 4},
        "bicubic-antialias",
    ),
    "DINOv2 g": (
        "dinov2_vitg14_pretrain",
        dinov2,
        {"patch_size": 14, "layer_scale": 1e-5, "image_size": 42, "swiglu": True, "heads": 24}
        | {"width": 48},
        "bicubic-offset",
    ),
    "MAE": ("mae_pretrain_vit_base", mae, {"heads": 12}, "bicubic"),
    "MAE, fine-tuned": (
        "mae_finetuned_vit_base",
        finetuned,
        {"heads": 12, "pool_norm": True, "class_token": True, "classifier": "gap"},
        "bicubic",
    ),
    "MoCo v3": ("vit-s-300ep", moco, {"heads": 12}, "bicubic"),
    "DeiT": ("deit_small_patch16_224-cd65a155", finetuned, {}, "bicubic"),
    "DeiT, distilled": (
        "deit_small_distilled_patch16_224-649709d9",
        finetuned,
        {"distillation": True},
        "bicubic",
    ),
    "DeiT III": (
        "deit_3_small_224_21k",
        finetuned,
        {"layer_scale": 1e-5, "class_position": False},
        "bicubic",
    ),
    "torchvision": ("vit_b_16-c867db91", torchvision, {"heads": 12}, "bicubic"),
}


def save(folder: Path, stem: str, content: Any) -> Path:
    path = folder / f"{stem}.pth"
    torch.save(content, path)
    return path


@pytest.mark.parametrize("kind", FILES)
def test_official_files_are_read(kind: str, tmp_path: Path) -> None:
    stem, layout, settings, resize = FILES[kind]
    model = make(**settings)
    source = pw.from_pretrained(save(tmp_path, stem, layout(model)))
    assert source.model.config.with_settings(num_classes=5) == model.config.with_settings(
        resize=resize
    )
    state = source.model.state_dict()
    for name, value in model.state_dict().items():
        if not name.startswith("head.linear"):
            assert torch.equal(state[name], value), name
    x = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        assert torch.allclose(source.model.forward_features(x), model.forward_features(x))
        if layout in (finetuned, torchvision):
            assert torch.allclose(source.model(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("DINO, all", "the projection head (2)"),
        ("DINOv2", "the mask token of pre-training (1)"),
        ("MAE", "the decoder (2)"),
        ("MoCo v3", "the momentum encoder"),
    ],
)
def test_what_is_left_out_is_said(kind: str, says: str, tmp_path: Path) -> None:
    stem, layout, settings, _ = FILES[kind]
    source = pw.from_pretrained(save(tmp_path, stem, layout(make(**settings))))
    assert any("left out" in note and says in note for note in source.changes)


def test_a_file_of_another_name_is_told_what_it_is(tmp_path: Path) -> None:
    path = save(tmp_path, "teacher", dino(make()))
    with pytest.raises(WeightsError, match="'teacher' is not known"):
        pw.from_pretrained(path)
    renamed = pw.from_pretrained(path, architecture="dino_deitsmall16_pretrain")
    assert renamed.model.config.resize == "bicubic-offset"


def test_the_image_tower_of_a_clip_file(tmp_path: Path) -> None:
    model = make(pre_norm=True, patch_bias=False, gelu="quick", norm_eps=1e-5, heads=12)
    back = [(theirs, ours) for ours, theirs in CLIP_NAMES]
    tower = rename_tensors(timm_names(model), back)[0]
    tower["class_embedding"] = tower["class_embedding"][0, 0]
    tower["positional_embedding"] = tower["positional_embedding"][0]
    text = {"positional_embedding": torch.zeros(7, 4), "logit_scale": torch.zeros(())}
    state = with_prefix("visual.", tower | {"proj": torch.zeros(12, 4)}) | text
    name = "vit_base_patch16_clip_quickgelu_224.openai"
    with pytest.raises(WeightsError, match=r"positions\.table"):  # it is made for 224 pixels
        read_state_dict(save(tmp_path, "clip", state), name)
    state["visual.positional_embedding"] = torch.zeros(197, 12)
    source = pw.from_pretrained(save(tmp_path, "clip", state), architecture=name)
    config = source.model.config
    assert (config.gelu, config.norm_eps, config.pre_norm) == ("quick", 1e-5, True)
    assert any("the text tower (2)" in note for note in source.changes)


DAMAGED: dict[str, tuple[Callable[[State], State], str]] = {
    "another prefix": (lambda s: with_prefix("net.core.", s), "under 'net.core.'"),
    "a stranger outside": (
        lambda s: with_prefix("backbone.", s) | {"fc.weight": torch.zeros(3)},
        "fc.weight is neither of the backbone",
    ),
    "a stranger inside": (lambda s: s | {"blocks.0.odd": torch.zeros(3)}, "blocks.0.odd"),
    "a block less": (
        lambda s: {name: value for name, value in s.items() if "blocks" not in name},
        "does not fit",
    ),
    "no norm": (
        lambda s: {name: value for name, value in s.items() if name != "norm.bias"},
        "encoder.norm.bias should be (12,), and is absent",
    ),
    "positions of another size": (
        lambda s: s | {"pos_embed": torch.zeros(1, 7, 12)},
        "positions.table",
    ),
    "flat positions": (lambda s: s | {"pos_embed": torch.zeros(12)}, "does not fit"),
    "half a LayerScale": (
        lambda s: s | {"blocks.0.gamma_1": torch.zeros(12)},
        "layer_scale2 should be",
    ),
    "LayerScale twice": (
        lambda s: s | {"blocks.0.gamma_1": torch.ones(12), "blocks.0.ls1.gamma": torch.ones(12)},
        "is there twice",
    ),
    "registers without width": (lambda s: s | {"register_tokens": torch.zeros(4)}, "does not fit"),
    "a register of NaN": (
        lambda s: s | {"register_tokens": torch.full((1, 4, 12), torch.nan)},
        "registers holds NaN",
    ),
    "whole numbers": (lambda s: s | {"cls_token": torch.ones(1, 1, 12).int()}, "of torch.int32"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    damage, says = DAMAGED[kind]
    path = save(tmp_path, "dino_deitsmall16_pretrain", damage(timm_names(make())))
    with pytest.raises(WeightsError) as caught:
        pw.from_pretrained(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    content = {"model": timm_names(make()), "args": pytest.approx(1.0)}
    with pytest.raises(WeightsError, match=r"needs code to be run.*ask for"):
        pw.from_pretrained(save(tmp_path, "mae_pretrain_vit_base", content))


OFFICIAL = [stem for stem, *_ in FILES.values()] + [
    "dino_vitbase8_pretrain",
    "dinov2_vitl14_reg4_pretrain",
    "mae_pretrain_vit_huge",
    "vit-b-300ep",
    "deit_base_distilled_patch16_384-d0272ac0",
    "deit_3_huge_224_1k",
    "vit_l_32-c7638314",
    "vit_h_14_swag-80465313",
]


@pytest.mark.parametrize("stem", OFFICIAL)
def test_every_official_name_is_a_model_of_timm(stem: str) -> None:
    origin, architecture = find_origin(stem)
    assert origin is not None
    heads, _ = resolve_timm_architecture(architecture)
    assert heads is not None


def test_official_names_have_addresses() -> None:
    base = "https://dl.fbaipublicfiles.com"
    assert find_published_url("dino_deitsmall8_pretrain") == (
        f"{base}/dino/dino_deitsmall8_pretrain/dino_deitsmall8_pretrain.pth"
    )
    assert find_published_url("dinov2_vits14_reg4_pretrain.pth") == (
        f"{base}/dinov2/dinov2_vits14/dinov2_vits14_reg4_pretrain.pth"
    )
    assert find_published_url("mae_finetuned_vit_base") == (
        f"{base}/mae/finetune/mae_finetuned_vit_base.pth"
    )
    assert find_published_url("deit_tiny_patch16_224-a1311bcf") == (
        f"{base}/deit/deit_tiny_patch16_224-a1311bcf.pth"
    )
