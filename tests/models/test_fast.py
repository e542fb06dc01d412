"""The fast copy answers as the model does, and leaves it alone; kernels agree with plain forms."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from patchwords.models import attention as kernels
from patchwords.models.attention import WrittenOutAttention
from patchwords.models.build import Model
from patchwords.models.inference.packed import (
    PackedBlock,
    pack_for_inference,
    supports_packed_linear,
)
from patchwords.models.zoo import create_model

pytestmark = pytest.mark.skipif(not supports_packed_linear(), reason="this torch has no oneDNN")

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("ViT-mu/4", {}),
    ("ViT-mu/4", {"gelu": "erf", "norm_eps": 1e-3}),
    ("ViT-mu/4", {"gelu": "tanh", "classifier": "gap"}),
    ("ViT-mu/4", {"classifier": "map", "representation_size": 11}),
    ("ViT-mu/4", {"position": "2d", "position_at": "every", "depth": 3}),
    ("ViT-mu/4", {"position": "relative", "depth": 2}),
    ("ViT-mu/4", {"mixer": "pooling"}),
    ("ViT-mu/4", {"mixer": "axial", "depth": 2}),
    ("ViT-mu/4", {"dropout": 0.5, "drop_path": 0.5, "depth": 3}),
    ("R26+ViT-mu/16", {"patch_size": 1, "units": (1, 1, 1)}),
    ("BiT-R26x1", {"units": (1, 2)}),
]


def shaken(name: str, **settings: Any) -> Model:
    """A model whose every weight matters: the classifier is not zero, nor any bias or table."""
    model = create_model(name, num_classes=7, image_size=(20, 12), **settings)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=noise))
    return model.eval()


def images_like(model: Model, batch: int = 5, size: tuple[int, int] = (20, 12)) -> Tensor:
    noise = torch.Generator().manual_seed(1)
    return torch.rand(batch, model.config.channels, *size, generator=noise) * 2 - 1


@pytest.mark.parametrize(("name", "settings"), KINDS)
@torch.inference_mode()
def test_the_copy_answers_as_the_model(name: str, settings: dict[str, Any]) -> None:
    model = shaken(name, **settings)
    fast, images = pack_for_inference(model), images_like(model)
    # float32: sums of a few hundred products in another order.
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    features = model.forward_features(images)
    torch.testing.assert_close(fast.forward_features(images), features, rtol=1e-4, atol=1e-4)
    for around in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            rounded = pack_for_inference(model, bf16=True)(images).float()
        # bfloat16 has 8 bits: 0.4 % at each of some tens of roundings, which a GroupNorm over few
        # values makes larger; how much depends on the CPU's kernels (a hybrid: 3 to 7 %).
        assert (rounded - model(images)).norm() < 0.1 * model(images).norm()


def test_blocks_are_packed_where_they_are_of_the_usual_kind() -> None:
    def packed(model: nn.Module) -> int:
        return sum(isinstance(module, PackedBlock) for module in model.modules())

    assert packed(pack_for_inference(shaken("ViT-mu/4", depth=3))) == 3
    assert packed(pack_for_inference(shaken("ViT-mu/4", position="relative"))) == 0
    assert packed(pack_for_inference(shaken("ViT-mu/4", mixer="axial", depth=2))) == 0


@torch.inference_mode()
def test_other_image_sizes() -> None:
    model = shaken("ViT-mu/4")
    images = images_like(model, 61, (28, 24))  # 2,623 tokens: not all at once
    torch.testing.assert_close(
        pack_for_inference(model)(images), model(images), rtol=1e-4, atol=1e-5
    )


def test_the_model_is_left_as_it_was() -> None:
    model = shaken("R26+ViT-mu/16", patch_size=1, units=(1, 1, 1), dropout=0.1).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = pack_for_inference(model, bf16=True)
    assert not fast.training
    assert all(module.training for module in model.modules())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model(images_like(model)).sum().backward()  # still learns
    assert model.patch_embed.weight.grad is not None
    # What is not packed is shared, not copied.
    assert fast.patch_embed.weight is model.patch_embed.weight


def test_what_cannot_be_packed_is_returned_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shaken("ViT-mu/4")
    double = copy.deepcopy(model).double()
    assert pack_for_inference(double) is double
    monkeypatch.setattr("patchwords.models.inference.packed.supports_packed_linear", lambda: False)
    assert pack_for_inference(model) is model


def drawn(num_queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in float64, as they come out of one product: not one after another in memory."""
    noise = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 13, 3, 3, 5, generator=noise, dtype=torch.float64)  # [B, T, 3, K, Dh]
    q, k, v = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0))
    return q[:, :, :num_queries], k, v


@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize("at_once", [1, 13 * 13 * 8 * 2, 4 << 20])  # bytes: 1, 2 or all pairs
def test_attention_written_out_is_the_fused_one(
    first: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ATTENTION_CHUNK_BYTES", at_once)
    inputs = drawn(first)
    found, wanted = WrittenOutAttention.apply(*inputs), scaled_dot_product_attention(*inputs)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(kernels.reference_attention(*inputs), wanted)
    upstream = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    gradients = (torch.autograd.grad(y, inputs, upstream) for y in (found, wanted))
    torch.testing.assert_close(*gradients)


def test_gradients_of_attention_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(WrittenOutAttention.apply, drawn(num_queries=3))


def test_a_bias_takes_part() -> None:
    noise = torch.Generator().manual_seed(1)
    bias = torch.randn(2, 3, 13, 13, generator=noise, dtype=torch.float64)
    inputs = drawn()
    wanted = scaled_dot_product_attention(*inputs, bias)
    for attend in (kernels.attend, kernels.reference_attention):
        torch.testing.assert_close(attend(*inputs, bias), wanted)


def test_attention_is_written_out_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.dtype] = []
    monkeypatch.setattr(WrittenOutAttention, "apply", lambda q, k, v: calls.append(q.dtype) or v)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        kernels.attend(*(x.to(dtype) for x in drawn()))
    assert calls == [torch.bfloat16]


@pytest.mark.parametrize(
    "settings", [{}, {"position": "relative"}, {"position": "2d", "position_at": "every"}]
)
def test_only_the_class_token_of_the_last_block(settings: dict[str, Any]) -> None:
    """What is not read is not computed, and nothing else changes: neither logits nor gradients."""
    model = shaken("ViT-mu/4", depth=3, **settings).double()
    images = images_like(model).double()
    found = {}
    for whole in (False, True):
        model.zero_grad()
        logits = model.forward_head(model.forward_features(images)) if whole else model(images)
        logits.square().sum().backward()
        gradients = {name: value.grad for name, value in model.named_parameters()}
        found[whole] = {"logits": logits.detach(), **gradients}
    assert all(value is not None for value in found[False].values())
    torch.testing.assert_close(found[False], found[True])
    assert model.encode(images, 1).shape == (5, 1, model.config.width)
