"""The explorer: one HTML page with all the attention of a model on a photo, to play with.

It is self-contained: a file to open in a browser, offline, without a server. Attention is packed
as codes of a byte (inspect/codes.py), gzip and base64; the browser unpacks them and computes
rollout and distances itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from patchwords.errors import ConfigError
from patchwords.files import write_atomically
from patchwords.inspect.view import View
from patchwords.report.html import Markup, tag, text, whole_page
from patchwords.report.words import plural
from patchwords.report.write import emblem, style
from patchwords.version import __version__

SCRIPTS = ("numbers.js", "drawing.js", "panel.js", "explorer.js")  # one after the other
MOST_NUMBERS = 64_000_000  # on a page: about 50 MB, which browsers still open
STOPS = 33  # of the colour map
SMALL = 64  # pixels up to which an image is kept without loss


def write_explorer(path: Path | str, views: Sequence[View]) -> Path:
    """Write the page of these views; gives its path.

    With several photos, or several models, two of them can be put side by side: every photo is to
    be there for every model. Raises ConfigError where they would be too much for a browser, and
    where the file cannot be written.
    """
    page = Path(path)
    write_atomically(page, render(views))
    return page


def render(views: Sequence[View]) -> str:
    """The page as text; the same views give the same text."""
    check(views)
    script, look = source(*SCRIPTS), style() + source("explorer.css")
    places = [f"codes-{i}" for i in range(len(views))]
    told = plain_json(describe(views, places))
    packed = (
        tag("script", Markup(pack(view.codes)), type="text/plain", id=place)
        for place, view in zip(places, views, strict=True)
    )
    body = tag(
        "body",
        Markup(
            Template(source("explorer.html")).substitute(
                emblem=emblem(),
                subtitle=text(subtitle(views)),
                made=f"Made by patchwords {__version__}.",
            )
        ),
        *packed,
        tag(
            "script",
            Markup(told),
            type="application/json",
            id="views",
        ),
        tag("script", Markup(script), type="module"),
    )
    title = f"{subtitle(views)}: patchwords explorer"
    return whole_page(title, look, policy(script, look), body)


def check(views: Sequence[View]) -> None:
    photos, models = names(views)
    seen = f"{plural(len(photos), 'photo')} by {plural(len(models), 'model')}"
    each = {(view.photo, view.model) for view in views}
    if not views or not len(each) == len(views) == len(photos) * len(models):
        raise ConfigError(
            f"{plural(len(views), 'view')} of {seen}: the page needs each photo once for each model"
        )
    numbers = sum(view.codes.size for view in views)
    if numbers > MOST_NUMBERS:
        raise ConfigError(
            f"the attention of {seen} has {numbers / 1e6:.0f} million numbers, a page takes "
            f"{MOST_NUMBERS / 1e6:.0f}: name fewer photos, or keep the mean of the heads"
        )


def names(views: Sequence[View]) -> tuple[list[str], list[str]]:
    """Photos and models, each once, as they first come."""
    return list(dict.fromkeys(v.photo for v in views)), list(dict.fromkeys(v.model for v in views))


def describe(views: Sequence[View], places: Sequence[str]) -> dict[str, Any]:
    """What the script is told of the views; their codes stand at `places` in the page."""
    photos, models = names(views)
    return {
        "photos": photos,
        "models": models,
        "views": [
            {
                "photo": photos.index(view.photo),
                "model": models.index(view.model),
                "codes": place,
                "layers": view.codes.shape[0],
                "kept": view.codes.shape[1],
                "heads": view.heads,
                "grid": view.grid,
                "prefix": view.prefix,
                "size": view.pixels.shape[:2],
                "pixels": picture(view.pixels),
                "answers": [[label, round(float(p), 6)] for label, p in view.answers],
            }
            for view, place in zip(views, places, strict=True)
        ],
        "ramp": colours(),
        "precision": precision(views),
    }


def precision(views: Sequence[View]) -> str:
    points = 100 * max(view.error for view in views)
    return (
        f"Weights are kept to 8 bits: on this page none is further than {points:.2g} percentage "
        "points from the model's."
    )


def subtitle(views: Sequence[View]) -> str:
    photos, models = names(views)
    seen = photos[0] if len(photos) == 1 else plural(len(photos), "photo")
    return f"{seen} by {' and '.join(models) if len(models) < 3 else plural(len(models), 'model')}"


def pack(codes: np.ndarray) -> str:
    """Base64 of gzip, without the time of day."""
    compressed = gzip.compress(codes.tobytes(), compresslevel=9, mtime=0)
    return base64.b64encode(compressed).decode()


def picture(pixels: np.ndarray) -> str:
    """uint8 [H, W, 3] -> a data URL."""
    kind, settings = ("png", {}) if max(pixels.shape[:2]) <= SMALL else ("jpeg", {"quality": 92})
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **settings)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def colours() -> list[int]:
    """Red, green and blue of each stop of viridis: even steps to the eye, in grey as well, and
    the same to colour-blind readers."""
    from matplotlib import colormaps

    stops = colormaps["viridis"](np.linspace(0, 1, STOPS))[:, :3]  # [STOPS, RGB]
    return np.rint(255 * stops).astype(int).ravel().tolist()


def plain_json(content: dict[str, Any]) -> str:
    """JSON that no name of a file or a class can end."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def policy(script: str, look: str) -> str:
    """Nothing may be loaded from anywhere, and no other script or style may run."""
    return (
        f"default-src 'none'; img-src data:; script-src {digest(script)}; "
        f"style-src {digest(look)}; base-uri 'none'; form-action 'none'"
    )


def digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def source(*parts: str) -> str:
    room = files("patchwords.report.explorer")
    return "\n".join(room.joinpath(part).read_text(encoding="utf-8") for part in parts)
