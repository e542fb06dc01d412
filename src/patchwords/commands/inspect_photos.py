"""The photos that `patchwords inspect` looks at: which ones, and their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from patchwords.data.examples import ImageDataset, concatenate_datasets
from patchwords.data.loader import load_eval_batches
from patchwords.data.open import DATA_SOURCES, open_data, open_images
from patchwords.data.preprocess import Preprocess
from patchwords.errors import ConfigError, DataError
from patchwords.evaluate.subject import LoadedModel
from patchwords.inspect.attention import require_attention
from patchwords.model.vit import ViT

PHOTO_BATCH_SIZE = 16


def open_photos(words: Sequence[str], image_column: str | None = None) -> ImageDataset:
    """Files, folders and globs as `predict` takes them, or one DATA of another kind, all splits."""
    kinds = [source for name, source in DATA_SOURCES.items() if name != "folder"]
    if len(words) == 1 and any(source.matches(words[0]) for source in kinds):
        data = open_data(words[0], image_column=image_column, need_labels=False)
        return concatenate_datasets(list(data.splits.values()))
    return open_images(words)


@dataclass
class PhotoReader:
    """Reads them batch by batch, and remembers which could not be read."""

    subject: LoadedModel
    preprocess: Preprocess
    bad: dict[str, str] = field(default_factory=dict)  # path -> reason

    def batches(self, examples: ImageDataset) -> Iterator[tuple[list[str], Tensor]]:
        """(names, uint8 [B, C, H, W]) of those that can be read; raises DataError for none."""
        workers = self.subject.workers_for(examples)
        some = False
        for batch in load_eval_batches(examples, self.preprocess, PHOTO_BATCH_SIZE, workers):
            self.bad |= {examples.keys[index]: reason for index, reason in batch.bad}
            if len(batch.indices):
                some = True
                yield [examples.keys[i] for i in batch.indices.tolist()], batch.images
        if not some:
            first, reason = next(iter(self.bad.items()))
            raise DataError(f"none of the images can be read; the first is {first}: {reason}")

    def attending(self) -> ViT:
        """The model; raises ConfigError, which names it, where it has no attention."""
        try:
            return require_attention(self.subject.model)
        except ConfigError as error:
            raise ConfigError(f"{self.subject.name}: {error}") from error

    def normalised(self, pixels: Tensor) -> Tensor:
        """uint8 [B, C, H, W] -> what the model takes, on its device"""
        return self.preprocess.normalise(pixels.to(self.subject.device.torch_device))

    def all(self, examples: ImageDataset) -> tuple[list[str], Tensor]:
        """Names and pixels of few"""
        read = list(self.batches(examples))
        return [name for names, _ in read for name in names], torch.cat([p for _, p in read])
