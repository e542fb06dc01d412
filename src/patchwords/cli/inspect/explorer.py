"""`patchwords inspect ... --explore PAGE`: an interactive page of attention maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from patchwords.data.dataset import ImageDataset
    from patchwords.evaluation.predictions import LoadedModel
    from patchwords.interpret.view import AttentionView
    from patchwords.report.inspection import PhotoReader

MAX_PHOTO_WEIGHTS = 24_000_000  # on a page, some 20 MB, unless one photo alone has more


@dataclass(frozen=True)
class ExplorerOptions:
    """An interactive page of attention maps."""

    section: ClassVar[str] = "Explorer page"

    explore: Path | None = None
    """HTML file to write: a page that shows what each patch of a photo attends to, in every layer
    and head; default: none"""
    beside: tuple[str, ...] = ()
    """other models to show on that page, next to SRC; default: none"""
    explore_heads: Literal["auto", "all", "mean"] = "auto"
    """heads on that page; auto: all, or for a large model their mean"""


def check_explorer_options(config: ExplorerOptions, images: bool, source: str) -> None:
    """Refuse contradictory flags before a model is loaded."""
    from patchwords.errors import ConfigError

    if config.explore is None:
        if config.beside:
            raise ConfigError("--beside needs --explore: add --explore PAGE.html")
        return
    if not images:
        raise ConfigError("--explore needs images: give them after SRC")
    if config.explore.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--explore {config.explore} is an HTML page: let its name end in .html")
    models = [source, *config.beside]
    for model in config.beside:
        if models.count(model) > 1:
            raise ConfigError(f"--beside {model} is on the page already; give each model once")


def write_explorer_page(
    config: ExplorerOptions, photos: PhotoReader, examples: ImageDataset, count: int
) -> tuple[Path, str]:
    """Write the page of `count` photos, or as many as fit; -> its path and a line about it."""
    import numpy as np

    from patchwords.data.dataset import subsample_evenly
    from patchwords.evaluation.predictions import load_model_on_device
    from patchwords.report.explorer.page import write_explorer
    from patchwords.report.format import pluralise
    from patchwords.report.inspection import PhotoReader

    assert config.explore is not None
    first = photos.loaded
    readers = [photos]
    for spec in config.beside:
        subject = load_model_on_device(spec, first.device, first.workers)
        preprocess = subject.preprocess
        if photos.preprocess.image_size != first.preprocess.image_size:  # --image-size is for all
            preprocess = replace(preprocess, image_size=photos.preprocess.image_size)
        readers.append(PhotoReader(subject, preprocess, photos.unreadable))
    _, once = np.unique(examples.keys, return_index=True)
    examples = examples.select(np.sort(once))  # a file may be given twice
    weights = sum(count_photo_weights(reader, config.explore_heads) for reader in readers)
    fit = max(1, MAX_PHOTO_WEIGHTS // weights)
    chosen = subsample_evenly(examples, min(count, fit))
    views = [
        view for reader in readers for view in make_views(reader, chosen, config.explore_heads)
    ]
    page = write_explorer(config.explore, views)
    shown = pluralise(len(views) // len(readers), "photo")
    if fit < min(count, len(examples)):
        shown += f" of {min(count, len(examples))}; more would make the page too large"
    return page, f"{shown}, {page.stat().st_size / 1e6:.1f} MB"


def count_photo_weights(photos: PhotoReader, heads: Literal["auto", "all", "mean"]) -> int:
    """Count the attention weights per photo; raises ConfigError for a model without attention."""
    import torch

    from patchwords.interpret.view import attention_view_shape

    vit = photos.require_attention()
    grid = vit.grid(torch.empty(1, vit.config.channels, *photos.preprocess.image_size))
    layers, kept, tokens = attention_view_shape(vit.config, grid, heads)
    return layers * kept * tokens**2


def make_views(
    photos: PhotoReader, examples: ImageDataset, heads: Literal["auto", "all", "mean"]
) -> list[AttentionView]:
    """Make the attention view of each photo that can be read."""
    from patchwords.interpret.view import build_attention_view

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
