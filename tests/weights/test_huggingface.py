"""Folders of transformers, read and written: the same logits, the same scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from benchmarks import peers
from PIL import Image

from drawn import drawn
from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.build import Model, build_model
from patchwords.models.resnet.config import BIT_TRUNK, ResNetConfig, TrunkConfig
from patchwords.models.vit import ViT
from patchwords.weights.adapt import build_with_weights
from patchwords.weights.huggingface import read_huggingface, write_huggingface
from patchwords.weights.huggingface.config import (
    preprocess_from_huggingface,
    preprocess_to_huggingface,
)
from patchwords.weights.pretrained import Pretrained

transformers = peers.load("transformers")

CLOSE = 1e-9  # in float64, where orders of summation differ by 1e-14 or so
SIZES = {
    "hidden_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 23,
    "num_labels": 7,
}
LABELS = ("daisy", "dandelion", "rose", "sunflower", "tulip", "oak", "ash")


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def saved_vit(folder: Path, kind: str = "ViTForImageClassification", **settings: Any) -> Any:
    settings = {"image_size": [12, 20], "patch_size": 4, **SIZES, **settings}
    model = drawn(getattr(transformers, kind)(transformers.ViTConfig(**settings)))
    model.save_pretrained(folder)
    return model


def read(folder: Path) -> Model:
    found = read_huggingface(folder)
    return build_with_weights(found.config, found.weights).double().eval()


def images(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("size", "patch"), [([12, 20], 4), (15, 5)])
def test_a_classifier_has_the_same_logits(act: str, size: Any, patch: int, tmp_path: Path) -> None:
    theirs = saved_vit(tmp_path, hidden_act=act, image_size=size, patch_size=patch).double()
    ours = read(tmp_path)
    x = images(3, 3, *ours.config.image_size)
    with torch.no_grad():
        assert (theirs(x).logits - ours(x)).abs().max() < CLOSE
    assert ours.config.norm_eps == 1e-12


@pytest.mark.parametrize("pooler", [7, None])
def test_the_pooler_is_the_tanh_layer(pooler: int | None, tmp_path: Path) -> None:
    theirs = saved_vit(tmp_path, "ViTModel", pooler_output_size=pooler).double()
    found = read_huggingface(tmp_path)
    assert any("no classifier" in note for note in found.notes)
    assert found.weights["head.linear.weight"].count_nonzero() == 0
    ours, x = read(tmp_path), images(3, 3, 12, 20)
    assert isinstance(ours, ViT)
    with torch.no_grad():
        features = ours.forward_features(x)
        assert (theirs(x).last_hidden_state - features).abs().max() < CLOSE
        assert (theirs(x).pooler_output - ours.forward_head(features, True)).abs().max() < CLOSE


def test_other_image_sizes_take_positions_as_transformers_does(tmp_path: Path) -> None:
    theirs = saved_vit(tmp_path, image_size=12).double()
    ours, x = read(tmp_path), images(2, 3, 28, 20)
    with torch.no_grad():
        logits = theirs(x, interpolate_pos_encoding=True).logits
        assert (logits - ours(x)).abs().max() < CLOSE


@pytest.mark.parametrize("kind", ["in memory", "bin", "in parts", "bins in parts", "half"])
def test_every_kind_of_file_is_read(kind: str, tmp_path: Path) -> None:
    theirs = saved_vit(tmp_path / "plain")
    wanted = read_huggingface(tmp_path / "plain").weights
    folder = tmp_path / "other"
    theirs.config.save_pretrained(folder)
    stored = safetensors.torch.load_file(tmp_path / "plain" / "model.safetensors")
    if kind == "in memory":  # the names of version 5
        state = {name: value.contiguous() for name, value in theirs.state_dict().items()}
        assert state.keys() != stored.keys()
        safetensors.torch.save_file(state, folder / "model.safetensors")
    elif kind == "bin":
        torch.save(stored, folder / "pytorch_model.bin")
    elif kind == "half":
        theirs.half().save_pretrained(folder)
        wanted = {name: value.half().float() for name, value in wanted.items()}
    else:
        suffix, save = ("bin", torch.save) if "bins" in kind else ("safetensors", save_safe)
        names = sorted(stored)
        parts = {f"part-{i}.{suffix}": names[i::2] for i in (0, 1)}
        for part, inside in parts.items():
            save({name: stored[name] for name in inside}, folder / part)
        places = {name: part for part, inside in parts.items() for name in inside}
        base = "pytorch_model.bin" if suffix == "bin" else "model.safetensors"
        (folder / f"{base}.index.json").write_text(json.dumps({"weight_map": places}))
    found = read_huggingface(folder).weights
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert {value.dtype for value in found.values()} == {torch.float32}


def save_safe(tensors: dict[str, torch.Tensor], path: Path) -> None:
    safetensors.torch.save_file(tensors, path)


def test_biases_that_are_not_there_are_zero(tmp_path: Path) -> None:
    theirs = saved_vit(tmp_path, qkv_bias=False).double()
    assert any("no biases" in note for note in read_huggingface(tmp_path).notes)
    x = images(3, 3, 12, 20)
    with torch.no_grad():
        assert (theirs(x).logits - read(tmp_path)(x)).abs().max() < CLOSE


def test_labels_come_in_the_order_of_the_rows(tmp_path: Path) -> None:
    names = {str(i): f"class {i}" for i in range(11)}
    saved_vit(tmp_path, num_labels=11, id2label={int(i): name for i, name in names.items()})
    assert read_huggingface(tmp_path).labels == tuple(f"class {i}" for i in range(11))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "deit"}, "its classifier reads the class token alone"),
        ({"model_type": "vit-hybrid"}, "timm has the same weights"),
        ({"model_type": "swin"}, "known are vit, bit, deit"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"patch_size": [4, 5]}, "patch_size"),
        ({"hidden_size": "ten"}, "width must be a whole number"),
        ({"num_hidden_layers": 10**9}, "tensors for 1000000000 layers"),
        ({"intermediate_size": 24}, "mlp.fc1.bias should be (24,), and is (23,)"),
        ({"image_size": 16}, "positions.table should be (1, 17, 10), and is (1, 16, 10)"),
        ({"id2label": {"a": "b"}}, "damaged"),
    ],
)
def test_what_would_compute_another_thing_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    saved_vit(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError) as caught:
        read_huggingface(tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


JUNK = (None, -1, 0.5, float("inf"), 10**12, "x", [], {"a": 1})


def test_damaged_tables_give_one_line(tmp_path: Path) -> None:
    """Each field in turn is junk: the model is read as if it were well, or refused."""
    saved_vit(tmp_path)
    places = {"config.json": json.loads((tmp_path / "config.json").read_text())}
    places["preprocessor_config.json"] = preprocess_to_huggingface(
        Preprocess((12, 20), resize="squash")
    )
    for file, table in places.items():
        (tmp_path / file).write_text(json.dumps(table))
    refusals = []
    for file, table in places.items():
        for field in table:
            for junk in JUNK:
                (tmp_path / file).write_text(json.dumps(table | {field: junk}))
                try:
                    read_huggingface(tmp_path)
                except WeightsError as error:
                    refusals.append(str(error))
        (tmp_path / file).write_text(json.dumps(table))
    assert len(refusals) > 80
    assert "\n" not in "".join(refusals)
    read_huggingface(tmp_path)


def test_tensors_of_no_known_part_are_refused_and_those_of_other_tasks_named(
    tmp_path: Path,
) -> None:
    saved_vit(tmp_path)
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    extra = {"vit.embeddings.mask_token": torch.zeros(1, 1, 10)}
    save_safe(stored | extra, tmp_path / "model.safetensors")
    assert "left out: embeddings.mask_token" in read_huggingface(tmp_path).notes
    extra = {"vit.encoder.layer.0.attention.scale": torch.zeros(1)}
    save_safe(stored | extra, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"attention\.scale .* is no part"):
        read_huggingface(tmp_path)


# --- out


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_a_model_goes_to_transformers_and_back(
    gelu: str, tiny: Callable[..., ViT], tmp_path: Path
) -> None:
    ours = tiny(gelu=gelu, dropout=0.1)
    preprocess = Preprocess((12, 20), resize="squash", mean=(0.4, 0.5, 0.6))
    assert write_huggingface(Pretrained(ours, preprocess, LABELS), tmp_path) == []
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).double().eval()
    x = images(3, 3, 12, 20)
    with torch.no_grad():
        back = read(tmp_path)
        assert (theirs(x).logits - back(x)).abs().max() < CLOSE
    found = read_huggingface(tmp_path)
    assert same(found.weights, ours)
    assert found.config == ours.config.with_settings(resize="bicubic")
    assert found.labels == LABELS
    assert found.preprocess == Preprocess(
        (12, 20), resize="squash", crop_fraction=1.0, mean=(0.4, 0.5, 0.6)
    )
    assert found.notes == ()


def same(weights: dict[str, torch.Tensor], model: Model) -> bool:
    state = model.state_dict()
    return weights.keys() == state.keys() and all(
        torch.equal(weights[name], value) for name, value in state.items()
    )


def photo(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({"resize": "squash"}, [(50, 40), (61, 97), (110, 90)]),
        ({"resize": "squash", "interpolation": "bicubic"}, [(50, 40), (61, 97)]),
        ({"resize": "crop"}, [(50, 50), (97, 83), (61, 101), (43, 29)]),
        ({"resize": "crop", "crop_fraction": 28 / 36, "interpolation": "bicubic"}, [(61, 97)]),
    ],
)
def test_the_pipeline_gives_our_scores(
    settings: dict[str, Any],
    shapes: list[tuple[int, int]],
    tiny: Callable[..., ViT],
    tmp_path: Path,
) -> None:
    ours = Pretrained(tiny(image_size=28), Preprocess((28, 28), **settings), LABELS)
    write_huggingface(ours, tmp_path)
    pipeline = transformers.pipeline("image-classification", model=str(tmp_path), top_k=7)
    for shape in shapes:
        photo(*shape).save(tmp_path / "photo.png")
        wanted = {one["label"]: one["score"] for one in ours.predict(tmp_path / "photo.png", 7)}
        for one in pipeline(str(tmp_path / "photo.png")):
            # One value in 400 of the resized photo is a level of 255 away (data/preprocess.py, `resize`).
            assert one["score"] == pytest.approx(wanted[one["label"]], abs=3e-4)


def test_a_large_photo_is_nearly_the_same(tiny: Callable[..., ViT], tmp_path: Path) -> None:
    ours = Pretrained(tiny(image_size=28), Preprocess((28, 28)), LABELS)
    write_huggingface(ours, tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    image = photo(400, 301)
    theirs = processor(image, return_tensors="np")["pixel_values"][0] * 127.5
    pixels = torch.from_numpy(ours.preprocess.resize_and_crop(np.array(image)).copy()).permute(
        2, 0, 1
    )
    mine = ours.preprocess.normalise(pixels[None])[0].numpy() * 127.5
    assert np.abs(theirs - mine).mean() < 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"classifier": "gap"}, "reads the class token, not 'gap'"),
        ({"classifier": "map"}, "it has no classifier"),
        ({"registers": 2}, "it has LayerScale"),
        ({"qk_norm": True}, "it has no qk_norm"),
        ({"position": "none"}, "positions are learned by index and added once, not 'none'"),
        ({"position_at": "shared"}, "at 'shared'"),
        ({"mixer": "pooling"}, "not 'gap'"),
        ({"representation_size": 9}, "no tanh layer"),
        ({"patch_size": 1, "trunk": TrunkConfig(units=(1,))}, "no hybrids"),
    ],
)
def test_what_transformers_cannot_hold_is_refused(
    settings: dict[str, Any], says: str, tiny: Callable[..., ViT], tmp_path: Path
) -> None:
    model = tiny(**settings)
    with pytest.raises(WeightsError, match=says):
        write_huggingface(Pretrained(model, Preprocess((12, 20)), LABELS), tmp_path)


def test_a_crop_of_a_rectangle_and_images_of_another_size_are_refused(
    tiny: Callable[..., ViT], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="square images, or preprocessing with resize 'squash'"):
        write_huggingface(Pretrained(tiny(), Preprocess((12, 20)), LABELS), tmp_path)
    with pytest.raises(WeightsError, match="made of 16x16, but the model is for 12x20"):
        write_huggingface(Pretrained(tiny(), Preprocess((16, 16)), LABELS), tmp_path)


# --- BiT


def test_a_bottleneck_with_symmetric_padding_is_refused_both_ways(tmp_path: Path) -> None:
    """It is padded before GroupNorm there: 1e-2 of the largest logit apart from ours."""
    config = transformers.BitConfig(hidden_sizes=[256], depths=[1], layer_type="bottleneck")
    transformers.BitForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(
        WeightsError, match="before its GroupNorm and ReLU, and ours at the pooling"
    ):
        read_huggingface(tmp_path)
    trunk = TrunkConfig((1,), standardise="var+1e-8", group_norm_eps=1e-5, padding="symmetric")
    ours = Pretrained(
        build_model(ResNetConfig(trunk, (56, 56), num_classes=7)), Preprocess((56, 56)), LABELS
    )
    with pytest.raises(
        WeightsError, match="before its GroupNorm and ReLU, and ours at the pooling"
    ):
        write_huggingface(ours, tmp_path / "out")


@pytest.mark.parametrize("kind", ["preactivation", "bottleneck"])
def test_a_bit_has_the_same_logits_both_ways(kind: str, tmp_path: Path) -> None:
    same_padding = kind == "bottleneck"
    config = transformers.BitConfig(
        hidden_sizes=[256, 512],
        depths=[1, 2],
        layer_type=kind,
        global_padding="same" if same_padding else None,
        embedding_dynamic_padding=same_padding,
        num_labels=7,
    )
    theirs = drawn(transformers.BitForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    theirs = theirs.double()
    ours, x = read(tmp_path), images(2, 3, 19, 30)
    with torch.no_grad():
        wanted = theirs(x).logits
        assert (wanted - ours(x)).abs().max() < CLOSE
        preprocess = Preprocess((56, 56))
        write_huggingface(Pretrained(ours.float(), preprocess, LABELS), tmp_path / "out")
        again = transformers.BitForImageClassification.from_pretrained(tmp_path / "out")
        assert (wanted - again.double()(x).logits).abs().max() < CLOSE
    found = read_huggingface(tmp_path / "out")
    assert same(found.weights, ours)
    assert found.config == ours.config.with_settings(image_size=56)
    assert found.preprocess == preprocess


def test_bit_of_its_authors_is_written_with_larger_weights(tmp_path: Path) -> None:
    """w / sqrt(var + 1e-10) is 10w / sqrt(var of 10w + 1e-8)."""
    ours = build_model(
        ResNetConfig(BIT_TRUNK, (32, 32), num_classes=7).with_settings(units=(1, 1))
    ).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            # So small that the epsilons count: a kernel of 64 values has a deviation of 1e-4.
            parameter.normal_(0.0, 1e-4 if parameter.ndim == 4 else 0.5, generator=generator)
    ours = ours.double()
    notes = write_huggingface(Pretrained(ours, Preprocess((32, 32)), LABELS), tmp_path)
    assert any("10 times as large" in note for note in notes)
    theirs = transformers.BitForImageClassification.from_pretrained(tmp_path).double()
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        assert (theirs(x).logits - ours(x)).abs().max() < CLOSE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"standardise": "std+1e-5"}, r"var\+1e-8, not std\+1e-5"),
        ({"group_norm_eps": 1e-6}, "epsilon of 1e-5"),
        ({"pool_padding": "lowest"}, "by zeros"),
        ({"form": "post", "spatial": "axial"}, "no axial attention"),
    ],
)
def test_other_resnets_are_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    config = ResNetConfig(BIT_TRUNK, (32, 32), num_classes=7).with_settings(units=(1,), **settings)
    with pytest.raises(WeightsError, match=says):
        write_huggingface(Pretrained(build_model(config), Preprocess((32, 32)), LABELS), tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_groups": 16}, "num_groups is 16"),
        ({"global_padding": "VALID"}, "'valid'"),
        ({"embedding_dynamic_padding": True}, "two ways"),
        ({"hidden_sizes": [128, 256, 512, 1024]}, "hidden_sizes"),
        ({"output_stride": 16}, "output_stride is 16"),
        ({"layer_type": "basic"}, "'basic'"),
        ({"hidden_act": "gelu"}, "not relu"),
    ],
)
def test_other_bits_are_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bit"} | change))
    save_safe(
        {"embedder.convolution.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(WeightsError, match=says):
        read_huggingface(tmp_path)


# --- preprocessing


@pytest.mark.parametrize(
    "table",
    [
        {"size": 28},
        {"size": {"height": 28, "width": 28}, "resample": 3},
        {"image_processor_type": "ViTImageProcessorFast", "size": [28, 28], "resample": 3},
        {"size": 28, "rescale_factor": 0.01},
        {"size": 28, "do_normalize": False},
        {"size": 28, "do_rescale": False},
        {"size": 28, "do_rescale": False, "do_normalize": False},
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 28, "width": 28},
        },
        {"image_processor_type": "DeiTImageProcessor", "size": 28, "crop_size": 28},
    ],
)
def test_pixels_are_those_of_the_processor(table: dict[str, Any], tmp_path: Path) -> None:
    table = {"image_processor_type": "ViTImageProcessor", **table}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(table))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    preprocess, notes = preprocess_from_huggingface(table, (28, 28), 3)
    assert notes == []
    image = photo(64, 64)
    theirs = processor(image, return_tensors="np")["pixel_values"][0]
    pixels = torch.from_numpy(preprocess.resize_and_crop(np.array(image)).copy()).permute(2, 0, 1)
    mine = preprocess.normalise(pixels[None])[0].numpy()
    # Resizing by torch and by Pillow: one value in 400 is a level of 255 away.
    step = 1 / 255 / min(preprocess.std)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1.01 * step)
    assert (np.abs(mine - theirs) > step / 100).mean() < 0.01


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"size": 28, "resample": 1}, "resample 1"),
        ({"size": 28, "do_resize": False}, "does not resize"),
        ({"size": 30}, "makes images of 30x30, the model takes 28x28"),
        ({"size": {"shortest_edge": 28}}, "fits the short side"),
        ({"size": 32, "do_center_crop": True, "crop_size": 28}, "squashes images to 32x32"),
        ({"image_processor_type": "OddImageProcessor", "size": 28}, "by Odd is read as if"),
    ],
)
def test_what_is_not_quite_the_same_is_noted(table: dict[str, Any], says: str) -> None:
    _, notes = preprocess_from_huggingface(table, (28, 28), 3)
    assert len(notes) == 1
    assert says in notes[0]


@pytest.mark.parametrize("kind", ["ViTFeatureExtractor", "DeiTFeatureExtractor"])
def test_the_older_word_for_a_processor_is_known(kind: str) -> None:
    preprocess, notes = preprocess_from_huggingface(
        {"feature_extractor_type": kind, "size": 224}, (224, 224), 3
    )
    assert notes == []
    assert preprocess.interpolation == ("bilinear" if kind.startswith("ViT") else "bicubic")


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(WeightsError, match="neither height and width nor shortest_edge"):
        preprocess_from_huggingface({"size": {"longest_edge": 28}}, (28, 28), 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", [{"resize": "squash", "crop_fraction": 1.0}, {}])
def test_preprocessing_goes_there_and_back(channels: Any, settings: dict[str, Any]) -> None:
    preprocess = Preprocess((56, 56), channels=channels, interpolation="bicubic", **settings)
    assert preprocess_from_huggingface(
        preprocess_to_huggingface(preprocess), (56, 56), channels
    ) == (preprocess, [])
