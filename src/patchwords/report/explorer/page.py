"""Attention explorer: an interactive HTML page with all the attention of a model on photos.

The page is one file that opens in a browser, offline, without a server. Attention is stored as one
byte per weight (interpret/view.py), gzip and base64; the browser unpacks it and computes rollout
and distances.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from patchwords.data.decode import encode_image_url
from patchwords.errors import ConfigError
from patchwords.files import write_atomically
from patchwords.interpret.view import AttentionView
from patchwords.report.format import pluralise
from patchwords.report.html import Markup, html_document, tag, to_markup
from patchwords.report.page import draw_logo, read_stylesheet
from patchwords.version import __version__

EXPLORER_SCRIPTS = ("numbers.js", "drawing.js", "panel.js", "explorer.js")  # in this order
MAX_PAGE_WEIGHTS = 64_000_000  # about 50 MB, which browsers still open
COLOUR_MAP_STOPS = 33
PHOTO_QUALITY = 92  # of a JPEG


def write_explorer(path: Path | str, views: Sequence[AttentionView]) -> Path:
    """Write the page of these views and return its path.

    Every photo must be there for every model. Raises ConfigError if the views are too large for a
    browser or the file cannot be written.
    """
    page = Path(path)
    write_atomically(page, render_explorer(views))
    return page


def render_explorer(views: Sequence[AttentionView]) -> str:
    """Render the page; the same views give the same text."""
    check_views(views)
    script = read_explorer_sources(*EXPLORER_SCRIPTS)
    style = read_stylesheet() + read_explorer_sources("explorer.css")
    ids = [f"codes-{i}" for i in range(len(views))]
    description = dump_script_json(describe_views(views, ids))
    codes = (
        tag("script", Markup(compress_codes(view.codes)), type="text/plain", id=element)
        for element, view in zip(ids, views, strict=True)
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
        *codes,
        tag("script", Markup(description), type="application/json", id="views"),
        tag("script", Markup(script), type="module"),
    )
    title = f"{explorer_subtitle(views)}: patchwords explorer"
    return html_document(title, style, explorer_security_policy(script, style), body)


def check_views(views: Sequence[AttentionView]) -> None:
    """Raise ConfigError for incomplete views, or for more than a browser can open."""
    photos, models = list_photos_and_models(views)
    counts = f"{pluralise(len(photos), 'photo')} by {pluralise(len(models), 'model')}"
    pairs = {(view.photo, view.model) for view in views}
    if not views or not len(pairs) == len(views) == len(photos) * len(models):
        raise ConfigError(
            f"{pluralise(len(views), 'view')} of {counts}: the page needs each photo once for each model"
        )
    numbers = sum(view.codes.size for view in views)
    if numbers > MAX_PAGE_WEIGHTS:
        raise ConfigError(
            f"the attention of {counts} has {numbers / 1e6:.0f} million weights; the maximum is "
            f"{MAX_PAGE_WEIGHTS / 1e6:.0f}: name fewer photos, or keep the mean of the heads"
        )


def list_photos_and_models(views: Sequence[AttentionView]) -> tuple[list[str], list[str]]:
    """List the photos and the models, each once, in order of appearance."""
    return list(dict.fromkeys(v.photo for v in views)), list(dict.fromkeys(v.model for v in views))


def describe_views(views: Sequence[AttentionView], ids: Sequence[str]) -> dict[str, Any]:
    """Describe the views for the script; `ids` are the elements with their codes."""
    photos, models = list_photos_and_models(views)
    return {
        "photos": photos,
        "models": models,
        "views": [
            {
                "photo": photos.index(view.photo),
                "model": models.index(view.model),
                "codes": element,
                "layers": view.codes.shape[0],
                "kept": view.codes.shape[1],
                "heads": view.heads,
                "grid": view.grid,
                "prefix": view.prefix,
                "size": view.pixels.shape[:2],
                "pixels": encode_image_url(Image.fromarray(view.pixels), quality=PHOTO_QUALITY),
                "answers": [[label, round(float(p), 6)] for label, p in view.answers],
            }
            for view, element in zip(views, ids, strict=True)
        ],
        "ramp": list_viridis_stops(),
        "precision": describe_precision(views),
    }


def describe_precision(views: Sequence[AttentionView]) -> str:
    points = 100 * max(view.error for view in views)
    return (
        f"Weights are stored in 8 bits: on this page none differs by more than {points:.2g} "
        "percentage points from the model's."
    )


def explorer_subtitle(views: Sequence[AttentionView]) -> str:
    photos, models = list_photos_and_models(views)
    photo_names = photos[0] if len(photos) == 1 else pluralise(len(photos), "photo")
    model_names = " and ".join(models) if len(models) < 3 else pluralise(len(models), "model")
    return f"{photo_names} by {model_names}"


def compress_codes(codes: np.ndarray) -> str:
    """Compress by gzip without a timestamp, as base64."""
    compressed = gzip.compress(codes.tobytes(), compresslevel=9, mtime=0)
    return base64.b64encode(compressed).decode()


def list_viridis_stops() -> list[int]:
    """List red, green and blue of each stop of viridis.

    Its steps are perceptually even, also in grey and for colour-blind readers.
    """
    from matplotlib import colormaps

    stops = colormaps["viridis"](np.linspace(0, 1, COLOUR_MAP_STOPS))[:, :3]  # [STOPS, RGB]
    return np.rint(255 * stops).astype(int).ravel().tolist()


def dump_script_json(content: dict[str, Any]) -> str:
    """Dump JSON that no file or class name can close early inside a <script>."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def explorer_security_policy(script: str, style: str) -> str:
    """Allow this script and this style only, and nothing from elsewhere."""
    return (
        f"default-src 'none'; img-src data:; script-src {csp_hash(script)}; "
        f"style-src {csp_hash(style)}; base-uri 'none'; form-action 'none'"
    )


def csp_hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def read_explorer_sources(*parts: str) -> str:
    room = files("patchwords.report.explorer")
    return "\n".join(room.joinpath(part).read_text(encoding="utf-8") for part in parts)
