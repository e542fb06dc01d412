"""int8 blocks compute what rounding to 8 bits means, and answer nearly as the model does."""

from __future__ import annotations

import copy
import itertools
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm

from patchwords.errors import ConfigError
from patchwords.models.inference import int8
from patchwords.models.inference.calibration import (
    ActivationRanges,
    collect_activation_ranges,
    list_range_shapes,
    widen_range,
)
from patchwords.models.inference.int8 import (
    Int8Linear,
    QuantisedBlock,
    find_int8_obstacle,
    quantise_model,
    round_to_uint8,
    smooth_scales,
)
from patchwords.models.vit import Block, ViT
from patchwords.models.zoo import create_model

here = pytest.mark.skipif(
    find_int8_obstacle() is not None, reason=f"no int8 here: {find_int8_obstacle()}"
)
SIZE = (20, 12)


def shaken(**settings: Any) -> ViT:
    """A model whose every weight matters: the classifier is not zero, nor any bias or table."""
    model = create_model("ViT-mu/4", num_classes=7, image_size=SIZE, **settings)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=noise))
    return cast(ViT, model.eval())


def images(batch: int = 5, seed: int = 1) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, *SIZE, generator=noise) * 2 - 1


def apart(found: Tensor, wanted: Tensor) -> float:
    """Relative, by the norm."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def whole(x: Tensor, scale: float) -> Tensor:
    """The nearest whole numbers of units, as bytes with a sign hold them."""
    return (x / scale).round().clamp(-128, 127)


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Whole numbers times weights that are rounded row by row, float64."""
    units = weight.abs().amax(1) / 127
    return x @ (weight / units[:, None]).round().T * units + bias


def smoothing(magnitudes: Tensor, weight: Tensor) -> Tensor:
    """Eq. 4 of SmoothQuant with alpha 0.5."""
    return (magnitudes.double() / weight.abs().amax(0)).sqrt()


def simulated(block: Block, ranges: ActivationRanges, x: Tensor) -> Tensor:
    """[B, T, D] -> [B, T, D], float64: every rounding of the block, written out."""
    block = copy.deepcopy(block).double()
    attention: Any = block.mixer
    mlp, heads, (batch, tokens, width) = block.mlp, attention.heads, x.shape

    def normed(norm: Any, x: Tensor, name: str, layer: Any) -> tuple[Tensor, Tensor, float]:
        smooth = smoothing(ranges[name], layer.weight)
        scale = float((ranges[name] / smooth).max()) / 127
        y = layer_norm(x, (width,), norm.weight, norm.bias, norm.eps)
        return whole(y / smooth, scale), smooth, scale

    y, smooth, scale = normed(block.norm1, x, "norm1", attention.qkv)
    qkv = dense(y * scale, attention.qkv.weight * smooth, attention.qkv.bias)
    q, k, v = qkv.reshape(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT / (width // heads) ** 0.5).softmax(-1)
    y = (weights @ v).transpose(1, 2).reshape(batch, tokens, width)
    smooth = smoothing(ranges["gathered"], attention.proj.weight)
    scale = float((ranges["gathered"] / smooth).max()) / 127
    y = whole(y / smooth, scale) * scale
    x = x + dense(y, attention.proj.weight * smooth, attention.proj.bias)
    y, smooth, scale = normed(block.norm2, x, "norm2", mlp.fc1)
    y = gelu(dense(y * scale, mlp.fc1.weight * smooth, mlp.fc1.bias), approximate="tanh")
    least, greatest = ranges["gelu"].tolist()
    scale = (greatest - least) / 255
    zero = round(-least / scale)
    y = ((y / scale).round() + zero).clamp(0, 255) - zero
    return x + dense(y * scale, mlp.fc2.weight, mlp.fc2.bias)


@here
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-3), (torch.bfloat16, 2e-2)])
@torch.inference_mode()
def test_a_block_is_every_rounding_written_out(dtype: torch.dtype, tolerance: float) -> None:
    """Numbers half-way between two bytes may go the other way: 1/127 of a few of them."""
    model = shaken(gelu="tanh", heads=4, norm_eps=0.1)
    ranges = {
        name.removeprefix("blocks.0."): value
        for name, value in collect_activation_ranges(model, [images(7)]).items()
        if name.startswith("blocks.0.")
    }
    block = cast(Block, model.encoder.blocks[0])
    for seed in (1, 2):  # of which the second leaves the ranges: rounding ends at their ends
        x = model.tokens(images(3, seed)) * seed
        wanted = simulated(block, ranges, x.double()) - x  # what the branches add
        found = QuantisedBlock(block, ranges, dtype)(x, model.config.grid)
        assert found.dtype == dtype
        assert apart(found.double() - x, wanted) < tolerance
        if dtype == torch.float32:  # and that is far from what the block itself gives
            assert apart(found.double() - x, block(x, model.config.grid) - x) > 3 * tolerance


@here
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_a_dense_layer_of_bytes(form: str) -> None:
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(13, 29, generator=noise) * torch.logspace(-2, 1, 13)[:, None]
    weight[5] = 0
    bias = torch.randn(13, generator=noise)
    x = torch.randint(0, 256, (3, 7, 29), generator=noise, dtype=torch.uint8)
    stream = torch.randn(3, 7, 13, generator=noise)
    layer = Int8Linear(weight, bias, scale=0.02, zero=11)
    units = np.maximum(np.abs(weight.double().numpy()).max(1), 1e-6) / 127
    rounded = np.rint(weight.double().numpy() / units[:, None])
    wanted = torch.from_numpy((x.double().numpy() - 11) * 0.02 @ rounded.T * units) + bias.double()
    assert apart(layer(x, torch.float32), wanted) < 1e-6
    before = stream.clone()
    assert apart(layer.onto(x, stream), wanted + before) < 1e-6
    assert torch.equal(stream, before)  # whoever else holds it finds it as it was
    onward = Int8Linear(torch.ones(1, 13), torch.zeros(1), scale=0.05, zero=4)
    bent = (gelu(wanted, approximate=form) / 0.05 + 4).round().clamp(0, 255)
    found = layer.gelu(x, form, onward)
    assert found.dtype == torch.uint8
    assert (found.double() - bent).abs().max() <= 1
    assert (found.double() != bent).double().mean() < 0.01


def test_bytes_around_128() -> None:
    x = torch.tensor([-1000.0, -128.6, -127.5, -0.4, 0.0, 0.6, 1.5, 126.9, 127.6, 1e9])
    assert round_to_uint8(x.clone()).tolist() == [0, 0, 0, 128, 128, 129, 130, 255, 255, 255]


def test_channels_are_brought_nearer_to_one_another() -> None:
    magnitudes, weight = torch.tensor([4.0, 0.25, 0.0]), torch.tensor([[1.0, -4, 2], [0.5, 1, -2]])
    smooth, scale = smooth_scales(magnitudes, weight)
    assert smooth[:2].tolist() == [2.0, 0.25]
    assert scale == 2.0 / 127
    assert smooth[2] > 0  # a channel that was never anything: no division by zero


@here
@torch.inference_mode()
def test_one_wild_channel_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is shared with the weights; without that every other channel is hardly told."""
    model = shaken(depth=2)
    for block in model.encoder.blocks:
        cast(Any, block).norm1.weight[5] *= 40
        cast(Any, block).norm2.weight[7] *= 40
        cast(Any, block).attention.qkv.weight[:, 5] /= 40
        cast(Any, block).mlp.fc1.weight[:, 7] /= 40
    wanted, ranges = model(images()), collect_activation_ranges(model, [images()])
    smoothed = apart(quantise_model(model, ranges, torch.float32)(images()), wanted)

    def as_they_are(magnitudes: Tensor, weight: Tensor) -> tuple[Tensor, float]:
        return torch.ones_like(magnitudes), float(magnitudes.max()) / 127

    monkeypatch.setattr(int8, "smooth_scales", as_they_are)
    assert smoothed < 0.5 * apart(quantise_model(model, ranges, torch.float32)(images()), wanted)


@here
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gelu": "erf", "norm_eps": 1e-3, "depth": 3},
        {"classifier": "gap", "depth": 2},
        {"classifier": "map", "representation_size": 11},
        {"position": "2d", "position_at": "every", "depth": 3},
        {"dropout": 0.5, "drop_path": 0.5, "depth": 3},
    ],
    ids=str,
)
@torch.inference_mode()
def test_the_copy_answers_nearly_as_the_model(settings: dict[str, Any]) -> None:
    model = shaken(**settings)
    wanted, ranges = (
        model(images()),
        collect_activation_ranges(model, [images(3), images(5, seed=2)]),
    )
    for dtype in (torch.float32, torch.bfloat16):
        copy = quantise_model(model, ranges, dtype)
        assert isinstance(copy, ViT)
        assert all(isinstance(block, QuantisedBlock) for block in copy.encoder.blocks)
        for autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                assert apart(copy(images()), wanted) < 0.05  # 8 bits at some tens of roundings
        assert apart(copy.encode(images(), 1), model.encode(images(), 1)) < 0.05


@here
@torch.inference_mode()
def test_hybrids_and_other_image_sizes() -> None:
    hybrid = create_model("R26+ViT-mu/16", num_classes=5, patch_size=1, units=(1, 1, 1)).eval()
    cast(Any, hybrid).head.linear.weight.normal_(0, 0.1)
    x = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    copy = quantise_model(hybrid, collect_activation_ranges(hybrid, [x]), torch.float32)
    assert apart(copy(x), hybrid(x)) < 0.05


@here
@torch.inference_mode()
def test_blocks_leave_their_input_alone() -> None:
    model = shaken(depth=3)
    copy = cast(ViT, quantise_model(model, collect_activation_ranges(model, [images()])))
    whole = copy.forward_intermediates(images())
    alone = [copy.forward_intermediates(images(), [layer])[layer] for layer in range(3)]
    assert all(torch.equal(whole[layer], alone[layer]) for layer in range(3))


@here
def test_the_model_is_left_as_it_was() -> None:
    model = shaken(depth=2, dropout=0.1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ranges = collect_activation_ranges(model.eval(), [images()])
    kept = {name: value.clone() for name, value in ranges.items()}
    model.train()
    copy = quantise_model(model, ranges)
    assert not copy.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(kept[name], value) for name, value in ranges.items())
    model(images()).sum().backward()  # still learns
    assert model.patch_embed.weight.grad is not None


@torch.inference_mode()
def test_ranges_are_those_of_all_images() -> None:
    """By the model's own parts, a block at a time."""
    model = shaken(depth=2, position="2d", position_at="every")
    batches = [images(3), 2 * images(2, seed=2)]
    ranges = collect_activation_ranges(model, batches)
    assert {name: tuple(value.shape) for name, value in ranges.items()} == list_range_shapes(model)
    tables = model.positions(model.config.grid, batches[0])
    assert tables is not None
    normed, bent = [], []
    for batch in batches:
        x = model.forward_intermediates(batch, [0])[0] + tables[1 % len(tables)]
        block: Any = model.encoder.blocks[1]
        normed.append(block.norm1(x))
        x = x + block.mixer(block.norm1(x), model.config.grid)
        bent.append(block.mlp.gelu(block.mlp.fc1(block.norm2(x))))
    flat = torch.cat([y.flatten(0, 1) for y in normed])
    torch.testing.assert_close(ranges["blocks.1.norm1"], flat.abs().amax(0))
    ends = [min(y.min() for y in bent), max(y.max() for y in bent)]
    torch.testing.assert_close(ranges["blocks.1.gelu"], torch.stack(ends))


def test_a_range_only_widens() -> None:
    found: ActivationRanges = {}
    for ends in ([-0.1, 2.0], [-0.17, 3.0], [-0.05, 1.0]):
        widen_range(found, "blocks.3.gelu", torch.tensor(ends))
        widen_range(found, "blocks.3.norm1", torch.tensor(ends).abs())
    torch.testing.assert_close(found["blocks.3.gelu"], torch.tensor([-0.17, 3.0]))
    torch.testing.assert_close(found["blocks.3.norm1"], torch.tensor([0.17, 3.0]))


@torch.inference_mode()
def test_the_range_of_what_attention_gathers() -> None:
    """With weights of `out` that change nothing, it is what attention gives."""
    model = shaken()
    block: Any = model.encoder.blocks[0]
    block.mixer.proj.weight.copy_(torch.eye(model.config.width))
    block.mixer.proj.bias.zero_()
    y = block.mixer(block.norm1(model.tokens(images())), model.config.grid)
    found = collect_activation_ranges(model, [images()])["blocks.0.gathered"]
    torch.testing.assert_close(found, y.abs().amax((0, 1)))


@pytest.fixture(scope="module")
def digits() -> tuple[ViT, Tensor, Tensor]:
    """A model that has learned handwritten digits, and 600 that it has not seen."""
    found = load_digits()
    pixels = torch.from_numpy(found.images).float()[:, None] / 8 - 1  # [n, 1, 8, 8]
    labels = torch.from_numpy(found.target)
    pixels = torch.nn.functional.interpolate(pixels, scale_factor=2)
    sizes = {"num_classes": 10, "image_size": 16, "channels": 1, "depth": 2}
    model = cast(ViT, create_model("ViT-mu/4", **sizes)).train()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    order = itertools.cycle(torch.randperm(1197, generator=torch.Generator().manual_seed(0)))
    for _ in range(200):
        places = torch.stack(list(itertools.islice(order, 64)))
        loss = cross_entropy(model(pixels[places]), labels[places])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), pixels, labels


@here
@torch.inference_mode()
def test_a_trained_model_gives_the_same_answers(digits: tuple[ViT, Tensor, Tensor]) -> None:
    model, pixels, labels = digits
    unseen = pixels[1197:]
    answers = model(unseen).argmax(1)
    assert (answers == labels[1197:]).double().mean() > 0.6  # it has learned
    copy = quantise_model(model, collect_activation_ranges(model, [pixels[:256]]))
    assert (copy(unseen).argmax(1) == answers).double().mean() >= 0.98


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("BiT-R26x1", {"units": (1, 2)}, "this model is made of convolutions"),
        ("ViT-mu/4", {"mixer": "pooling"}, "this model has mixer 'pooling' and position '1d'"),
        ("ViT-mu/4", {"position": "relative"}, "this model has mixer 'attention' and position 're"),
    ],
)
def test_other_models_are_refused(name: str, settings: dict[str, Any], line: str) -> None:
    model = create_model(name, num_classes=7, image_size=SIZE, **settings).eval()
    for action in (
        lambda: collect_activation_ranges(model, [images()]),
        lambda: int8.check_quantisable(model),
    ):
        with pytest.raises(ConfigError, match=line) as caught:
            action()
        assert "\n" not in str(caught.value)


@here
def test_what_is_quantised_already_or_in_double_is_refused() -> None:
    model = shaken()
    ranges = collect_activation_ranges(model, [images()])
    with pytest.raises(ConfigError, match="int8 is for blocks of plain attention"):
        quantise_model(quantise_model(model, ranges), ranges)
    with pytest.raises(ConfigError, match="a whole model in float32 on the CPU"):
        quantise_model(copy.deepcopy(model).double(), ranges)


def test_ranges_of_nothing_and_of_broken_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no image to find the ranges"):
        collect_activation_ranges(shaken(), [])
    model = shaken()
    with torch.no_grad():
        cast(Any, model.encoder.blocks[0]).mlp.fc1.bias[0] = float("nan")
    with pytest.raises(ConfigError, match=r"blocks\.0\.gelu is not finite"):
        collect_activation_ranges(model, [images()])


@pytest.mark.parametrize(
    ("capabilities", "works"),
    [({"avx512_vnni": True}, True), ({"avx_vnni": True}, True), ({"avx512_f": True}, False)],
    ids=str,
)
def test_sums_overflow_without_vnni(
    capabilities: dict[str, bool], works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(int8, "supports_packed_linear", lambda: True)
    if works:
        assert find_int8_obstacle() is None
    else:
        with pytest.raises(ConfigError, match="this processor has no VNNI"):
            int8.check_int8_support(shaken())
    monkeypatch.setattr(int8, "supports_packed_linear", lambda: False)
    assert find_int8_obstacle() == "this build of torch is without oneDNN"
