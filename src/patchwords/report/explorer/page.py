"""The explorer: one HTML page with all the attention of a model on a photo, to play with.

It is self-contained: a file to open in a browser, offline, without a server. Attention is packed
as codes of a byte (interpret/view.py), gzip and base64; the browser unpacks them and computes
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
from patchwords.interpret.view import AttentionView
from patchwords.report.format import pluralise
from patchwords.report.html import Markup, html_document, tag, to_markup
from patchwords.report.page import draw_logo, read_stylesheet
from patchwords.version import __version__

EXPLORER_SCRIPTS = ("numbers.js", "drawing.js", "panel.js", "explorer.js")  # one after the other
MAX_PAGE_WEIGHTS = 64_000_000  # on a page: about 50 MB, which browsers still open
COLOUR_MAP_STOPS = 33  # of the colour map
MAX_PNG_SIDE = 64  # pixels up to which an image is kept without loss


def write_explorer(path: Path | str, views: Sequence[AttentionView]) -> Path:
    """Write the page of these views; gives its path.

    With several photos, or several models, two of them can be put side by side: every photo is to
    be there for every model. Raises ConfigError where they would be too much for a browser, and
    where the file cannot be written.
    """
    page = Path(path)
    write_atomically(page, render_explorer(views))
    return page


def render_explorer(views: Sequence[AttentionView]) -> str:
    """The page as text; the same views give the same text."""
    check_views(views)
    script, look = (
        read_explorer_sources(*EXPLORER_SCRIPTS),
        read_stylesheet() + read_explorer_sources("explorer.css"),
    )
    places = [f"codes-{i}" for i in range(len(views))]
    told = dump_script_json(describe_views(views, places))
    packed = (
        tag("script", Markup(compress_codes(view.codes)), type="text/plain", id=place)
        for place, view in zip(places, views, strict=True)
    )
    body = tag(
        "body",
        Markup(
            Template(read_explorer_sources("explorer.html")).substitute(
                emblem=draw_logo(),
                subtitle=to_markup(explorer_subtitle(views)),
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
    title = f"{explorer_subtitle(views)}: patchwords explorer"
    return html_document(title, look, explorer_security_policy(script, look), body)


def check_views(views: Sequence[AttentionView]) -> None:
    photos, models = list_photos_and_models(views)
    seen = f"{pluralise(len(photos), 'photo')} by {pluralise(len(models), 'model')}"
    each = {(view.photo, view.model) for view in views}
    if not views or not len(each) == len(views) == len(photos) * len(models):
        raise ConfigError(
            f"{pluralise(len(views), 'view')} of {seen}: the page needs each photo once for each model"
        )
    numbers = sum(view.codes.size for view in views)
    if numbers > MAX_PAGE_WEIGHTS:
        raise ConfigError(
            f"the attention of {seen} has {numbers / 1e6:.0f} million numbers, a page takes "
            f"{MAX_PAGE_WEIGHTS / 1e6:.0f}: name fewer photos, or keep the mean of the heads"
        )


def list_photos_and_models(views: Sequence[AttentionView]) -> tuple[list[str], list[str]]:
    """Photos and models, each once, as they first come."""
    return list(dict.fromkeys(v.photo for v in views)), list(dict.fromkeys(v.model for v in views))


def describe_views(views: Sequence[AttentionView], places: Sequence[str]) -> dict[str, Any]:
    """What the script is told of the views; their codes stand at `places` in the page."""
    photos, models = list_photos_and_models(views)
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
                "pixels": encode_photo_url(view.pixels),
                "answers": [[label, round(float(p), 6)] for label, p in view.answers],
            }
            for view, place in zip(views, places, strict=True)
        ],
        "ramp": list_viridis_stops(),
        "precision": describe_precision(views),
    }


def describe_precision(views: Sequence[AttentionView]) -> str:
    points = 100 * max(view.error for view in views)
    return (
        f"Weights are kept to 8 bits: on this page none is further than {points:.2g} percentage "
        "points from the model's."
    )


def explorer_subtitle(views: Sequence[AttentionView]) -> str:
    photos, models = list_photos_and_models(views)
    seen = photos[0] if len(photos) == 1 else pluralise(len(photos), "photo")
    return (
        f"{seen} by {' and '.join(models) if len(models) < 3 else pluralise(len(models), 'model')}"
    )


def compress_codes(codes: np.ndarray) -> str:
    """Base64 of gzip, without the time of day."""
    compressed = gzip.compress(codes.tobytes(), compresslevel=9, mtime=0)
    return base64.b64encode(compressed).decode()


def encode_photo_url(pixels: np.ndarray) -> str:
    """uint8 [H, W, 3] -> a data URL."""
    kind, settings = (
        ("png", {}) if max(pixels.shape[:2]) <= MAX_PNG_SIDE else ("jpeg", {"quality": 92})
    )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **settings)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def list_viridis_stops() -> list[int]:
    """Red, green and blue of each stop of viridis: even steps to the eye, in grey as well, and
    the same to colour-blind readers."""
    from matplotlib import colormaps

    stops = colormaps["viridis"](np.linspace(0, 1, COLOUR_MAP_STOPS))[:, :3]  # [STOPS, RGB]
    return np.rint(255 * stops).astype(int).ravel().tolist()


def dump_script_json(content: dict[str, Any]) -> str:
    """JSON that no name of a file or a class can end."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def explorer_security_policy(script: str, look: str) -> str:
    """Nothing may be loaded from anywhere, and no other script or style may run."""
    return (
        f"default-src 'none'; img-src data:; script-src {csp_hash(script)}; "
        f"style-src {csp_hash(look)}; base-uri 'none'; form-action 'none'"
    )


def csp_hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def read_explorer_sources(*parts: str) -> str:
    room = files("patchwords.report.explorer")
    return "\n".join(room.joinpath(part).read_text(encoding="utf-8") for part in parts)
