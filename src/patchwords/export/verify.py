"""Whether an exported file computes what the model computes.

Sizes: B batch, C channels, H W image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from patchwords.data.preprocess import Preprocess
from patchwords.errors import WeightsError
from patchwords.noise import torch_generator

CHECKED_BATCH_SIZES = (1, 3)  # the file must not have learned the number of images by heart
# In float32. Sums are taken in another order, which costs some 1e-6 of the largest logit; a wrong
# operator, or half precision, costs 1e-3 and more.
LOGIT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class LogitDifference:
    """Between the logits of PyTorch and those of the file."""

    largest: float  # absolute, over all logits
    scale: float  # the largest logit, absolute

    def refuse_large(self, what: str) -> None:
        """Raises WeightsError beyond 1e-4, or beyond 1e-4 of the largest logit if that is above 1.

        Not a number is beyond, too.
        """
        if not self.largest <= LOGIT_TOLERANCE * max(1.0, self.scale):
            raise WeightsError(
                f"{what} differs from PyTorch by {self.largest:.2g} (logits up to "
                f"{self.scale:.2g}), more than {LOGIT_TOLERANCE:g}: it is not kept"
            )


@torch.inference_mode()
def compare_logits(
    model: nn.Module, exported: nn.Module, batches: Sequence[Tensor]
) -> LogitDifference:
    """The largest difference over batches of images, each [B, C, H, W], scaled."""
    largest, scale = [], []
    for images in batches:
        wanted = model(images)  # [B, classes]
        largest.append((exported(images) - wanted).abs().max())
        scale.append(wanted.abs().max())
    return LogitDifference(float(torch.stack(largest).max()), float(torch.stack(scale).max()))


def make_random_batches(preprocess: Preprocess) -> list[Tensor]:
    """Batches of noise, of one image and of three: [B, C, H, W], uniform over all pixels' values.

    The same at every call.
    """
    generator = torch_generator(0, "export")
    shape = (preprocess.channels, *preprocess.image_size)
    return [
        preprocess.normalise(
            torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
        )
        for count in CHECKED_BATCH_SIZES
    ]
