"""Where a model looks: the map by which patches are ordered before some are dropped.

Naseer et al. (arXiv 2105.10497, Sec. 3.1) take the attention of DINO. Without it the map is the
model's own: attention in the last block, where there are heads, else the gradient.

Sizes: B batch, C channels, H W image, h w grid of patches, K heads, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from patchwords.evaluate.subject import LoadedModel
from patchwords.model.config import MIXERS_WITH_HEADS
from patchwords.model.vit import ViT

LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's convert("L")


def compute_saliency(images: Tensor, subject: LoadedModel) -> Tensor:
    """[B, C, H, W] of 0..255, any size -> float32 [B, H, W]; larger is more salient.

    The images are brought to the subject's size and channels. With heads it is the attention of
    the last block, averaged over them: what the class token gives to each patch or, without a
    class token, what a patch receives on average. Else see `gradient_times_input`.
    """
    given = fit_to_model_input(images.float(), subject)
    model = subject.model
    if isinstance(model, ViT) and model.config.mixer in MIXERS_WITH_HEADS:
        found = last_layer_attention(model, subject.preprocess.normalise(given))
    else:
        found = gradient_times_input(given, subject)
    return interpolate(found[:, None], tuple(images.shape[-2:]), mode="nearest")[:, 0]


def fit_to_model_input(images: Tensor, subject: LoadedModel) -> Tensor:
    """float32 [B, C, H, W] -> as many channels, and pixels, as the subject sees"""
    preprocess = subject.preprocess
    if images.shape[1] == 3 and preprocess.channels == 1:
        weights = torch.tensor(LUMA_WEIGHTS, device=images.device)[:, None, None]
        images = (images * weights).sum(1, keepdim=True)
    images = images.expand(-1, preprocess.channels, -1, -1)
    if tuple(images.shape[-2:]) == preprocess.image_size:
        return images
    return interpolate(images, preprocess.image_size, mode="bilinear", antialias=True)


def last_layer_attention(model: ViT, images: Tensor) -> Tensor:
    """[B, C, H, W], normalised -> [B, h, w]"""
    grid = model.grid(images)
    [(_, weights)] = model.attention(images, [model.config.layers - 1])  # [B, K, T, T]
    prefix = model.config.prefix
    mean = weights.mean(1)  # [B, T, T]
    received = mean[:, 0, prefix:] if prefix else mean.mean(1)  # [B, N]
    return received.unflatten(1, grid)


def gradient_times_input(images: Tensor, subject: LoadedModel) -> Tensor:
    """[B, C, H, W] of 0..255 -> [B, H, W], gradient times input.

    By the first-order expansion it is how much the likeliest class's logit falls where a pixel is
    made black (0), and it is signed.
    """
    with torch.enable_grad():
        given = images.detach().clone().requires_grad_()
        logits = subject.model(subject.preprocess.normalise(given))  # [B, classes]
        [gradient] = torch.autograd.grad(logits.amax(-1).sum(), given)
    return (gradient * images).sum(1)
