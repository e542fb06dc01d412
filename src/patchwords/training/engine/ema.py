"""Running average of the weights (Polyak; the paper's 0.9999 for ImageNet in Table 2)."""

from __future__ import annotations

import torch
from torch import nn

from patchwords.training.engine.parallel import to_local_tensor


class EMA:
    """average <- decay * average + (1 - decay) * weights, after every step, in float32.

    In the first steps the decay is held at (1 + t) / (10 + t), so that the initial weights are
    soon forgotten (the num_updates rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {
            name: value.detach().float().clone() for name, value in model.state_dict().items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after update number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = [to_local_tensor(value) for value in self.weights.values()]
        weights = [to_local_tensor(value.detach()).float() for value in model.state_dict().values()]
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
