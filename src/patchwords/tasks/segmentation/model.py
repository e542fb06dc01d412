"""A backbone with a decoder, and its answers for photos of any size.

Sizes: B batch, C channels, H W crop that the model takes, h w photo, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchwords.data.preprocess import Preprocess, resize_image
from patchwords.device import Device
from patchwords.models.build import Model
from patchwords.models.vit import ViT
from patchwords.rng import torch_generator
from patchwords.tasks.segmentation.decoders import DECODERS, choose_layers, init_decoder
from patchwords.tasks.segmentation.scenes import cover_window

WINDOW_OVERLAP = 1 / 3  # of a window: 512/341 of SETR and DINOv2
WINDOWS_AT_ONCE = 16
CLASSES_AT_ONCE = 8  # resized to a whole photo, which may have many pixels


class SegmentationModel(nn.Module):
    """A backbone and a decoder: normalised images to logits for every pixel."""

    def __init__(self, backbone: Model, decoder: str, classes: int) -> None:
        super().__init__()
        row = DECODERS[decoder]
        self.row, self.classes = row, classes
        self.layers = choose_backbone_layers(backbone, row.layers)
        self.backbone = backbone
        self.decoder = row.decoder(list_map_widths(backbone, self.layers), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, K, H, W] of images [B, C, H, W]."""
        logits = self.decoder(self.maps(images)).float()
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Compute the feature maps that the decoder reads, [B, D, h, w] each."""
        backbone = self.backbone
        if self.row.final_norm:
            dense = backbone.forward_dense
            return [dense(images, [-1]) if isinstance(backbone, ViT) else dense(images)]
        outputs = backbone.forward_intermediates(images, self.layers)
        if not isinstance(backbone, ViT):
            return [outputs[layer] for layer in self.layers]
        grid, skip = backbone.grid(images), backbone.num_prefix_tokens
        return [
            outputs[layer][:, skip:].transpose(1, 2).unflatten(2, grid) for layer in self.layers
        ]


def build_segmentation_model(
    backbone: Model, decoder: str, classes: int, seed: int
) -> SegmentationModel:
    """Build the model with an initialised decoder, on the device of the backbone.

    What the decoder does not use of the backbone is frozen: its classifier, and the last norm.
    """
    device = next(backbone.parameters()).device
    model = SegmentationModel(backbone, decoder, classes)
    init_decoder(model.decoder, torch_generator(seed, "decoder"))
    model.decoder.to(device)
    for parameter in list_unused_parameters(model):
        parameter.requires_grad_(False)
    return model


def list_unused_parameters(model: SegmentationModel) -> list[nn.Parameter]:
    """List the backbone's parameters that no logit depends on."""
    backbone = model.backbone
    unused = list(backbone.head.parameters())
    if not model.row.final_norm:
        last = backbone.encoder.norm if isinstance(backbone, ViT) else backbone.norm
        unused += [] if last is None else list(last.parameters())
    return unused


def choose_backbone_layers(backbone: Model, count: int) -> list[int]:
    """Choose the layers to read: of a ResNet, the last units of its last stages."""
    if isinstance(backbone, ViT):
        return choose_layers(backbone.config.layers, count)
    ends = np.cumsum(backbone.config.trunk.units) - 1
    return [int(end) for end in ends[-count:]]


def list_map_widths(backbone: Model, layers: Sequence[int]) -> list[int]:
    """List the channels of the layers' outputs."""
    if isinstance(backbone, ViT):
        return [backbone.config.width] * len(layers)
    trunk = backbone.config.trunk
    last = len(trunk.units) - 1
    stages = np.searchsorted(np.cumsum(trunk.units) - 1, layers)
    return [int(trunk.channels // 2 ** (last - stage)) for stage in stages.tolist()]


# Answers for whole photos.


@torch.inference_mode()
def segment_photo(
    model: nn.Module, pixels: np.ndarray, preprocess: Preprocess, device: Device
) -> np.ndarray:
    """Segment a photo, uint8 [h, w, 3] -> class indices, uint8 [h, w].

    The photo is resized to cover the model's image size, and logits of overlapping windows are
    averaged; a photo of the model's own shape is one window.
    """
    logits = compute_window_logits(model, pixels, preprocess, device)
    return answer_photo(logits, pixels.shape[:2])


def answer_photo(logits: Tensor, size: Sequence[int]) -> np.ndarray:
    """Find the best class of each pixel: logits [1, K, rows, columns] -> uint8 [h, w].

    It is the logits that are resized to (h, w), a few classes at a time.
    """
    best: Tensor | None = None
    answer = torch.zeros(tuple(size), dtype=torch.uint8, device=logits.device)
    for start in range(0, logits.shape[1], CLASSES_AT_ONCE):
        part = logits[:, start : start + CLASSES_AT_ONCE]
        whole = F.interpolate(part, tuple(size), mode="bilinear", align_corners=False)[0]
        value, index = whole.max(0)  # [h, w]
        if best is None:
            best, answer = value, index.to(torch.uint8)
            continue
        better = value > best
        best = torch.where(better, value, best)
        answer = torch.where(better, (index + start).to(torch.uint8), answer)
    return answer.cpu().numpy()


def compute_window_logits(
    model: nn.Module, pixels: np.ndarray, preprocess: Preprocess, device: Device
) -> Tensor:
    """Average the logits of the windows over the resized photo, float32 [1, K, rows, columns]."""
    height, width = pixels.shape[:2]
    rows, columns = cover_window(width, height, preprocess)
    resized = resize_image(pixels, (rows, columns), preprocess.interpolation)
    image = torch.from_numpy(preprocess.in_channels(resized)).permute(2, 0, 1)  # [C, rows, columns]
    image = image.to(device.torch_device)
    window = preprocess.image_size
    corners = [
        (top, left)
        for top in list_window_starts(rows, window[0])
        for left in list_window_starts(columns, window[1])
    ]
    total: Tensor | None = None
    count = torch.zeros(rows, columns, device=image.device)
    for start in range(0, len(corners), WINDOWS_AT_ONCE):
        chosen = corners[start : start + WINDOWS_AT_ONCE]
        cuts = [image[:, top : top + window[0], left : left + window[1]] for top, left in chosen]
        with device.autocast():
            logits = model(preprocess.normalise(torch.stack(cuts))).float()  # [n, K, H, W]
        if total is None:
            total = logits.new_zeros(1, logits.shape[1], rows, columns)
        for (top, left), of_window in zip(chosen, logits, strict=True):
            total[0, :, top : top + window[0], left : left + window[1]] += of_window
            count[top : top + window[0], left : left + window[1]] += 1
    assert total is not None
    return total / count


def list_window_starts(side: int, window: int) -> list[int]:
    """List where windows start on a side, the last one flush with its end.

    >>> list_window_starts(100, 60), list_window_starts(60, 60)
    ([0, 40], [0])
    """
    if side <= window:
        return [0]
    step = max(1, round(window * (1 - WINDOW_OVERLAP)))
    return sorted({min(start, side - window) for start in range(0, side - window + step, step)})
