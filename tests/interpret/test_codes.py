"""A byte a weight: what is lost, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from patchwords.interpret.view import CODE_LEVELS, decode_attention, encode_attention


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0, 11.0])
def test_weights_come_back(spread: float) -> None:
    """Flat rows and peaked ones. Half a step of the root moves a weight a by sqrt(a m) / LEVELS, m
    the largest of its row, and its square by a quarter of m / LEVELS^2; the sum of the row then
    differs by what its weights do, half of it at most one way."""
    a = softmax(np.random.default_rng(0).normal(0, spread, (3, 2, 37, 37)))
    found = decode_attention(encode_attention(a))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    m = a.max(-1, keepdims=True)
    step = np.sqrt(a * m) / CODE_LEVELS + m / (4 * CODE_LEVELS**2)
    assert (np.abs(found - a) <= step + a * step.sum(-1, keepdims=True) + 1e-6).all()
    assert np.abs(found - a).max() <= 0.012 * a.max()  # the promise of the docstring


def test_codes_are_of_the_root() -> None:
    a = np.array([[0.64, 0.32, 0.04, 0.0]])
    assert encode_attention(a).tolist() == [[100, 71, 25, 0]]
    assert encode_attention(a).dtype == np.uint8


def test_what_is_not_seen_stays_unseen() -> None:
    """Axial and local attention have zeros outside the row, column or window."""
    assert (decode_attention(encode_attention(np.eye(5))) == np.eye(5)).all()
