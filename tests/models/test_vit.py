from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from patchwords.errors import ConfigError
from patchwords.models.vit import ViT
from patchwords.models.zoo import create_model

Tiny = Callable[..., ViT]


def shuffled_patches(images: Tensor, size: int) -> Tensor:
    """The same patches in another order."""
    b, c, h, w = images.shape
    rows, columns = h // size, w // size
    patches = images.view(b, c, rows, size, columns, size).permute(0, 2, 4, 1, 3, 5)
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(3))
    patches = patches.reshape(b, -1, c, size, size)[:, order].view(b, rows, columns, c, size, size)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_without_positions_the_order_of_patches_is_nothing(
    tiny: Tiny, images: Tensor, classifier: str
) -> None:
    other = shuffled_patches(images, 3)
    blind = tiny(position="none", classifier=classifier)
    # float64: sums over patches are taken in another order.
    torch.testing.assert_close(blind(images), blind(other), atol=1e-12, rtol=0)
    assert blind.positions((4, 5)) is None
    seeing = tiny(classifier=classifier)
    assert (seeing(images) - seeing(other)).abs().max() > 1e-3


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
@pytest.mark.parametrize("size", [(12, 15), (15, 12), (3, 21), (33, 6)])
def test_any_size_that_patches_divide(tiny: Tiny, classifier: str, size: tuple[int, int]) -> None:
    model = tiny(classifier=classifier)
    images = torch.zeros(2, 2, *size, dtype=torch.float64)
    tokens = size[0] * size[1] // 9 + (classifier == "token")
    assert model(images).shape == (2, 7)
    assert model.forward_features(images).shape == (2, tokens, 10)


def test_features_and_head_make_the_whole(tiny: Tiny, images: Tensor) -> None:
    model = tiny(representation_size=11)
    features = model.forward_features(images)
    # Of float64 the last digits: the whole computes the last block for the class token alone.
    torch.testing.assert_close(model.forward_head(features), model(images), rtol=0, atol=1e-13)
    before = model.forward_head(features, pre_logits=True)
    assert before.shape == (5, 11)
    assert torch.equal(model.head.linear(before), model.forward_head(features))


def test_intermediates_are_block_outputs_and_no_more_is_computed(
    tiny: Tiny, images: Tensor
) -> None:
    model = tiny()
    found = model.forward_intermediates(images, [-1, 0])
    assert list(found) == [-1, 0]
    assert torch.equal(model.encoder.norm(found[-1]), model.forward_features(images))
    assert torch.equal(found[0], model.encoder.blocks[0](model.tokens(images), (4, 5)))
    assert list(model.forward_intermediates(images)) == [0, 1, 2]
    assert model.forward_intermediates(images, []) == {}
    model.encoder.blocks[2] = torch.nn.Identity()  # would change layer 2 and what follows
    assert torch.equal(
        model.forward_intermediates(images, [1])[1], model.encoder.blocks[1](found[0], (4, 5))
    )
    with pytest.raises(ConfigError, match="layer 3 does not exist: this model has 3, 0 to 2"):
        model.forward_intermediates(images, [3])


def test_attention_is_what_each_block_uses(tiny: Tiny, images: Tensor) -> None:
    model = tiny()
    streamed = model.attention(images)
    assert iter(streamed) is streamed  # a generator: one layer at a time
    layers = dict(streamed)
    assert list(layers) == [0, 1, 2]
    assert layers[1].shape == (5, 2, 21, 21)
    x = model.forward_intermediates(images, [0])[0]
    block: Any = model.encoder.blocks[1]
    v = block.mixer.project(block.norm1(x))[2]
    y = block.mixer.proj((layers[1] @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(y, block.mixer(block.norm1(x), (4, 5)), atol=1e-12, rtol=0)
    assert [layer for layer, _ in model.attention(images, [-1, 0])] == [0, 2]
    with pytest.raises(ConfigError, match="layer -4 does not exist"):
        model.attention(images, [-4])  # at the call, not at the first step


@pytest.mark.parametrize("classifier", ["token", "map"])
def test_reset_head(tiny: Tiny, images: Tensor, classifier: str) -> None:
    model = tiny(representation_size=11, classifier=classifier, head_bias=-3.0)
    features = model.forward_features(images)
    model.reset_head(13)
    assert model(images).shape == (5, 13)
    assert model(images).eq(0).all()
    assert model.head.linear.weight.dtype == torch.float64
    assert torch.equal(model.forward_features(images), features)
    changed = {"num_classes": 13, "representation_size": None, "head_bias": 0.0}
    assert model.config == tiny(classifier=classifier, **changed).config
    model.load_state_dict(tiny(classifier=classifier, **changed).state_dict())  # no key left over
    kept = tiny(representation_size=11)
    kept.reset_head(13, keep_representation=True)
    assert kept.config.representation_size == kept.head.linear.in_features == 11


# ---- positions on another grid ----


BIG = torch.ones(1, 2, 21, 18, dtype=torch.float64)


def test_gradients_reach_the_table_through_the_resize(tiny: Tiny) -> None:
    model = tiny()
    model(BIG).sum().backward()
    assert model.positions.table is not None
    assert model.positions.table.grad is not None
    # 4x5 -> 7x6 enlarges: every old position has a share in some new one.
    assert (model.positions.table.grad.abs().amax(-1) > 0).all()


def through_load(model: ViT) -> None:
    model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()})


def through_assign(model: ViT) -> None:
    model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()}, assign=True)


def through_optimizer(model: ViT) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def through_fused_adam(model: ViT) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def through_dtype(model: ViT) -> None:
    model.bfloat16().double()  # the values are rounded, the type is the old one again


def through_data(model: ViT) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.5)  # a write that torch does not count


@pytest.mark.parametrize(
    "change",
    [
        through_load,
        through_assign,
        through_optimizer,
        through_fused_adam,
        through_dtype,
        through_data,
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_resized_table_is_never_stale(
    tiny: Tiny, change: Callable[[ViT], None], mode: Callable[[], Any]
) -> None:
    model = tiny()
    with mode():
        before = model(BIG)
    change(model)
    with mode():
        after = model(BIG)
    assert (before - after).abs().max() > 1e-4
    fresh = ViT(model.config).double().eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(after, fresh(BIG).detach(), atol=1e-12, rtol=0)


def test_resize_follows_the_config(tiny: Tiny) -> None:
    with torch.no_grad():
        corners = tiny(resize="bilinear-corners")(BIG)
        bicubic = tiny(resize="bicubic-antialias")(BIG)
    assert (corners - bicubic).abs().max() > 1e-4


# ---- what the model refuses, and where it runs ----


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 12, 15), r"\[2, 12, 15\] are not \[B, C, H, W\]; images\[None\] adds"),
        ((1, 3, 12, 15), r"3 channels \(axis 1\), the model takes 2: create it with channels=3"),
        ((1, 2, 13, 15), "13x15 does not divide into patches of 3: 12x15 or 15x15 would do"),
        ((1, 2, 0, 15), "no pixels"),
        ((12, 15), "are not"),
    ],
)
def test_wrong_images_are_refused(tiny: Tiny, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny()(torch.zeros(shape, dtype=torch.float64))


def test_integer_images_are_refused(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"uint8, the model takes floats in \[-1, 1\]"):
        tiny()(torch.zeros(1, 2, 12, 15, dtype=torch.uint8))


@pytest.mark.parametrize("settings", [{}, {"classifier": "map", "representation_size": 11}])
@pytest.mark.parametrize("training", [False, True])
def test_compiles_to_one_graph(tiny: Tiny, settings: dict[str, Any], training: bool) -> None:
    model = tiny(dropout=0.1, drop_path=0.1, **settings).train(training)
    torch._dynamo.reset()
    # fullgraph=True raises at a graph break; the eager backend spares us the C++ compiler.
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    logits = compiled(BIG)
    assert logits.shape == (1, 7)
    if not training:
        torch.testing.assert_close(logits, model(BIG), atol=1e-12, rtol=0)


def test_exports_with_a_free_batch_size(tiny: Tiny, images: Tensor) -> None:
    model = tiny()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(exported(images[:2]), model(images[:2]), atol=1e-12, rtol=0)


def test_runs_in_mixed_precision(tiny: Tiny, images: Tensor) -> None:
    model = tiny().float().train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images.float())
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_create_model_takes_settings_over_names() -> None:
    model = create_model("google/vit-base-patch16-224", depth=1, gelu="tanh", image_size=(32, 48))
    assert (model.config.gelu, model.config.norm_eps, model.config.depth) == ("tanh", 1e-12, 1)
    assert model.config.grid == (2, 3)
    assert not create_model("mu/4", num_classes=5, image_size=8)(torch.ones(1, 3, 8, 8)).any()
    with pytest.raises(ConfigError, match="'dropuot'; did you mean 'dropout'"):
        create_model("ViT-B/16", dropuot=0.1)
    with pytest.raises(ConfigError, match="100x100 does not divide into patches of 16"):
        create_model("ViT-B/16", image_size=100)


def test_create_model_on_meta_builds_the_shape_only() -> None:
    with torch.device("meta"):
        model = create_model("ViT-G/14")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
