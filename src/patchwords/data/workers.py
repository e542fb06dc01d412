"""How many processes should decode images, where nobody said."""

from __future__ import annotations

from patchwords.data.examples import ImageDataset
from patchwords.data.loader import default_num_workers

SMALL_IMAGE_BYTES = (
    8192  # bytes; a thumbnail decodes in less time than a CPU takes to learn from it
)


def choose_num_workers(examples: ImageDataset, cuda: bool = False, processes: int = 1) -> int:
    """None for thumbnails that a CPU works on, else one per core but one.

    For each of the training processes of this machine, which share its cores.
    """
    tiny = len(examples) > 0 and float(examples.sizes.mean()) < SMALL_IMAGE_BYTES
    return 0 if tiny and not cuda else default_num_workers(processes)
