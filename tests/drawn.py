"""Models with every parameter drawn, so that nothing can cancel."""

from __future__ import annotations

from typing import TypeVar

import torch

Model = TypeVar("Model", bound=torch.nn.Module)


def drawn(model: Model, seed: int = 0) -> Model:
    """The same model, in eval mode: every parameter from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return model.eval()
