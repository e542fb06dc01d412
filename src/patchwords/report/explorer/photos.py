"""Photos for the explorer page: as many as fit on it, through one model or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from patchwords.data.dataset import ImageDataset, subsample_evenly
from patchwords.evaluation.predictions import LoadedModel, load_model_on_device
from patchwords.interpret.view import (
    AttentionView,
    HeadSelection,
    attention_view_shape,
    build_attention_view,
)
from patchwords.report.explorer.page import write_explorer
from patchwords.report.format import pluralise
from patchwords.report.inspection import PhotoReader
from patchwords.report.inspection_settings import ExplorerOptions

MAX_PHOTO_WEIGHTS = 24_000_000  # on a page, some 20 MB, unless one photo alone has more


def write_explorer_page(
    options: ExplorerOptions, photos: PhotoReader, examples: ImageDataset, count: int
) -> tuple[Path, str]:
    """Write the page of `count` photos, or as many as fit; -> its path and a line about it."""
    assert options.explore is not None
    first = photos.loaded
    readers = [photos]
    for spec in options.beside:
        subject = load_model_on_device(spec, first.device, first.workers)
        preprocess = subject.preprocess
        if photos.preprocess.image_size != first.preprocess.image_size:  # --image-size is for all
            preprocess = replace(preprocess, image_size=photos.preprocess.image_size)
        readers.append(PhotoReader(subject, preprocess, photos.unreadable))
    _, once = np.unique(examples.keys, return_index=True)
    examples = examples.select(np.sort(once))  # a file may be given twice
    weights = sum(count_photo_weights(reader, options.explore_heads) for reader in readers)
    fit = max(1, MAX_PHOTO_WEIGHTS // weights)
    chosen = subsample_evenly(examples, min(count, fit))
    views = [
        view for reader in readers for view in make_views(reader, chosen, options.explore_heads)
    ]
    page = write_explorer(options.explore, views)
    shown = pluralise(len(views) // len(readers), "photo")
    if fit < min(count, len(examples)):
        shown += f" of {min(count, len(examples))}; more would make the page too large"
    return page, f"{shown}, {page.stat().st_size / 1e6:.1f} MB"


def count_photo_weights(photos: PhotoReader, heads: HeadSelection) -> int:
    """Count the attention weights per photo; raises ConfigError for a model without attention."""
    vit = photos.require_attention()
    grid = vit.grid(torch.empty(1, vit.config.channels, *photos.preprocess.image_size))
    layers, kept, tokens = attention_view_shape(vit.config, grid, heads)
    return layers * kept * tokens**2


def make_views(
    photos: PhotoReader, examples: ImageDataset, heads: HeadSelection
) -> list[AttentionView]:
    """Make the attention view of each photo that can be read."""
    subject = photos.loaded
    names = shorten_paths(examples.keys)
    return [
        build_attention_view(
            subject.model,
            photos.preprocess,
            pixels.permute(1, 2, 0).numpy(),
            photo=names[path],
            name=format_model_title(subject),
            labels=subject.source.labels,
            heads=heads,
        )
        for paths, batch in photos.batches(examples)
        for path, pixels in zip(paths, batch, strict=True)
    ]


def shorten_paths(paths: Sequence[str]) -> dict[str, str]:
    """Shorten paths to file names, unless two files have the same name."""
    names = {path: Path(path).name for path in paths}
    return names if len(set(names.values())) == len(names) else {path: path for path in paths}


def format_model_title(subject: LoadedModel) -> str:
    """Format the name of a model with its architecture, if that is known."""
    architecture = subject.source.architecture
    return f"{subject.name} ({architecture})" if architecture else subject.name
