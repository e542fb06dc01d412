"""Files of timm, read and written, and compared with timm itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from benchmarks import peers

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.build import Model, ModelConfig, build_model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.vit import ViT
from patchwords.weights.adapt import build_with_weights
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.timm import read_timm, read_timm_state_dict, write_timm
from patchwords.weights.timm.architectures import (
    get_architecture_args,
    resolve_timm_architecture,
)
from patchwords.weights.timm.config import (
    HYBRID_ARCHITECTURES,
    compute_crop_pct,
    compute_mlp_ratio,
    infer_timm_image_size,
    make_resnet_model_args,
    make_vit_model_args,
    preprocess_from_timm,
    preprocess_to_timm,
)
from patchwords.weights.timm.defaults import CFG_BY_NAME, default_pretrained_cfg

timm = peers.load("timm")

CLOSE = 1e-9  # in float64, where orders of summation differ by 1e-14 or so
LABELS = ("daisy", "dandelion", "rose", "sunflower", "tulip", "oak", "ash")
TRUNK = replace(HYBRID_TRUNK, standardise="var+1e-8", group_norm_eps=1e-5)  # as timm has it
SMALL = ViTConfig(width=10, depth=1, heads=2, mlp_width=23, image_size=(64, 96), num_classes=7)
HELD: dict[str, ModelConfig] = {
    "plain": SMALL,
    "erf": SMALL.with_settings(gelu="erf", dropout=0.1, drop_path=0.2),
    "gap": SMALL.with_settings(classifier="gap", patch_size=8),
    "map": SMALL.with_settings(classifier="map"),
    "no positions": SMALL.with_settings(position="none"),
    "grey": SMALL.with_settings(channels=1),
    "registers": SMALL.with_settings(registers=4, class_position=False, layer_scale=0.1),
    "registers, gap": SMALL.with_settings(registers=1, classifier="gap", pool_norm=True),
    "distilled": SMALL.with_settings(gelu="erf", distillation=True),
    "fc_norm": SMALL.with_settings(classifier="gap", class_token=True, pool_norm=True),
    "clip": SMALL.with_settings(pre_norm=True, patch_bias=False, gelu="quick", norm_eps=1e-5),
    "qk_norm": SMALL.with_settings(qk_norm=True, gelu="erf", class_position=False),
    "swiglu": SMALL.with_settings(swiglu=True, gelu="erf", mlp_width=22, layer_scale=1.0),
    "root alone": SMALL.with_settings(patch_size=8, trunk=replace(TRUNK, units=())),
    "hybrid": SMALL.with_settings(patch_size=1, trunk=replace(TRUNK, units=(2, 2, 2, 2))),
    "BiT": ResNetConfig(replace(BIT_TRUNK, standardise="var+1e-8"), (64, 96), num_classes=7),
}


def drawn(model: Any) -> Any:
    """Every parameter drawn, so that nothing can cancel."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def images(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def written(model: Model, folder: Path, **settings: Any) -> tuple[Preprocess, list[str]]:
    config = model.config
    preprocess = Preprocess(config.image_size, channels=config.channels, **settings)  # type: ignore[arg-type]
    return preprocess, write_timm(Pretrained(model, preprocess, LABELS), folder)


@pytest.mark.parametrize("kind", HELD)
def test_a_model_goes_to_timm_and_back(kind: str, tmp_path: Path) -> None:
    ours = drawn(build_model(HELD[kind]))
    preprocess, notes = written(ours, tmp_path, crop_fraction=0.8)
    found = read_timm(tmp_path)
    state = ours.state_dict()
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in state.items())
    config = found.config
    if isinstance(config, ViTConfig):
        config = config.with_settings(resize="bilinear-corners")
    assert config == ours.config
    assert found.preprocess == replace(preprocess, crop_rule="timm")
    assert found.labels == LABELS
    assert notes == []
    assert found.notes == ()


@pytest.mark.parametrize("kind", HELD)
def test_timm_opens_what_was_written(kind: str, tmp_path: Path) -> None:
    ours = drawn(build_model(HELD[kind]))
    written(ours, tmp_path)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).double().eval()
    x = images(2, ours.config.channels, 64, 96)
    with torch.no_grad():
        assert (theirs(x) - ours.double()(x)).abs().max() < CLOSE
    told = timm.data.resolve_data_config({}, model=theirs)
    assert tuple(told["input_size"]) == (ours.config.channels, 64, 96)
    assert (told["crop_mode"], told["interpolation"]) == ("center", "bilinear")


TINY = {
    "img_size": (12, 20),
    "patch_size": 4,
    "embed_dim": 10,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.3,
    "num_classes": 7,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit_base_patch16_224", TINY),
        ("vit_base_patch16_224", {**TINY, "act_layer": "gelu_tanh", "qkv_bias": False}),
        ("vit_base_patch16_224", {**TINY, "class_token": False, "global_pool": "map"}),
        ("vit_medium_patch16_gap_240", TINY),  # class_token=False, LayerScale, no biases of q, k, v
        ("deit3_small_patch16_224", TINY),  # LayerScale, no position for the class token
        ("vit_base_patch16_224", {**TINY, "qk_norm": True}),
        ("vit_base_patch16_224", {**TINY, "global_pool": "avg"}),  # fc_norm, as MAE's
        ("vit_small_patch14_dinov2", TINY),
        ("vit_small_patch14_reg4_dinov2", TINY),
        ("vit_giant_patch14_dinov2", {**TINY, "embed_dim": 16, "mlp_ratio": 5.0}),
        ("vit_medium_patch16_reg4_gap_256", TINY),
        ("vit_base_patch16_clip_224", TINY),
        ("vit_base_patch16_clip_quickgelu_224", TINY),
        ("vit_base_patch16_siglip_224", TINY),
        ("vit_base_patch32_siglip_256", TINY),  # tanh
        ("vit_base_patch16_siglip_gap_224", TINY),
        ("deit_small_distilled_patch16_224", TINY),
        ("vit_small_patch16_36x1_224", TINY),
        ("flexivit_small", TINY),
        ("vit_tiny_r_s16_p8_224", {"img_size": (64, 96), "depth": 1, "num_classes": 7}),
        ("vit_small_r26_s32_224", {"img_size": (64, 96), "depth": 1, "num_classes": 7}),
        ("resnetv2_50x1_bit", {"num_classes": 7}),
    ],
)
def test_logits_are_those_of_timm(name: str, settings: dict[str, Any]) -> None:
    theirs = drawn(timm.create_model(name, pretrained=False, **settings)).double()
    args = {key: value for key, value in settings.items() if key != "num_classes"}
    table = {"architecture": name, "model_args": args, "pretrained_cfg": {"crop_pct": 0.9}}
    found = read_timm_state_dict(theirs.state_dict(), name, table, Path("file"))
    ours = build_with_weights(found.config, found.weights)
    x = images(2, 3, *args.get("img_size", (70, 51)))
    with torch.no_grad():
        assert (theirs(x) - ours(x)).abs().max() < CLOSE


@pytest.mark.parametrize("mode", [{"resize": "squash"}, {"crop_fraction": 28 / 36}])
def test_pixels_are_those_of_timm(mode: dict[str, Any], tmp_path: Path) -> None:
    """Of a square photo under 4 times the size: else rounding of the crop shows, as for others."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((97, 97), Image.Resampling.BICUBIC)
    preprocess = Preprocess((28, 28), **mode)
    cfg = preprocess_to_timm(preprocess)
    told = timm.data.resolve_data_config({}, pretrained_cfg=cfg)
    theirs = timm.data.create_transform(**told)(image)
    pixels = torch.from_numpy(preprocess.resize_and_crop(np.array(image)).copy()).permute(2, 0, 1)
    levels = (preprocess.normalise(pixels[None])[0] - theirs).abs() * 127.5
    assert levels.max() < 1.01  # where a filter ends up between two levels
    assert levels.mean() < 0.01


@pytest.mark.parametrize(
    ("size", "percent"),
    [
        ((96, 96), 0.9),  # margins of 10
        ((64, 64), 0.9),  # of 7: a half, rounded up
        ((224, 224), 0.95),  # of 11
        ((80, 112), 0.9),  # a rectangle: 88 x 124
        ((112, 80), 0.95),
    ],
)
@pytest.mark.parametrize("photo", [(331, 257), (197, 288), (301, 301)])
def test_the_centre_crop_is_where_timm_has_it(
    size: tuple[int, int], percent: float, photo: tuple[int, int]
) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (37, 41, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(photo, Image.Resampling.BICUBIC)
    told = {"input_size": (3, *size), "crop_pct": percent, "interpolation": "bicubic"}
    told |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "crop_mode": "center"}
    theirs = timm.data.create_transform(**told)(image)
    preprocess, notes = preprocess_from_timm(told, size, 3)
    assert notes == []
    levels = (preprocess(image)[0] - theirs).abs() * torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    assert levels.max() * 255 < 4.01  # Pillow's kernel against torch's; a pixel away it is 50
    assert levels.mean() * 255 < 0.2
    again = preprocess_from_timm(preprocess_to_timm(preprocess), size, 3)[0]
    assert again == preprocess
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess


def test_folders_of_0_1_keep_their_crop() -> None:
    old = {"image_size": [224, 224], "resize": "crop", "crop_fraction": 0.95}
    preprocess = Preprocess.from_dict(old)
    assert preprocess.crop_rule == "floor"
    assert preprocess.crop_corner(235, 300) == (5, 38)
    assert replace(preprocess, crop_rule="timm").crop_corner(235, 300) == (6, 38)
    assert "crop_rule" not in preprocess.to_dict()


def test_a_crop_that_timm_moves_is_noted(tmp_path: Path) -> None:
    ours = drawn(build_model(SMALL))
    _, notes = written(ours, tmp_path, crop_fraction=64 / 71)
    assert notes == ["timm rounds the corner of its centre crop up here: a pixel lower and right"]


def test_a_file_without_config_is_preprocessed_as_timm_does() -> None:
    """By its own table, for every name that is understood here."""
    from timm.models import get_pretrained_cfg

    names = {name.partition(".")[0] for name in timm.list_models()} | {*timm.list_pretrained()}
    checked = 0
    for name in sorted(names):
        try:
            _, size = resolve_timm_architecture(name)
        except WeightsError:
            continue
        cfg, default = get_pretrained_cfg(name).to_dict(), default_pretrained_cfg(name)
        theirs = preprocess_from_timm(cfg, infer_timm_image_size({}, cfg, size), 3)
        ours = preprocess_from_timm(default, infer_timm_image_size({}, default, size), 3)
        assert ours == theirs, name
        checked += 1
    assert checked >= 150
    assert CFG_BY_NAME.keys() <= names


# --- in


def state_of(model: ViT) -> dict[str, torch.Tensor]:
    """Under timm's names, as in its files."""
    from patchwords.weights.convert import rename_tensors
    from patchwords.weights.timm import names as timm_names

    return rename_tensors(model.state_dict(), timm_names.VIT_NAMES)[0]


def table(image_size: tuple[int, int] = (12, 20), **args: Any) -> dict[str, Any]:
    return {
        "model_args": {"num_heads": 2, "img_size": image_size, **args},
        "pretrained_cfg": {"crop_pct": 0.9},
    }


NAME = "vit_base_patch16_224"


def test_layer_scale_is_kept_under_either_name(tiny: Callable[..., ViT]) -> None:
    model = tiny(gelu="erf", layer_scale=0.5)
    state = state_of(model)
    assert "blocks.1.ls2.gamma" in state
    older = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): value
        for name, value in state.items()
    }
    for tensors in (state, older):
        found = read_timm_state_dict(tensors, NAME, table(init_values=0.5), Path("file"))
        assert found.config == model.config.with_settings(resize="bicubic-antialias")
        assert all(torch.equal(found.weights[name], v) for name, v in model.state_dict().items())


def test_a_class_token_without_position_has_none(tiny: Callable[..., ViT]) -> None:
    model = tiny(gelu="erf", class_position=False)
    found = read_timm_state_dict(state_of(model), NAME, table(), Path("file"))
    assert found.config == model.config.with_settings(resize="bicubic-antialias")
    assert found.weights["positions.table"].shape == (1, 15, 10)


def test_the_tanh_layer_of_older_files_is_kept(tiny: Callable[..., ViT]) -> None:
    model = tiny(gelu="erf", representation_size=9)
    state = state_of(model)
    assert "pre_logits.fc.weight" in state
    found = read_timm_state_dict(state, NAME, table(), Path("file"))
    assert found.config == model.config.with_settings(resize="bicubic-antialias")


def test_a_file_without_a_classifier_gets_one_of_zeros(tiny: Callable[..., ViT]) -> None:
    state = {name: value for name, value in state_of(tiny()).items() if "head" not in name}
    found = read_timm_state_dict(state, NAME, table(), Path("file"))
    assert found.config.num_classes == 1000
    assert found.weights["head.linear.weight"].count_nonzero() == 0
    assert any("no classifier" in note for note in found.notes)


def test_a_file_alone_is_read_by_the_name_of_its_architecture(tmp_path: Path) -> None:
    model = drawn(build_model(ViTConfig(depth=1, gelu="erf", num_classes=3, patch_size=32)))
    safetensors.torch.save_file(state_of(model), tmp_path / "weights.safetensors")
    torch.save({"state_dict": state_of(model)}, tmp_path / "weights.pth")
    for file in ("weights.safetensors", "weights.pth"):
        found = read_timm(tmp_path / file, "vit_base_patch32_224.augreg_in21k")
        assert found.config == model.config.with_settings(resize="bicubic-antialias")
        assert found.preprocess.interpolation == "bicubic"
        assert any("config.json" in note for note in found.notes)
    with pytest.raises(WeightsError, match="which architecture"):
        read_timm(tmp_path / "weights.pth")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("patch_embed.norm.weight", "a LayerNorm of patches"),
        ("blocks.0.mlp.fc1_g.weight", "SwiGLU"),
        ("rope.freqs", "rotary"),
        ("blocks.0.something", "a part that ours has not"),
    ],
)
def test_parts_of_other_models_are_refused(extra: str, says: str, tiny: Callable[..., ViT]) -> None:
    state = state_of(tiny()) | {extra: torch.zeros(10)}
    with pytest.raises(WeightsError) as caught:
        read_timm_state_dict(state, NAME, table(), Path("file"))
    assert extra in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"act_layer": "relu"}, "act_layer is 'relu'"),
        ({"norm_layer": "rmsnorm"}, "norm_layer is 'rmsnorm'"),
        ({"block_fn": "ParallelScalingBlock"}, "block_fn"),
        ({"pool_include_prefix": True}, "pool_include_prefix"),
        ({"global_pool": "avg"}, "global_pool is 'avg', and the tensors are for 'token'"),
        ({"global_pool": "max"}, "global_pool is 'max'"),
        ({"num_heads": 3}, "width 10 does not split into 3 heads"),
        ({"img_size": 20}, "positions.table should be"),
        ({"img_size": "large"}, "image_size 'large'"),
    ],
)
def test_what_the_tensors_do_not_show_is_looked_at(
    args: dict[str, Any], says: str, tiny: Callable[..., ViT], tmp_path: Path
) -> None:
    safetensors.torch.save_file(state_of(tiny()), tmp_path / "model.safetensors")
    text = json.dumps({"architecture": NAME, **table(**{"img_size": (12, 20), **args})})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError) as caught:
        read_timm(tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


JUNK = (None, -1, 0.5, float("inf"), 10**12, "x", [], {"a": 1})


def test_damaged_tables_give_one_line(tmp_path: Path) -> None:
    """Each field in turn is junk: the model is read as if it were well, or refused."""
    written(drawn(build_model(SMALL)), tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    inside = [(part, field) for part in ("model_args", "pretrained_cfg") for field in whole[part]]
    refusals = []
    for part, field in [("", field) for field in whole] + inside:
        for junk in JUNK:
            table = whole | {part: whole[part] | {field: junk}} if part else whole | {field: junk}
            (tmp_path / "config.json").write_text(json.dumps(table))
            try:
                read_timm(tmp_path)
            except WeightsError as error:
                refusals.append(str(error))
    assert len(refusals) > 40
    assert "\n" not in "".join(refusals)


@pytest.mark.parametrize(
    "name", ["vit_base_patch16_xp_224", "vit_dwee_patch16_reg1_gap_256", "resnet50", "swin_t"]
)
def test_other_architectures_are_refused_by_name(name: str, tiny: Callable[..., ViT]) -> None:
    with pytest.raises(WeightsError, match="is not known to compute what ours does"):
        read_timm_state_dict(state_of(tiny()), name, table(), Path("file"))


def test_names_say_what_tensors_do_not() -> None:
    """Heads, epsilons and activations of every name that is understood, against timm's modules."""
    checked = 0
    for name in timm.list_models(["vit_*", "deit*", "flexivit*"]):
        try:
            heads, size = resolve_timm_architecture(name)
        except WeightsError:
            continue
        if heads is None or "_r26_" in name or "_r50_" in name or "_r_" in name:
            continue
        with torch.device("meta"):
            model = timm.create_model(name, depth=1)
        block, args = model.blocks[0], get_architecture_args(name)
        assert block.attn.num_heads == heads, name
        assert model.norm_pre.eps == block.norm1.eps if args.get("norm_eps") else True, name
        assert block.norm1.eps == args.get("norm_eps", 1e-6), name
        act = type(block.mlp.act).__name__
        wanted = {"quick_gelu": "QuickGELU", "gelu_tanh": "GELUTanh", None: "GELU"}
        swiglu = "giant_patch14" in name and "dinov2" in name
        assert act in ("SiLU" if swiglu else wanted[args.get("act_layer")], "GELUTanh"), name
        assert (act == "GELUTanh") == (args.get("act_layer") == "gelu_tanh"), name
        assert model.patch_embed.img_size == size, name
        assert type(block).__name__ == "Block", name
        checked += 1
    assert checked >= 130


def test_registers_are_written_with_the_position_in_the_class_token(tmp_path: Path) -> None:
    ours = drawn(build_model(SMALL.with_settings(gelu="erf", registers=2, layer_scale=0.1)))
    _, notes = written(ours, tmp_path)
    assert any("added to the token" in note for note in notes)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).double().eval()
    x = images(2, 3, 64, 96)
    with torch.no_grad():
        difference = (theirs(x) - ours.double()(x)).abs().max()
    assert difference < 1e-5  # one sum of two float32


def test_labels_are_in_words_where_there_are_words_for_all(tiny: Callable[..., ViT]) -> None:
    state, keys = state_of(tiny()), [f"n{i}" for i in range(7)]
    words = dict(zip(keys, LABELS, strict=True))
    labelled = {**table(), "label_names": keys, "label_descriptions": words}
    assert read_timm_state_dict(state, NAME, labelled, Path("file")).labels == LABELS
    labelled["label_descriptions"] = words | {"n0": "ash"}  # two classes of one name
    assert read_timm_state_dict(state, NAME, labelled, Path("file")).labels == tuple(keys)
    del labelled["label_names"]
    assert read_timm_state_dict(state, NAME, labelled, Path("file")).labels == tuple("0123456")


# --- out


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"position": "2d"}, "not '2d'"),
        ({"position_at": "every"}, "at 'every'"),
        ({"mixer": "pooling"}, "not 'pooling'"),
        ({"representation_size": 9}, "tanh layer"),
        ({"norm_eps": 1e-12}, "epsilon of 1e-6, not 1e-12"),
        ({"patch_size": 1, "trunk": TrunkConfig(units=(3, 4, 9))}, "var\\+1e-8"),
        ({"patch_size": 1, "trunk": replace(TRUNK, units=(1,))}, "units"),
        ({"classifier": "token+gap"}, "not both"),
        ({"pre_norm": True}, "a bias exactly where no norm"),
        ({"distillation": True, "registers": 1}, "have no registers"),
        ({"registers": 1}, "with registers the class token has no position"),
    ],
)
def test_what_timm_cannot_hold_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WeightsError, match=says):
        make_vit_model_args(SMALL.with_settings(**{"width": 12, **settings}))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"units": (2, 2, 2, 2)}, "it has resnetv2_50x1_bit"),
        ({"width_factor": 2}, "times 2"),
        ({"standardise": "std+1e-5"}, "var\\+1e-8"),
        ({"pool_padding": "lowest"}, "pooling by zeros"),
        ({"form": "post"}, "form is 'pre'"),
    ],
)
def test_other_resnets_are_refused(settings: dict[str, Any], says: str) -> None:
    trunk = {"standardise": "var+1e-8", **settings}
    with pytest.raises(WeightsError, match=says):
        make_resnet_model_args(ResNetConfig(num_classes=7).with_settings(**trunk))


def test_bit_of_its_authors_is_written_with_larger_weights(tmp_path: Path) -> None:
    """The epsilon of its standardisation is 1e-10 and timm's 1e-8; 10w gives the same there."""
    ours = drawn(build_model(ResNetConfig(image_size=(32, 32), num_classes=7)))
    _, notes = written(ours, tmp_path)
    assert any("10 times as large" in note for note in notes)
    found = read_timm(tmp_path)
    assert found.config.trunk == replace(ours.config.trunk, standardise="var+1e-8")
    for name, value in ours.state_dict().items():
        times = 10 if name.startswith("trunk.") and value.ndim == 4 else 1
        assert torch.equal(found.weights[name], value * times)


def test_every_size_of_an_mlp_has_a_ratio() -> None:
    """timm has int(width * ratio)."""
    for width in (*range(1, 60), 192, 384, 768, 1408, 1664):
        for mlp_width in range(1, 5 * width, 7):
            assert int(width * compute_mlp_ratio(width, mlp_width)) == mlp_width


def test_every_crop_has_a_percentage() -> None:
    """timm has floor(side / crop_pct)."""
    for side in (32, 56, 96, 224, 240, 384, 448):
        for whole in range(side, 2 * side):
            preprocess = Preprocess((side, side), crop_fraction=side / whole)
            assert math.floor(side / compute_crop_pct(preprocess)) == whole


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        ({"interpolation": "lanczos"}, "'lanczos'"),
        ({"crop_mode": "border", "crop_pct": 1.0}, "'border'"),
        ({"crop_mode": "squash", "crop_pct": 0.9}, "'squash' with crop_pct 0.9"),
    ],
)
def test_what_is_not_quite_the_same_is_noted(cfg: dict[str, Any], says: str) -> None:
    _, notes = preprocess_from_timm(cfg, (28, 28), 3)
    assert len(notes) == 1
    assert says in notes[0]


def test_what_a_cfg_leaves_out_is_as_in_timm() -> None:
    preprocess, _ = preprocess_from_timm({}, (224, 224), 3)
    assert preprocess.crop_fraction == 0.875
    assert preprocess.interpolation == "bicubic"
    assert preprocess.mean == (0.485, 0.456, 0.406)


def test_the_hybrids_are_those_of_the_paper_and_of_augreg() -> None:
    assert set(HYBRID_ARCHITECTURES) == {(), (2, 2, 2, 2), (3, 4, 9), (3, 4, 6, 3)}
