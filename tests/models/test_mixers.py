from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from patchwords.errors import ConfigError
from patchwords.models.config import ViTConfig
from patchwords.models.mixers.metaformer import IdentityMixer, PoolingMixer
from patchwords.models.mixers.token_mlp import TokenMLP
from patchwords.models.vit import Block, ViT

Tiny = Callable[..., ViT]

# One of each mixer, with positions of each kind among them; width 12 for what needs even heads.
KINDS: list[dict[str, Any]] = [
    {"position": "relative"},
    {"position": "relative", "classifier": "gap"},
    {"position": "2d", "position_at": "every"},
    {"position": "sincos2d", "position_at": "shared", "width": 12},
    {"mixer": "axial"},
    {"mixer": "axial", "position": "relative", "classifier": "map"},
    {"mixer": "local", "window": 3, "position": "none"},
    {"mixer": "local", "window": 3, "position": "relative", "width": 12},
    {"mixer": "pooling"},
    {"mixer": "mlp", "position": "none"},
    {"mixer": "identity", "position": "2d"},
]
TRACED = [KINDS[i] for i in (0, 3, 5, 7, 9)]  # tracing takes time: the intricate ones
WITH_HEADS = [kind for kind in KINDS if kind.get("mixer") in (None, "axial", "local")]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# ---- each by itself ----


@pytest.mark.parametrize("grid", [(3, 5), (1, 4), (2, 2)])
def test_pooling_is_the_mean_of_neighbours_minus_the_patch(grid: tuple[int, int]) -> None:
    x = drawn(2, *grid, 3)
    expected = np.zeros(x.shape)
    for y, column in np.ndindex(*grid):
        near = x[:, max(y - 1, 0) : y + 2, max(column - 1, 0) : column + 2].numpy()
        expected[:, y, column] = near.mean((1, 2)) - x[:, y, column].numpy()
    found = PoolingMixer()(x.flatten(1, 2), grid)
    np.testing.assert_allclose(found.unflatten(1, grid).numpy(), expected, atol=1e-14)


def test_identity_leaves_a_block_with_the_norm_alone(tiny: Tiny) -> None:
    x = drawn(2, 20, 10)
    assert IdentityMixer()(x, (4, 5)) is x
    block: Any = tiny(mixer="identity").encoder.blocks[1]
    y = x + block.norm1(x)
    assert torch.equal(block(x, (4, 5)), y + block.mlp(block.norm2(y)))


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_the_token_mlp_is_the_written_out_one(gelu: Any) -> None:
    """Channel by channel over all patches; D/2 hidden."""
    config = ViTConfig(
        patch_size=1, width=11, heads=1, image_size=(2, 3), mixer="mlp", classifier="gap", gelu=gelu
    )
    mlp = TokenMLP(config).double()
    w = {name: value.numpy() for name, value in mlp.state_dict().items()}
    assert w["fc1.weight"].shape == (5, 6)
    x = drawn(3, 6, 11)
    expected = np.zeros(x.shape)
    for image, channel in np.ndindex(3, 11):
        hidden = w["fc1.weight"] @ x[image, :, channel].numpy() + w["fc1.bias"]
        for i, a in enumerate(hidden):
            inner = math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)
            cdf = (1 + (math.erf(a / math.sqrt(2)) if gelu == "erf" else math.tanh(inner))) / 2
            hidden[i] = a * cdf
        expected[image, :, channel] = w["fc2.weight"] @ hidden + w["fc2.bias"]
    with torch.no_grad():
        np.testing.assert_allclose(mlp(x, (2, 3)).numpy(), expected, atol=1e-13)


def test_the_token_mlp_refuses_another_grid(tiny: Tiny) -> None:
    model = tiny(mixer="mlp", position="none")
    message = "weights for 4x5 patches and cannot be resized to 5x4: image size 12x15 would do"
    with pytest.raises(ConfigError, match=message) as caught:
        model(torch.zeros(1, 2, 15, 12, dtype=torch.float64))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mixer", "blind"),
    [
        ("attention", True),
        ("identity", True),
        ("axial", False),
        ("local", False),
        ("pooling", False),
        ("mlp", False),
    ],
)
def test_whether_a_mixer_knows_the_order_of_patches(tiny: Tiny, mixer: str, blind: bool) -> None:
    window = {"window": 3} if mixer == "local" else {}
    model = tiny(mixer=mixer, position="none", classifier="gap", **window)
    block = model.encoder.blocks[0]
    x = drawn(2, 20, 10)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    difference = (block(x[:, order], (4, 5)) - block(x, (4, 5))[:, order]).abs().max()
    assert difference < 1e-12 if blind else difference > 1e-3


# ---- in the model ----


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_gradients_reach_every_parameter(
    tiny: Tiny, images: Tensor, settings: dict[str, Any]
) -> None:
    model = tiny(**settings)
    # All tokens have a part in it: for the class token's logits, the last queries of patches have
    # none, nor have their relative positions.
    features = model.forward_features(images)
    (features.square().sum() + model.forward_head(features).square().sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("settings", WITH_HEADS, ids=str)
def test_streams_agree_with_the_forward_pass(
    tiny: Tiny, images: Tensor, settings: dict[str, Any]
) -> None:
    model = tiny(**settings)
    outputs = model.forward_intermediates(images)
    assert list(outputs) == list(range(model.config.layers))
    assert torch.equal(
        model.encoder.norm(outputs[model.config.layers - 1]), model.forward_features(images)
    )
    tables = model.positions((4, 5), images)
    x = model.tokens(images)
    for layer, a in model.attention(images):
        block: Any = model.encoder.blocks[layer]
        x = model.encoder.add_positions(layer, x, tables)
        torch.testing.assert_close(a.sum(-1), torch.ones_like(a[..., 0]))
        v = block.mixer.project(block.norm1(x))[2]
        y = x + block.mixer.proj((a @ v).transpose(1, 2).flatten(2))
        y = y + block.mlp(block.norm2(y))
        torch.testing.assert_close(outputs[layer], y, atol=1e-10, rtol=0)
        x = outputs[layer]
    assert layer == model.config.layers - 1


@pytest.mark.parametrize("mixer", ["pooling", "mlp", "identity"])
def test_a_mixer_without_heads_has_no_attention_to_show(
    tiny: Tiny, images: Tensor, mixer: str
) -> None:
    with pytest.raises(ConfigError, match=f"mixer '{mixer}' has no attention to look at"):
        tiny(mixer=mixer).attention(images)


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("size", [(21, 9), (9, 30)])
def test_other_grids(tiny: Tiny, settings: dict[str, Any], size: tuple[int, int]) -> None:
    if settings.get("mixer") == "mlp":
        return
    model = tiny(**settings)
    assert model(torch.ones(2, 2, *size, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_runs_in_mixed_and_in_half_precision(
    tiny: Tiny, images: Tensor, settings: dict[str, Any]
) -> None:
    model = tiny(**settings).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images.float())
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    half = model.bfloat16()(images.bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


def test_dropout_follows_every_dense_layer_of_the_token_mlp_once(tiny: Tiny) -> None:
    model = tiny(mixer="mlp", dropout=0.3)
    places = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    inner = ("dropout", "attention.dropout1", "mlp.dropout1", "mlp.dropout2")
    expected = {"dropout"} | {f"encoder.blocks.{i}.{place}" for i in range(3) for place in inner}
    assert places == dict.fromkeys(expected, 0.3)


@pytest.mark.parametrize(
    ("mixer", "place"),
    [
        ("axial", "dropout"),
        ("local", "dropout"),
        ("pooling", "dropout"),
        ("identity", "dropout"),
        ("mlp", "dropout"),
        ("mlp", "attention.dropout1"),
    ],
)
def test_dropout_is_on_the_path_in_training_only(mixer: Any, place: str) -> None:
    config = ViTConfig(
        patch_size=1,
        width=22,
        heads=2,
        mlp_width=17,
        image_size=(7, 9),
        mixer=mixer,
        classifier="gap",
        dropout=0.5,
    )
    block = Block(config, layer=1)
    for name, module in block.named_modules():
        if isinstance(module, nn.Dropout) and name != place:
            module.p = 0.0
    x = drawn(2, 63, 22).float()
    assert not torch.equal(block(x, (7, 9)), block(x, (7, 9)))
    block.eval()
    assert torch.equal(block(x, (7, 9)), block(x, (7, 9)))


@pytest.mark.parametrize("settings", [KINDS[0], KINDS[7]], ids=str)
def test_compiles_to_one_graph(tiny: Tiny, images: Tensor, settings: dict[str, Any]) -> None:
    model = tiny(depth=1, **settings)
    torch._dynamo.reset()
    # fullgraph=True raises at a graph break; the eager backend spares us the C++ compiler.
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-12, rtol=0)


@pytest.mark.parametrize("settings", TRACED, ids=str)
def test_exports_with_a_free_batch_size(
    tiny: Tiny, images: Tensor, settings: dict[str, Any]
) -> None:
    model = tiny(depth=1, **settings)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(exported(images[:2]), model(images[:2]), atol=1e-12, rtol=0)
