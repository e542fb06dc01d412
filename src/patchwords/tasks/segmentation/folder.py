"""A trained segmentation model: its folder, and masks for new photos.

Sizes: h w photo, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
from torch import Tensor

from patchwords.data.dataset import ImageDataset
from patchwords.data.decode import read_pixels
from patchwords.data.open import wrap_images
from patchwords.data.sources.mask_table import Colour
from patchwords.device import Device, choose_device
from patchwords.errors import DataError, WeightsError
from patchwords.files import claim_output_folder, write_atomically
from patchwords.tasks.segmentation.decoders import DECODERS
from patchwords.tasks.segmentation.model import SegmentationModel, segment_photo
from patchwords.tasks.segmentation.pictures import encode_index_png, encode_overlay, overlay_mask
from patchwords.weights.convert import find_shape_mismatch, refuse_not_finite
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.safe_load import read_safetensors

if TYPE_CHECKING:
    from patchwords.data.decode import ImageLike

TASK = "segmentation"
DECODER_FILE = "decoder.safetensors"
CARD_KEYS = ("decoder", "classes", "values", "palette")


def save_decoder(model: SegmentationModel, folder: Path) -> None:
    """Write the decoder next to the backbone; an older file is replaced atomically."""
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in model.decoder.state_dict().items()
    }
    write_atomically(folder / DECODER_FILE, safetensors.torch.save(tensors, {"format": "pt"}))


@dataclass(frozen=True)
class SegmentedImage:
    """The answer for one photo."""

    path: str
    photo: np.ndarray  # uint8 [h, w, 3]
    mask: np.ndarray  # class indices, uint8 [h, w]
    labels: tuple[str, ...]  # [K]
    values: tuple[int, ...]  # [K] of the classes in the masks that were trained on
    palette: tuple[Colour, ...]  # [K]

    @property
    def shares(self) -> dict[str, float]:
        """Share of the pixels by class, the largest first; classes that are not there are left out."""
        counts = np.bincount(self.mask.reshape(-1), minlength=len(self.labels))
        order = [int(k) for k in np.argsort(-counts, kind="stable") if counts[k]]
        return {self.labels[k]: float(counts[k] / self.mask.size) for k in order}

    @property
    def overlay(self) -> np.ndarray:
        """The photo with the classes laid over, uint8 [h, w, 3]."""
        return overlay_mask(self.photo, self.mask, self.palette)

    def to_png(self) -> bytes:
        """Encode the mask as an index PNG with a palette, in the values that were trained on."""
        return encode_index_png(self.mask, self.palette, self.values)

    def _repr_png_(self) -> bytes:
        import io

        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(self.overlay).save(file, "PNG")
        return file.getvalue()


class MaskFolder:
    """A folder that masks and overlays of new photos are written into."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        claimed = claim_output_folder(path, overwrite)
        assert claimed is not None
        self.path, self.written = claimed, 0
        self.names: set[str] = set()

    def write(self, answer: SegmentedImage) -> None:
        """Write NAME.png and NAME-overlay.jpg; equal names of several folders get a number."""
        stem, number = Path(answer.path).stem, 1
        name = stem
        while name in self.names:
            number += 1
            name = f"{stem}-{number}"
        self.names.add(name)
        write_atomically(self.path / f"{name}.png", answer.to_png())
        overlay = encode_overlay(answer.photo, answer.mask, answer.palette, most=None)
        write_atomically(self.path / f"{name}-overlay.jpg", overlay)
        self.written += 1


@dataclass(frozen=True)
class Segmenter:
    """A trained segmentation model with its preprocessing and classes."""

    model: SegmentationModel
    source: Pretrained
    device: Device

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.task["classes"])

    @property
    def task(self) -> dict[str, Any]:
        assert self.source.task is not None
        return dict(self.source.task)

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Any:
        """Segment a photo, or each of several, a folder or a pattern; raises DataError."""
        examples, single = wrap_images(images)
        answers = []
        for path, answer, reason in self.stream(examples):
            if answer is None:
                raise DataError(f"{path}: {reason}")
            answers.append(answer)
        return answers[0] if single else answers

    def stream(self, examples: ImageDataset) -> Iterator[tuple[str, SegmentedImage | None, str]]:
        """Segment photo by photo: (path, answer, "") or (path, None, why it cannot be read)."""
        palette = tuple((int(r), int(g), int(b)) for r, g, b in self.task["palette"])
        values = tuple(map(int, self.task["values"]))
        for index, key in enumerate(examples.keys):
            try:
                photo = read_pixels(examples.read(index))
            except (DataError, OSError) as fault:
                yield key, None, str(fault) or type(fault).__name__
                continue
            mask = segment_photo(self.model, photo, self.source.preprocess, self.device)
            yield key, SegmentedImage(key, photo, mask, self.labels, values, palette), ""


def open_segmenter(source: Pretrained, device: Device | None = None) -> Segmenter:
    """Put the decoder of a model folder on its backbone, on the device. Raises WeightsError."""
    folder, task = source.home, source.task
    if folder is None or task is None or task.get("name") != TASK:
        raise WeightsError("this model has no decoder: it is not of the task segmentation")
    path = folder / DECODER_FILE
    lacking = [key for key in CARD_KEYS if key not in task]
    if lacking or task.get("decoder") not in DECODERS:
        raise WeightsError(
            f"{folder}: its task is damaged: it lacks {', '.join(lacking) or 'decoder'}"
        )
    if not path.is_file():
        raise WeightsError(f"{folder} has no {DECODER_FILE}, so it cannot make masks")
    model = SegmentationModel(source.model, task["decoder"], len(task["classes"]))
    load_decoder(model, read_safetensors(path), path)
    device = device or choose_device("cpu", "fp32")
    return Segmenter(model.to(device.torch_device).eval(), source, device)


def load_decoder(model: SegmentationModel, tensors: dict[str, Tensor], path: Path) -> None:
    """Load the tensors of a decoder, which must fit by name and shape. Raises WeightsError."""
    expected = {name: tuple(value.shape) for name, value in model.decoder.state_dict().items()}
    if (misfit := find_shape_mismatch(tensors, expected)) is not None:
        name, wanted, actual = misfit
        raise WeightsError(f"{path}: {name[:80]} should be {wanted}, and is {actual}")
    refuse_not_finite(
        {name: value for name, value in tensors.items() if value.is_floating_point()}, str(path)
    )
    model.decoder.load_state_dict(tensors)
