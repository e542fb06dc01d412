"""How many processes should decode images, where nobody said."""

from __future__ import annotations

from patchwords.data.examples import Examples
from patchwords.data.loader import default_workers

SMALL_IMAGE = 8192  # bytes; a thumbnail decodes in less time than a CPU takes to learn from it


def useful_workers(examples: Examples, cuda: bool = False, processes: int = 1) -> int:
    """None for thumbnails that a CPU works on, else one per core but one.

    For each of the training processes of this machine, which share its cores.
    """
    tiny = len(examples) > 0 and float(examples.sizes.mean()) < SMALL_IMAGE
    return 0 if tiny and not cuda else default_workers(processes)
