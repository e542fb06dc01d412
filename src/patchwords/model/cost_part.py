"""What one part of a model costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PartCost:
    """A step of the forward pass: its numbers to learn, its products, and what it leaves behind.

    What backward needs of an image is counted in values by their type. In float32 `kept` and
    `float32` are one; in mixed precision `kept` has that of the products, and `cast` are values
    among `float32` that a product keeps a second time in its own.
    """

    name: str
    parameters: int = 0
    standardised: int = 0  # those among them whose mean and deviation are taken out
    macs: int = 0  # of one image
    kept: int = 0
    float32: int = 0
    cast: int = 0
    int64: int = 0
    at_work: int = 0  # values, in float32, that live only while backward is in this part
    weights_at_work: int = 0  # the same, once for the whole batch

    def bytes_kept(self, batch: int, bytes_per_value: int) -> int:
        mixed = bytes_per_value < 4
        of_image = (
            (self.kept + self.cast * mixed) * bytes_per_value + 4 * self.float32 + 8 * self.int64
        )
        # Mixed precision copies every weight; standardising makes two tensors, one in float32.
        copied = self.parameters if mixed else self.standardised
        return batch * of_image + copied * bytes_per_value + 4 * self.standardised


def estimate_peak_bytes(parts: Iterable[PartCost], batch: int, bytes_per_value: int) -> int:
    """The most memory at once. Parts give back what they keep in the reverse of their order."""
    kept = peak = 0
    for part in parts:
        kept += part.bytes_kept(batch, bytes_per_value)
        peak = max(peak, kept + 4 * (batch * part.at_work + part.weights_at_work))
    return peak
