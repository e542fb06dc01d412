"""Images that cannot be read: a few are left out by name, more than a few end the work."""

from __future__ import annotations

from collections.abc import Collection

from patchwords.errors import DataError


def check_bad_image_share(
    bad: Collection[tuple[str, str]], images: int, what: str, max_bad: float
) -> None:
    """Raise DataError where more than a share `max_bad` of the images is bad: (path, reason)."""
    if len(bad) > max_bad * images:
        path, reason = next(iter(bad))
        raise DataError(
            f"{len(bad)} of {images} {what} cannot be read, more than --max-bad {max_bad:.2%}; the "
            f"first: {path} ({reason}); `patchwords doctor` lists them all"
        )
