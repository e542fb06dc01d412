"""Google's ViTs and hybrids: what is in their files is what our model computes with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from google_files import (
    CLASSES,
    MLP,
    Arrays,
    D,
    K,
    attention,
    big_vision,
    drawn,
    flax_numbers,
    hybrid_arrays,
    mlp,
    norm,
    prefixed,
    scanned,
    vit_arrays,
)

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.models.build import build_model
from patchwords.models.config import ViTConfig
from patchwords.models.resnet.config import BIT_TRUNK, HYBRID_TRUNK, TrunkConfig
from patchwords.models.vit import ViT
from patchwords.models.zoo import resolve_model
from patchwords.weights.adapt import build_with_weights
from patchwords.weights.convert import LoadedWeights, convert_from_torch
from patchwords.weights.google import read_google, write_google
from patchwords.weights.google.names import list_array_names
from patchwords.weights.safe_load import read_npz, save_npz

Build = Callable[..., ViT]
# One float64 sum in another order: 1e-13 of numbers near 10.
CLOSE = {"atol": 1e-12, "rtol": 0.0}


def logits(loaded: LoadedWeights, images: np.ndarray) -> np.ndarray:
    """[B, H, W, C] -> [B, classes], by our model in float64"""
    model = build_with_weights(loaded.config, loaded.weights).double().eval()
    with torch.no_grad():
        return model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()


def images(size: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, size, size, 3))


# --- the official forward pass in NumPy, from the arrays as they are in the file ---------------


def layer_norm(w: Arrays, at: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred / spread * w[f"{at}/scale"] + w[f"{at}/bias"]


def attend(w: Arrays, at: str, query: np.ndarray, x: np.ndarray) -> np.ndarray:
    def project(part: str, y: np.ndarray) -> np.ndarray:
        return (
            np.einsum("btd,dkh->bkth", y, w[f"{at}/{part}/kernel"])
            + (w[f"{at}/{part}/bias"][:, None])
        )

    q, k, v = project("query", query), project("key", x), project("value", x)
    scores = np.einsum("bkqh,bkth->bkqt", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bkqt,bkth->bqkh", weights, v)
    return np.einsum("bqkh,khd->bqd", y, w[f"{at}/out/kernel"]) + w[f"{at}/out/bias"]


def perceive(w: Arrays, at: str, x: np.ndarray) -> np.ndarray:
    y = x @ w[f"{at}/Dense_0/kernel"] + w[f"{at}/Dense_0/bias"]
    y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return y @ w[f"{at}/Dense_1/kernel"] + w[f"{at}/Dense_1/bias"]


def official(arrays: Arrays, x: np.ndarray, classifier: str = "token") -> np.ndarray:
    """[B, H, W, C] -> [B, classes]"""
    w = {key: value.astype(np.float64) for key, value in arrays.items()}
    kernel = w["embedding/kernel"]
    p = len(kernel)
    b, h, wide, c = x.shape
    cut = x.reshape(b, h // p, p, wide // p, p, c).transpose(0, 1, 3, 2, 4, 5)
    y = np.einsum("bijpqc,pqcd->bijd", cut, kernel).reshape(b, -1, kernel.shape[-1])
    y = y + w["embedding/bias"]
    if classifier == "token":
        y = np.concatenate([np.tile(w["cls"], (b, 1, 1)), y], axis=1)
    y = y + w["Transformer/posembed_input/pos_embedding"]
    layer = 0
    while f"Transformer/encoderblock_{layer}/LayerNorm_0/scale" in w:
        at = f"Transformer/encoderblock_{layer}"
        z = layer_norm(w, f"{at}/LayerNorm_0", y)
        y = y + attend(w, f"{at}/MultiHeadDotProductAttention_1", z, z)
        y = y + perceive(w, f"{at}/MlpBlock_3", layer_norm(w, f"{at}/LayerNorm_2", y))
        layer += 1
    y = layer_norm(w, "Transformer/encoder_norm", y)
    if classifier == "map":
        at = "MAPHead_0"
        probe = np.tile(w[f"{at}/probe"], (b, 1, 1))
        y = attend(w, f"{at}/MultiHeadDotProductAttention_0", probe, y)
        y = y + perceive(w, f"{at}/MlpBlock_0", layer_norm(w, f"{at}/LayerNorm_0", y))
    y = y.mean(1) if classifier == "gap" else y[:, 0]
    if "pre_logits/kernel" in w:
        y = np.tanh(y @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return y @ w["head/kernel"] + w["head/bias"]


def without_token(arrays: Arrays) -> Arrays:
    found = {key: value for key, value in arrays.items() if key != "cls"}
    key = "Transformer/posembed_input/pos_embedding"
    return found | {key: found[key][:, 1:]}


def with_map(arrays: Arrays) -> Arrays:
    at = "MAPHead_0"
    pool = attention(f"{at}/MultiHeadDotProductAttention_0") | norm(f"{at}/LayerNorm_0")
    return without_token(arrays) | drawn(
        pool | mlp(f"{at}/MlpBlock_0") | {f"{at}/probe": (1, 1, D)}, seed=5
    )


# --- in --------------------------------------------------------------------------------------


@pytest.mark.parametrize("representation", [None, 11])
@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_logits_are_the_official_ones(classifier: str, representation: int | None) -> None:
    arrays = vit_arrays(representation=representation)
    arrays = {"token": dict, "gap": without_token, "map": with_map}[classifier](arrays)
    found = read_google(arrays, "x")
    assert found.config == ViTConfig(
        patch_size=4,
        width=D,
        depth=2,
        heads=K,
        mlp_width=MLP,
        image_size=(12, 12),
        num_classes=CLASSES,
        classifier=classifier,  # type: ignore[arg-type]
        representation_size=representation,
    )
    assert found.labels == tuple("0123456")
    assert found.preprocess == Preprocess((12, 12), resize="squash")
    assert found.architecture is None
    assert found.notes == ("the file does not name its 7 classes: they are numbered from 0",)
    x = images(12)
    np.testing.assert_allclose(logits(found, x), official(arrays, x, classifier), **CLOSE)


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "params/img/", "img/"])
@pytest.mark.parametrize("write", [dict, flax_numbers, big_vision, scanned])
def test_every_program_that_wrote_it(write: Callable[[Arrays], Arrays], prefix: str) -> None:
    arrays = vit_arrays()
    arrays["Transformer/posembed_input/pos_embedding"][:, 0] = 0  # which big_vision has not
    found = read_google(prefixed(write(arrays), prefix), "x")
    np.testing.assert_allclose(logits(found, images(12)), official(arrays, images(12)), **CLOSE)
    cut = write is big_vision and not prefix.endswith("img/")
    assert found.preprocess.resize == ("crop" if cut else "squash")
    assert any("position for the class token" in note for note in found.notes) == (
        write is big_vision
    )


def test_a_class_token_that_took_its_position_in() -> None:
    """What big_vision makes of a released file: it adds the token's position to the token."""
    arrays = vit_arrays()
    new = big_vision(arrays)
    new["cls"] = new["cls"] + arrays["Transformer/posembed_input/pos_embedding"][:, :1]
    x = images(12)
    # The two are added in float32: 6e-8 of numbers near 1, through two blocks.
    np.testing.assert_allclose(
        logits(read_google(new, "x"), x), official(arrays, x), atol=1e-5, rtol=0
    )


def test_positions_in_the_encoder_and_a_pooling_without_a_module() -> None:
    """big_vision until 2022."""
    arrays = with_map(vit_arrays())
    old = {key.replace("posembed_input/", ""): value for key, value in arrays.items()}
    old = {key.removeprefix("MAPHead_0/"): value for key, value in flax_numbers(old).items()}
    found = read_google(old, "x")
    np.testing.assert_allclose(
        logits(found, images(12)), official(arrays, images(12), "map"), **CLOSE
    )


def test_all_layers_of_a_tower_in_one_array() -> None:
    arrays = with_map(vit_arrays())
    arrays["opt"] = arrays["txt"] = np.zeros(3, np.float32)
    file = prefixed(scanned(flax_numbers(arrays)), "params/img/") | {"params/t": np.ones(1)}
    found = read_google(file, "x")
    np.testing.assert_allclose(
        logits(found, images(12)), official(arrays, images(12), "map"), **CLOSE
    )
    assert found.preprocess.resize == "squash"
    aside = "of the file, params/img/opt, params/img/txt, params/t are left out"
    assert found.notes[-1] == aside


def test_bfloat16_and_half_become_float32(tmp_path: Path) -> None:
    arrays = vit_arrays()
    upper = {k: (v.view(np.uint32) >> 16).astype(np.uint16) for k, v in arrays.items()}
    exact = {k: (v.astype(np.uint32) << 16).view(np.float32) for k, v in upper.items()}
    for stored in (upper, {k: v.view("V2") for k, v in upper.items()}):
        np.savez(tmp_path / "x.npz", **stored)  # type: ignore[arg-type]
        found = read_google(read_npz(tmp_path / "x.npz"), "x")
        np.testing.assert_allclose(logits(found, images(12)), official(exact, images(12)), **CLOSE)
    half = {k: v.astype(np.float16) for k, v in arrays.items()}
    found = read_google(half, "x")
    assert {v.dtype for v in found.weights.values()} == {torch.float32}
    np.testing.assert_allclose(logits(found, images(12)), official(half, images(12)), **CLOSE)


def test_positions_that_are_not_learned() -> None:
    arrays = without_token(vit_arrays())
    del arrays["Transformer/posembed_input/pos_embedding"]
    with pytest.raises(WeightsError, match="x: the arrays make no model: position 'sincos2d' cuts"):
        read_google(arrays, "x")
    wider = {D: 12, D // K: 6}  # sines and cosines of two coordinates need a width of 4 parts
    arrays = {
        key: np.resize(value, [wider.get(size, size) for size in value.shape])
        for key, value in arrays.items()
    }
    found = read_google(arrays, "vit_s16_i1k_90ep")
    assert isinstance(found.config, ViTConfig)
    assert (found.config.position, found.config.image_size) == ("sincos2d", (224, 224))
    assert "positions: they are taken for sines and cosines" in found.notes[1]
    assert "224 pixels are assumed" in found.notes[2]
    assert read_google(arrays, "B_32-i1k-300ep-x-res_384").config.image_size == (384, 384)


@pytest.mark.parametrize("units", [(), (1, 2, 1), (1, 1, 2, 1)])
@pytest.mark.parametrize("old", [False, True])
def test_hybrids(units: tuple[int, ...], old: bool) -> None:
    """Each array arrives where it belongs: the key and the axes, spelled out here."""
    arrays = hybrid_arrays(units, patch=1 if units else 2)
    file = dict(arrays)
    if old:  # GroupNorm's parameters before Flax 0.3.6
        file = {k: v.reshape(1, 1, 1, -1) if "gn" in k else v for k, v in arrays.items()}
    found = read_google(file, "x")
    config, weights = found.config, found.weights
    stride = 8 if not units else 4 * 2 ** (len(units) - 1)
    assert config.trunk == replace(HYBRID_TRUNK, units=units)
    assert config.image_size == (3 * stride, 3 * stride)
    np.testing.assert_array_equal(
        weights["trunk.root.conv.weight"].permute(2, 3, 1, 0), arrays["conv_root/kernel"]
    )
    np.testing.assert_array_equal(weights["trunk.root.norm.bias"], arrays["gn_root/bias"])
    for stage, count in enumerate(units):
        for unit in range(count):
            ours, theirs = f"trunk.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            pairs = [
                ("conv1", "norm1", "gn1"),
                ("conv2", "norm2", "gn2"),
                ("conv3", "norm3", "gn3"),
            ]
            if unit == 0:
                pairs.append(("shortcut", "shortcut_norm", "gn_proj"))
            for conv, group, gn in pairs:
                kernel = arrays[f"{theirs}/{conv.replace('shortcut', 'conv_proj')}/kernel"]
                weight = weights[f"{ours}.{conv}.weight"]
                np.testing.assert_array_equal(weight, kernel.transpose(3, 2, 0, 1))
                np.testing.assert_array_equal(
                    weights[f"{ours}.{group}.weight"], arrays[f"{theirs}/{gn}/scale"]
                )
    assert found.notes[1:] == ()  # all was used


def test_wider_hybrids() -> None:
    found = read_google(hybrid_arrays((1,), 1, width=128), "x")
    assert found.config.trunk == replace(HYBRID_TRUNK, units=(1,), width_factor=2)


@pytest.mark.parametrize(
    ("name", "size", "keys", "positions"),
    [("ViT-B/16", 224, 200, 197), ("ViT-B/16", 384, 200, 577), ("ViT-L/32", 224, 392, 50)],
)
def test_published_layout(name: str, size: int, keys: int, positions: int) -> None:
    """The official files: 200 arrays in ViT-B/16, 202 with the tanh layer."""
    config = resolve_model(name).config.with_settings(image_size=size)
    with torch.device("meta"):
        state = build_model(config).state_dict()
    arrays = convert_from_torch(state, list_array_names(config), config.heads)  # type: ignore[union-attr]
    assert len(arrays) == keys
    table = arrays["Transformer/posembed_input/pos_embedding"]
    assert table.shape == (1, positions, config.width)  # type: ignore[union-attr]
    if name == "ViT-B/16":
        block = "Transformer/encoderblock_11"
        query = f"{block}/MultiHeadDotProductAttention_1/query"
        assert arrays[f"{query}/kernel"].shape == (768, 12, 64)
        assert arrays[f"{query}/bias"].shape == (12, 64)
        assert arrays[f"{block}/MlpBlock_3/Dense_0/kernel"].shape == (768, 3072)
        assert arrays["embedding/kernel"].shape == (16, 16, 3, 768)
        assert (
            len(list_array_names(config.with_settings(representation_size=768))) == len(state) + 2
        )


# --- notes -----------------------------------------------------------------------------------


def test_a_head_of_zeros_is_named() -> None:
    arrays = vit_arrays(representation=11)
    arrays["head/kernel"][:] = 0
    assert read_google(arrays, "x").notes[0].startswith("the classifier in the file is all zero")


def test_a_file_without_a_head() -> None:
    arrays = {k: v for k, v in vit_arrays().items() if not k.startswith("head/")}
    found = read_google(arrays, "x")
    assert found.config.num_classes == len(found.labels) == 1000
    assert not found.weights["head.linear.weight"].any()
    assert found.notes[0].startswith("the file has no classifier")
    with pytest.raises(WeightsError, match=r"no array head/bias, which should be \[7\]"):
        read_google(arrays | {"head/kernel": np.ones((D, CLASSES), np.float32)}, "x")


def test_what_is_left_aside_and_not_finite() -> None:
    arrays = vit_arrays()
    arrays |= {f"opt/{i}": np.zeros(2) for i in range(5)}
    notes = read_google(arrays, "x").notes[1:]
    assert notes == ("of the file, 5 arrays (opt/0, opt/1, opt/2, ...) are left out",)
    arrays["embedding/bias"][0] = np.nan
    with pytest.raises(WeightsError, match=r"x: embed.bias holds NaN or infinity"):
        read_google(arrays, "x")


def test_a_name_that_says_otherwise() -> None:
    notes = read_google(
        vit_arrays(), "B_16-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"
    ).notes
    assert notes[-1].endswith("speaks of ViT-B/16, and the arrays are of no named model")


def test_the_name_comes_from_the_sizes() -> None:
    config = resolve_model("ViT-mu/16").config.with_settings(image_size=32, num_classes=3)
    model = build_model(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    for stem in ("ViT-mu_16", "x"):
        found = read_google(write_google(model), stem)
        assert found.architecture == "ViT-mu/16"
        assert len(found.notes) == 1


# --- refusals --------------------------------------------------------------------------------

QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/bias"
TABLE = "Transformer/posembed_input/pos_embedding"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cls": None}, f"x: {TABLE} has 10 positions, which are no square grid$"),
        ({TABLE: (1, 12, 10)}, f"x: {TABLE} has 12 positions, .* grid and a class token$"),
        ({TABLE: (1, 9, 11)}, r"should be \[1, 10, 10\]"),
        ({QUERY: None}, rf"x: there is no array {QUERY}, which should be \[2, 5\]"),
        ({QUERY: (2, 6)}, rf"x: {QUERY} should be \[2, 5\], and is \[2, 6\]"),
        ({QUERY: (2, 5, 1)}, r"should be \[2, 5\], and is \[2, 5, 1\]"),
        ({"embedding/kernel": (4, 5, 3, 10)}, "x: patches of 4x5 are not square"),
        ({"embedding/kernel": (4, 4, 3)}, r"should have 4 axes, and is \[4, 4, 3\]"),
        ({"embedding/kernel": (0, 0, 3, 10)}, "x: the arrays make no model: patch_size must be"),
        ({"embedding/kernel": None}, "x is no ViT, hybrid or BiT of Google's"),
        ({"embedding/kernel": (4, 4, 5, 10)}, "x: the images of this model: channels is 5"),
        ({"Transformer/encoderblock_7/x": (1,)}, "encoderblock_2 is missing, .* run up to 7"),
        ({"Transformer/encoderblock_2/x": (1,)}, "no array Transformer/encoderblock_2/LayerNorm_0"),
        ({"MAPHead_0/probe": (1, 1, 10)}, "x has a class token and attention pooling"),
        ({"pos_embedding": (1, 9, 10)}, f"x: pos_embedding and {TABLE} are the same weights"),
        ({"conv_root/kernel": (7, 7, 3, 63)}, "63 channels, which is no multiple of 64"),
        (
            {"conv_root/kernel": (7, 7, 3, 64), "gn_root/scale": (64,), "gn_root/bias": (64,)},
            r"embedding/kernel should be \[4, 4, 64, 10\], and is \[4, 4, 3, 10\]",
        ),
    ],
)
def test_what_does_not_fit(change: dict[str, tuple[int, ...] | None], message: str) -> None:
    arrays = vit_arrays()
    for key, shape in change.items():
        arrays.pop(key, None)
        if shape is not None:
            arrays[key] = np.ones(shape, np.float32)
    with pytest.raises(WeightsError, match=message) as error:
        read_google(arrays, "x")
    assert "\n" not in str(error.value)


def test_whole_numbers_are_no_weights() -> None:
    arrays = vit_arrays()
    arrays["cls"] = np.zeros((1, 1, D), np.int32)
    with pytest.raises(WeightsError, match="x: cls is int32, not real numbers"):
        read_google(arrays, "x")


@pytest.mark.parametrize("shape", [(10**12, 0), (10**6, 1), (0, 5), ()])
def test_layers_without_end(shape: tuple[int, ...]) -> None:
    arrays = scanned(vit_arrays())
    arrays["Transformer/encoderblock/LayerNorm_0/bias"] = np.broadcast_to(np.int8(0), shape)
    with pytest.raises(WeightsError, match="LayerNorm_0/bias, which should be"):
        read_google(arrays, "x")


# --- out -------------------------------------------------------------------------------------

SQUARE = {"image_size": (12, 12), "depth": 3}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"classifier": "gap"},
        {"representation_size": 11},
        {"classifier": "gap", "representation_size": 11, "channels": 1},
        {"trunk": TrunkConfig(units=()), "image_size": 32},
        {"trunk": TrunkConfig(units=(1, 2), width_factor=2), "image_size": 96},
    ],
)
def test_out_and_in_again_is_bit_equal(
    tmp_path: Path, tiny: Build, settings: dict[str, object]
) -> None:
    model = tiny(**SQUARE | settings)
    save_npz(tmp_path / "x.npz", write_google(model))
    found = read_google(read_npz(tmp_path / "x.npz"), "x")
    assert found.config == model.config
    expected = model.state_dict()
    assert found.weights.keys() == expected.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in expected.items())


def test_out_gives_the_official_keys_and_the_official_logits(tiny: Build) -> None:
    model = tiny(**SQUARE | {"depth": 2})
    arrays = write_google(model)
    assert {k: v.shape for k, v in arrays.items()} == {k: v.shape for k, v in vit_arrays().items()}
    assert all(v.dtype == np.float32 and v.flags.c_contiguous for v in arrays.values())
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(images(12)).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(ours, official(arrays, images(12)), **CLOSE)


def test_attention_pooling_goes_out_with_the_official_logits(tiny: Build) -> None:
    model = tiny(**SQUARE | {"depth": 2, "classifier": "map"})
    arrays = write_google(model)
    wanted = with_map(vit_arrays())
    assert {k: v.shape for k, v in arrays.items()} == {k: v.shape for k, v in wanted.items()}
    found = read_google(arrays, "x")
    state = model.state_dict()
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in state.items())
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(images(12)).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(ours, official(arrays, images(12), "map"), **CLOSE)


@pytest.mark.parametrize("classifier", ["gap", "map"])
def test_sines_go_out_as_no_positions(tiny: Build, classifier: str) -> None:
    shape = {"width": 12, "depth": 2, "position": "sincos2d", "classifier": classifier}
    model = tiny(**SQUARE | shape)
    arrays = write_google(model)
    assert not any("pos" in key for key in arrays)
    found = read_google(arrays, "x")
    assert isinstance(found.config, ViTConfig)
    assert found.config.position == "sincos2d"
    state = model.state_dict()
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mixer": "pooling"}, "mixer 'pooling'"),
        ({"position": "none"}, "position 'none' at 'stem'"),
        ({"position_at": "every"}, "position '1d' at 'every'"),
        ({"gelu": "erf"}, "gelu 'erf'"),
        ({"norm_eps": 1e-12}, "norm_eps 1e-12"),
        ({"image_size": (12, 20)}, "a grid of 3x5 patches"),
        ({"trunk": replace(BIT_TRUNK, units=(1,)), "image_size": 48}, "a ResNet of another form"),
        (
            {"trunk": TrunkConfig(units=(1,), group_norm_eps=1e-5), "image_size": 48},
            "a ResNet of another form",
        ),
    ],
)
def test_what_their_code_cannot_compute(
    tiny: Build, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(WeightsError, match="vision_transformer cannot hold this model: " + reason):
        write_google(tiny(**SQUARE | settings))
