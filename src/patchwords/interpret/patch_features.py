"""Patch tokens of several photos: principal components, foreground, similarity, nearest patches.

After the picture of DINOv2 (Oquab et al. 2023, arXiv 2304.07193, Fig. 1): the first component over
the patches of all photos separates foreground from background, and three components of the
foreground are colours. Class and register tokens are left out.

Sizes: n photos, C channels, H W image, h w grid, N = h*w patches, D width, F foreground patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patchwords.models.build import Model

COLOUR_COMPONENTS = 3
COLOUR_QUANTILES = (0.02, 0.98)  # of a component, that become 0 and 1
CHUNK_IMAGES = 16
MAX_RANDOM_PAIRS = 20_000


@torch.no_grad()
def compute_patch_features(model: Model, images: Tensor) -> np.ndarray:
    """Compute patch tokens after the final norm: [n, C, H, W] -> float32 [n, h, w, D]."""
    maps = [model.forward_dense(some).float().cpu() for some in images.split(CHUNK_IMAGES)]
    return torch.cat(maps).permute(0, 2, 3, 1).numpy()


@dataclass(frozen=True)
class PatchComponents:
    """Principal components of the patch tokens of several photos."""

    first: np.ndarray  # float64 [n, h, w], over all patches, positive on the foreground
    foreground: np.ndarray  # bool [n, h, w]
    colours: np.ndarray  # float64 [n, h, w, 3] of 0..1, NaN on the background
    first_share: float  # of the variance of all patches
    colour_shares: tuple[float, ...]  # of the variance of the foreground patches


def analyse_patch_components(features: np.ndarray) -> PatchComponents:
    """Separate the foreground of [n, h, w, D] and colour it by three principal components.

    Foreground is the side of the first component that touches the border of the photos less. The
    sign of a colour is arbitrary; it is fixed so that equal inputs give equal pictures.
    """
    shape, width = features.shape[:3], features.shape[3]
    tokens = features.reshape(-1, width).astype(np.float64)  # [n N, D]
    scores, shares = project_on_components(tokens, 1)
    first = scores[:, 0].reshape(shape)
    if measure_border_share(first > 0) > measure_border_share(first < 0):
        first = -first
    foreground = first > 0 if (first > 0).any() else np.ones(shape, dtype=bool)  # all are alike
    colours = np.full((*shape, COLOUR_COMPONENTS), np.nan)
    inside, colour_shares = project_on_components(tokens[foreground.reshape(-1)], COLOUR_COMPONENTS)
    low, high = np.quantile(inside, COLOUR_QUANTILES, axis=0)  # [3]
    colours[foreground] = ((inside - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    return PatchComponents(first, foreground, colours, shares[0], colour_shares)


def project_on_components(tokens: np.ndarray, count: int) -> tuple[np.ndarray, tuple[float, ...]]:
    """Project [F, D] on its principal components: [F, count], and their shares of the variance."""
    centred = tokens - tokens.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)  # rising
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]  # [count], [D, count]
    strongest = np.abs(vectors).argmax(0)
    vectors = vectors * np.sign(vectors[strongest, range(vectors.shape[1])])
    total = max(float(np.square(centred).sum()), np.finfo(np.float64).tiny)
    return centred @ vectors, tuple((values / total).tolist())


def measure_border_share(chosen: np.ndarray) -> float:
    """Share of the chosen patches, bool [n, h, w], that lie on the border of their photo."""
    border = np.ones(chosen.shape[1:], dtype=bool)
    border[1:-1, 1:-1] = False
    return float(border[None].repeat(len(chosen), 0)[chosen].mean()) if chosen.any() else 1.0


def compute_patch_similarity(
    features: np.ndarray, photo: int, patch: tuple[int, int]
) -> np.ndarray:
    """Cosine similarity of one patch of one photo to all patches: [n, h, w, D] -> [n, h, w]."""
    norms = np.linalg.norm(features, axis=-1, keepdims=True)
    directions = features / np.maximum(norms, 1e-12)
    similarity: np.ndarray = directions @ directions[photo, patch[0], patch[1]]
    return similarity


def find_nearest_patches(similarity: np.ndarray) -> list[tuple[int, int]]:
    """Find the row and column of the most similar patch of each photo of [n, h, w]."""
    count, _, columns = similarity.shape
    return [divmod(int(similarity[photo].argmax()), columns) for photo in range(count)]


def median_random_patch_similarity(features: np.ndarray, seed: int = 0) -> float | None:
    """Median cosine of two random patches of different photos; None for a single photo."""
    count, width = len(features), features.shape[3]
    if count < 2:
        return None
    tokens = features.reshape(count, -1, width)  # [n, N, D]
    random = np.random.default_rng(seed)
    first = random.integers(count, size=MAX_RANDOM_PAIRS)
    second = (first + random.integers(1, count, size=MAX_RANDOM_PAIRS)) % count
    a, b = (
        tokens[photos, random.integers(tokens.shape[1], size=MAX_RANDOM_PAIRS)]
        for photos in (first, second)
    )
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.median((a * b).sum(1) / np.maximum(norms, 1e-12)))
