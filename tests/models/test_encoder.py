from __future__ import annotations

import pytest
import torch
from torch import nn

from patchwords.models.attention import Attention
from patchwords.models.config import ViTConfig
from patchwords.models.vit import Block, DropPath, Encoder, ViT

GRID = (3, 7)
CONFIG = ViTConfig(
    patch_size=2, width=22, depth=5, heads=2, mlp_width=17, image_size=(6, 14), num_classes=3
)


def test_fused_attention_is_the_written_out_one() -> None:
    attention = Attention(width=33, heads=3).double()
    x = torch.randn(5, 7, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = attention.weights(x, (1, 7))  # [B, K, T, T]
    assert a.shape == (5, 3, 7, 7)
    torch.testing.assert_close(a.sum(-1), torch.ones(5, 3, 7, dtype=torch.float64))
    v = attention.project(x)[2]
    written = attention.proj((a @ v).transpose(1, 2).reshape(5, 7, 33))
    # float64: only the order of sums differs.
    torch.testing.assert_close(attention(x, (1, 7)), written, atol=1e-12, rtol=0)


def test_rows_of_qkv_are_q_k_v_then_heads() -> None:
    attention = Attention(width=6, heads=3).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = attention.project(x)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    # Head 2 of k is rows 6 + 4 and 6 + 5.
    torch.testing.assert_close(k[:, 2], x @ weight[10:12].T + bias[10:12])
    torch.testing.assert_close(q[:, 0], x @ weight[:2].T + bias[:2])
    torch.testing.assert_close(v[:, 1], x @ weight[14:16].T + bias[14:16])


def test_a_block_does_not_care_for_the_order_of_tokens() -> None:
    block = Block(CONFIG, layer=2).double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 22, 22, dtype=torch.float64, generator=generator)
    order = torch.randperm(22, generator=generator)
    # Sums over tokens are taken in another order.
    shuffled = block(x[:, order], GRID)
    torch.testing.assert_close(shuffled, block(x, GRID)[:, order], atol=1e-12, rtol=0)


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """B.1: after each dense layer but q, k, v, and after adding positions; with one rate."""
    model = ViT(CONFIG.with_settings(dropout=0.3))
    places = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    expected = {"dropout"} | {
        f"encoder.blocks.{layer}.{place}"
        for layer in range(5)
        for place in ("dropout", "mlp.dropout1", "mlp.dropout2")
    }
    assert places == dict.fromkeys(expected, 0.3)


@pytest.mark.parametrize("place", ["dropout", "mlp.dropout1", "mlp.dropout2"])
def test_dropout_is_on_the_path_in_training_only(place: str) -> None:
    block = Block(CONFIG.with_settings(dropout=0.5), layer=2)
    for other in ("dropout", "mlp.dropout1", "mlp.dropout2"):
        if other != place:
            block.get_submodule(other).p = 0.0  # type: ignore[assignment]
    x = torch.ones(2, 22, 22)
    block.train()
    assert not torch.equal(block(x, GRID), block(x, GRID))
    block.eval()
    assert torch.equal(block(x, GRID), block(x, GRID))


def test_stochastic_depth_grows_linearly_to_the_last_block() -> None:
    rates = [
        block.drop_path.rate  # type: ignore[union-attr]
        for block in Encoder(CONFIG.with_settings(drop_path=0.2)).blocks
    ]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    shallow = Encoder(CONFIG.with_settings(drop_path=0.2, depth=1))
    assert shallow.blocks[0].drop_path.rate == 0  # type: ignore[union-attr]


def test_stochastic_depth_drops_whole_samples_and_keeps_the_expectation() -> None:
    path = DropPath(0.25)
    x = torch.ones(20_000, 2, 3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = path(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(y.amin((1, 2)), y.amax((1, 2)))  # one draw per sample
    # The mean of n draws has standard deviation sqrt(p / (1 - p) / n) = 0.0041; five of them.
    assert y.mean().item() == pytest.approx(1, abs=0.02)
    assert path.eval()(x) is x
