"""Later ViTs of transformers: the same features and logits, and back to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import peers

from drawn import drawn
from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.config import ViTConfig
from patchwords.models.vit import ViT
from patchwords.weights.adapt import build_with_weights
from patchwords.weights.huggingface import read_huggingface, write_huggingface
from patchwords.weights.pretrained import Pretrained

transformers = peers.load("transformers")

CLOSE = 1e-9  # in float64
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 7,
}
MLP = {"intermediate_size": 24}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def saved(folder: Path, kind: str, config: str, **settings: Any) -> Any:
    table = getattr(transformers, config)(**{**SIZES, **settings})
    model = drawn(getattr(transformers, kind)(table))
    model.save_pretrained(folder)
    return model.double()


def read(folder: Path) -> ViT:
    found = read_huggingface(folder)
    model = build_with_weights(found.config, found.weights).double().eval()
    assert isinstance(model, ViT)
    return model


def images(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


X = (3, 3, 12, 12)
FEATURES = {
    "ViTMSNModel": ("ViTMSNConfig", MLP),
    "IJepaModel": ("IJepaConfig", MLP),
    "DeiTModel": ("DeiTConfig", MLP),
    "Dinov2Model": ("Dinov2Config", {"layerscale_value": 0.5}),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersConfig", {"num_register_tokens": 3}),
    "SiglipVisionModel": ("SiglipVisionConfig", MLP),
}
LOGITS = {
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", MLP),
    "ViTMSNForImageClassification": ("ViTMSNConfig", MLP),
    "IJepaForImageClassification": ("IJepaConfig", MLP),
    "Dinov2ForImageClassification": ("Dinov2Config", {"use_swiglu_ffn": True}),
    "Dinov2WithRegistersForImageClassification": (
        "Dinov2WithRegistersConfig",
        {"num_register_tokens": 2},
    ),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_features_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    config, settings = FEATURES[kind]
    theirs = saved(tmp_path, kind, config, **settings)
    ours, x = read(tmp_path), images(*X)
    with torch.no_grad():
        features = ours.forward_features(x)
        outputs = theirs(x)
        assert (outputs.last_hidden_state - features).abs().max() < CLOSE
        if kind == "SiglipVisionModel":
            pooled = ours.forward_head(features, pre_logits=True)
            assert (outputs.pooler_output - pooled).abs().max() < CLOSE
    assert ours.head.linear.weight.count_nonzero() == 0


@pytest.mark.parametrize("kind", LOGITS)
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    config, settings = LOGITS[kind]
    theirs = saved(tmp_path, kind, config, **settings)
    ours, x = read(tmp_path), images(*X)
    with torch.no_grad():
        assert (theirs(x).logits - ours(x)).abs().max() < CLOSE


@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
def test_the_image_tower_of_clip(kind: str, tmp_path: Path) -> None:
    """Its output is normalised for the class token only."""
    theirs = saved(tmp_path, kind, "CLIPVisionConfig", projection_dim=6, **MLP)
    found = read_huggingface(tmp_path)
    ours, x = read(tmp_path), images(*X)
    assert (ours.config.gelu, ours.config.norm_eps) == ("quick", 1e-5)
    with torch.no_grad():
        outputs = theirs(x)
        stream = ours.forward_intermediates(x, [-1])[-1]
        assert (outputs.last_hidden_state - stream).abs().max() < CLOSE
        if kind == "CLIPVisionModel":
            assert (outputs.pooler_output - ours.represent(x)).abs().max() < CLOSE
        else:
            assert any("visual_projection" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["ViTMAEModel", "ViTMAEForPreTraining"])
def test_the_encoder_of_an_mae_is_a_vit(kind: str, tmp_path: Path) -> None:
    sizes = {
        "decoder_hidden_size": 8,
        "decoder_num_hidden_layers": 1,
        "decoder_intermediate_size": 8,
    }
    sizes["decoder_num_attention_heads"] = 2
    theirs = saved(tmp_path, kind, "ViTMAEConfig", mask_ratio=0.0, **MLP, **sizes)
    ours, x = read(tmp_path), images(*X)
    encoder = theirs if kind == "ViTMAEModel" else theirs.vit
    order = torch.arange(9.0)[None].expand(3, -1)  # rising: nothing is shuffled
    with torch.no_grad():
        features = ours.forward_features(x)
        assert (encoder(x, noise=order).last_hidden_state - features).abs().max() < CLOSE


@pytest.mark.parametrize(
    ("kind", "config"),
    [("Dinov2Model", "Dinov2Config"), ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig")],
)
def test_positions_are_resized_as_transformers_does(kind: str, config: str, tmp_path: Path) -> None:
    """It resizes in float32."""
    theirs = saved(tmp_path, kind, config)
    ours, x = read(tmp_path), images(2, 3, 20, 28)
    with torch.no_grad():
        difference = theirs(x).last_hidden_state - ours.forward_features(x)
    assert difference.abs().max() < 1e-5


WRITTEN = {
    "distilled": {"distillation": True},
    "dinov2": {"layer_scale": 0.5, "classifier": "token+gap", "mlp_width": 32},
    "dinov2 g": {"layer_scale": 0.5, "classifier": "token+gap", "swiglu": True, "mlp_width": 48},
    "registers": {"layer_scale": 1.0, "classifier": "token+gap", "registers": 4, "mlp_width": 32},
    "features": {"layer_scale": 1.0, "registers": 4, "mlp_width": 32},
    "siglip": {"classifier": "map", "gelu": "tanh"},
    "clip": {"pre_norm": True, "patch_bias": False, "gelu": "quick", "norm_eps": 1e-5},
}


def make(kind: str) -> ViT:
    base = ViTConfig(
        patch_size=4, width=16, depth=2, heads=2, mlp_width=24, image_size=(12, 12), num_classes=7
    )
    model = drawn(ViT(base.with_settings(**{"gelu": "erf", **WRITTEN[kind]})))
    if kind in ("features", "siglip", "clip"):  # transformers has no classifier there
        with torch.no_grad():
            model.head.linear.weight.zero_()
            model.head.linear.bias.zero_()
    return model


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_model_goes_to_transformers_and_back(kind: str, tmp_path: Path) -> None:
    ours = make(kind)
    labels = tuple("abcdefg")
    write_huggingface(Pretrained(ours, Preprocess((12, 12)), labels), tmp_path)
    found = read_huggingface(tmp_path)
    state = ours.state_dict()
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in state.items())
    resize = {"resize": ours.config.resize}
    assert found.config.with_settings(**resize) == ours.config
    assert found.labels == labels
    theirs, info = getattr(transformers, transformers_class(tmp_path)).from_pretrained(
        tmp_path, output_loading_info=True
    )
    missing = {name for name in info["missing_keys"] if "mask_token" not in name}
    assert not missing
    assert not info["unexpected_keys"]
    x = images(*X)
    with torch.no_grad():
        outputs = theirs.double().eval()(x)
        if hasattr(outputs, "logits"):
            assert (outputs.logits - ours.double()(x)).abs().max() < CLOSE
        else:
            assert (outputs.pooler_output - ours.double().represent(x)).abs().max() < CLOSE


def transformers_class(folder: Path) -> str:
    import json

    return str(json.loads((folder / "config.json").read_text())["architectures"][0])


@pytest.mark.parametrize("kind", ["features", "siglip", "clip"])
def test_a_trained_head_without_a_place_is_refused(kind: str, tmp_path: Path) -> None:
    ours = make(kind)
    torch.nn.init.ones_(ours.head.linear.weight)
    with pytest.raises(WeightsError, match=r"cannot hold this model.*--to timm"):
        write_huggingface(Pretrained(ours, Preprocess((12, 12)), tuple("abcdefg")), tmp_path)


def test_classifiers_of_other_features_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "deit", "DeiTForImageClassification", "DeiTConfig", **MLP)
    with pytest.raises(WeightsError, match="class token alone"):
        read_huggingface(tmp_path / "deit")


def test_preprocessing_without_a_processor_is_that_of_the_family(tmp_path: Path) -> None:
    saved(tmp_path, "CLIPVisionModel", "CLIPVisionConfig", **MLP)
    found = read_huggingface(tmp_path)
    assert found.preprocess.mean[0] == pytest.approx(0.48145466)
    assert (found.preprocess.resize, found.preprocess.crop_fraction) == ("crop", 1.0)
    assert any("as is usual for clip" in note for note in found.notes)
