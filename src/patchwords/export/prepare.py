"""A copy of a model that computes the same and suits the engines better."""

from __future__ import annotations

import copy

import torch
from torch import nn

from patchwords.model.std_conv import StdConv, standardise_weight
from patchwords.model.trunk import Root

# ONNX Runtime (1.31) merges a padding by 0 into the max-pooling that follows, which then pads by
# minus infinity: wrong where all values are negative, as after BiT's root. This is not 0 to it.
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@torch.no_grad()
def prepare_for_export(model: nn.Module) -> nn.Module:
    """In eval mode, on the CPU; standardised convolutions hold the weights they compute with."""
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        if isinstance(module, StdConv) and module.form is not None:
            module.weight.copy_(standardise_weight(module.weight, module.form))
            module.form = None
        if isinstance(module, Root) and module.border == 0:
            module.border = SMALLEST_NORMAL
    return model
