"""Locating weights: from a name, path or address to local files and their format.

| source | whose |
|---|---|
| run folder, model folder | ours |
| patchwords:cifar10-small | ours, inside this package |
| folder with config.json that has `model_type` | Hugging Face |
| folder with config.json that has `architecture` and `pretrained_cfg` | timm |
| .npz | Google: vision_transformer, big_vision, big_transfer |
| .safetensors, .pth, .pt, .bin, .tar | timm, with the model's name where the file does not say |
| imagenet21k/ViT-B_16, AugReg stems, howto-i21k-B/16, augreg:B/16, BiT-M-R50x1, https: | the web |
| owner/name, its page on huggingface.co, timm/NAME, vit_base_patch16_224.augreg_in21k | the hub |
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from patchwords.download import are_downloads_forbidden, fetch_cached
from patchwords.errors import ConfigError, WeightsError, did_you_mean
from patchwords.models.zoo import resolve_model

# Published weights: the names that their authors gave them, and their addresses.
#
# Sources: README.md of google-research/vision_transformer and of google-research/big_transfer,
# VANITY_NAMES in big_vision's models/vit.py.


STORAGE_URL = "https://storage.googleapis.com"
AUGREG_INDEX_URL = f"{STORAGE_URL}/vit_models/augreg/index.csv"

# Recommended by AugReg (arXiv 2106.10270, Table 3): 300 epochs on ImageNet-21k.
AUGREG_RECOMMENDED = {
    "howto-i21k-Ti/16": "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-S/32": "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-S/16": "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-B/32": "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-B/16": "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-B/8": "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-L/16": "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-R+Ti/16": "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
    "howto-i21k-R26+S/32": "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
    "howto-i21k-R50+L/32": "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1",
}
# Better plain ViT baselines (arXiv 2205.01580), ImageNet alone.
BIG_VISION_BASELINES = {
    f"i1k-s16-{epochs}ep": f"vit_s16_i1k_{epochs}ep" for epochs in (90, 150, 300)
}

# Other names, by their form -> their place in the storage.
PUBLISHED_NAME_PATTERNS = (
    (r"(imagenet21k|imagenet21k\+imagenet2012|augreg|sam|gsam)/([\w.+-]+?)(?:\.npz)?", r"\1/\2"),
    (r"()((?:R\d*_)?[A-Za-z]+_\d+-i(?:1|21)k-\d+ep-[\w.-]+?)(?:\.npz)?", r"augreg/\2"),
)
BIT_NAME_PATTERN = re.compile(r"(BiT-[SM]-R\d+x\d)(-ILSVRC2012|-imagenet2012)?(?:\.npz)?")


def find_published_url(name: str) -> str | None:
    """Return the address of published weights; None if the name is not one.

    >>> find_published_url("imagenet21k/ViT-B_16")
    'https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz'
    """
    if name in AUGREG_RECOMMENDED:
        return f"{STORAGE_URL}/vit_models/augreg/{AUGREG_RECOMMENDED[name]}.npz"
    if name in BIG_VISION_BASELINES:
        return f"{STORAGE_URL}/big_vision/{BIG_VISION_BASELINES[name]}.npz"
    if match := BIT_NAME_PATTERN.fullmatch(name):
        return f"{STORAGE_URL}/bit_models/{match[1]}{'-ILSVRC2012' if match[2] else ''}.npz"
    for form, place in PUBLISHED_NAME_PATTERNS:
        if match := re.fullmatch(form, name):
            return f"{STORAGE_URL}/vit_models/{match.expand(place)}.npz"
    for form, place in META_NAME_PATTERNS:
        if match := re.fullmatch(form + r"(?:\.pth)?", name):
            return f"{META_URL}/{match.expand(place)}"
    return f"{STORAGE_URL}/{name.removeprefix('gs://')}" if name.startswith("gs://") else None


def find_best_augreg(model: str, index: Path) -> str:
    """Return the stem of the AugReg ImageNet-21k checkpoint of the best validation accuracy.

    The authors' own choice where only a model is named (vit_jax/train.py). `model` is spelled as
    in the table, "R26+S/32", or as in file names, "R26_S_32".
    """
    prefix = model.replace("+", "_").replace("/", "_")
    best: dict[str, tuple[float, str]] = {}  # model -> (accuracy, stem)
    try:
        with open(index, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                name = row["name"].replace("+", "_").replace("/", "_")
                if row["ds"] == "i21k":
                    best[name] = max(
                        best.get(name, (-1.0, "")), (float(row["final_val"]), row["filename"])
                    )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{index} is not AugReg's table of models ({error}); delete it to download it again"
        ) from error
    if prefix not in best:
        raise WeightsError(f"AugReg has no model {model!r}{did_you_mean(prefix, best)}")
    return best[prefix][1].removesuffix(".npz")


WeightsKind = Literal["patchwords", "huggingface", "timm", "google"]
STATE_DICT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".tar")
HUB_ID = re.compile(r"(?:hf[-_]hub:)?([\w.-]+/[\w.-]+)")
HUB_PAGE = re.compile(  # what a browser shows for a model
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?!(?:datasets|spaces|docs|models)/)"
    r"([\w.-]+/[\w.-]+?)(?:/tree/main)?/?(?:[?#].*)?"
)
TIMM_NAME = re.compile(r"(?:timm/)?((?:vit|resnetv2|deit|flexivit)\w*(?:\.\w+)?)")
META_URL = "https://dl.fbaipublicfiles.com"
# Files of DINO, DINOv2, MAE and DeiT by their own names -> their places under META_URL.
META_NAME_PATTERNS = (
    (r"(dino_(?:deitsmall|vitbase)(?:8|16)_pretrain)", r"dino/\1/\1.pth"),
    (r"(dinov2_vit[sblg]14)((?:_reg4)?_pretrain)", r"dinov2/\1/\1\2.pth"),
    (r"(mae_pretrain_vit_(?:base|large|huge))", r"mae/pretrain/\1.pth"),
    (r"(mae_finetuned_vit_(?:base|large|huge))", r"mae/finetune/\1.pth"),
    (
        r"(deit_(?:tiny|small|base)_(?:distilled_)?patch16_(?:224|384)-[0-9a-f]{8})",
        r"deit/\1.pth",
    ),
)
BUNDLED_PREFIX = "patchwords:"  # before the name of a model in the box
BUNDLED_FOLDER = Path(__file__).parent / "boxed"
MODEL_FOLDER_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class WeightsLocation:
    """Weights on this machine."""

    kind: WeightsKind
    path: Path  # a folder, or a file for google and where weights are alone
    name: str  # what they are called: the stem of the file, the hub's id
    alone: bool = False  # a file of tensors, which does not say what they are of


def locate_weights(source: str | Path) -> WeightsLocation:
    """Find weights, downloaded if need be. Raises WeightsError in one line."""
    path, text = Path(source), str(source)
    if page := HUB_PAGE.fullmatch(text):
        text = page[1]
    if path.exists():
        return locate_local(path)
    if text.startswith(BUNDLED_PREFIX):
        return locate_bundled(text.removeprefix(BUNDLED_PREFIX))
    if text.startswith("augreg:"):
        stem = find_best_augreg(text.removeprefix("augreg:"), fetch_cached(AUGREG_INDEX_URL))
        return WeightsLocation(
            "google", fetch_cached(f"{STORAGE_URL}/vit_models/augreg/{stem}.npz"), stem
        )
    url = text if text.startswith(("https://", "http://")) else find_published_url(text)
    if url is not None:
        return locate_local(fetch_cached(url))
    if text.startswith(("/", "./", "../", "~")) or path.suffix in {".npz", *STATE_DICT_SUFFIXES}:
        raise WeightsError(f"no weights at {text}: there is no such file or folder")
    refuse_architecture_name(text)
    if match := TIMM_NAME.fullmatch(text):
        return fetch_from_hub(f"timm/{match[1]}")
    if match := HUB_ID.fullmatch(text):
        return fetch_from_hub(match[1])
    raise WeightsError(
        f"no weights at {text}: give a run folder, a model folder, a file, a hub id (owner/name), "
        f"or a published name such as {', '.join([next(iter(AUGREG_RECOMMENDED)), next(iter(BIG_VISION_BASELINES))])}"
    )


def locate_bundled(name: str) -> WeightsLocation:
    """Locate a model of this package: a folder of BUNDLED_FOLDER, with a card in it."""
    names = sorted(path.name for path in BUNDLED_FOLDER.iterdir() if path.is_dir())
    if name not in names:
        known = ", ".join(f"{BUNDLED_PREFIX}{known}" for known in names)
        raise WeightsError(f"no weights {BUNDLED_PREFIX}{name} in this package; there are: {known}")
    return WeightsLocation("patchwords", BUNDLED_FOLDER / name, f"{BUNDLED_PREFIX}{name}")


def refuse_architecture_name(text: str) -> None:
    """Refuse an architecture's name: ViT-B/16 looks like the hub's owner/name."""
    if not re.fullmatch(r"(?:[\w+-]*-)?(?:[RA][\w+]*[+-])?(?:ViT-)?[A-Za-z]{1,2}/\d+", text):
        return
    try:
        name = resolve_model(text).name
    except ConfigError:
        return
    raise WeightsError(
        f"{text} names an architecture ({name}), not weights; say which: augreg:"
        f"{name.replace('ViT-', '')} are AugReg's best, google/vit-base-patch16-224-in21k the "
        "paper's on the hub"
    )


def locate_local(path: Path) -> WeightsLocation:
    """Recognise the format of local weights by their files."""
    if path.is_dir():
        return locate_folder(path)
    if path.suffix == ".npz":
        return WeightsLocation("google", path, path.stem)
    if path.suffix == ".onnx":
        raise WeightsError(f"{path} is exported, so it can predict but not learn: name its run")
    if path.name == MODEL_FOLDER_FILES[1] and (path.parent / MODEL_FOLDER_FILES[0]).is_file():
        return locate_folder(path.parent)
    if path.suffix in STATE_DICT_SUFFIXES:
        stem = path.name.removesuffix(".tar")
        return WeightsLocation("timm", path, stem.removesuffix(Path(stem).suffix), alone=True)
    raise WeightsError(
        f"{path}: weights end in .npz, {', '.join(STATE_DICT_SUFFIXES)}, or are a folder"
    )


def locate_folder(path: Path) -> WeightsLocation:
    """Recognise a run folder, or a folder as on the hub."""
    for inner in (path / "model", path):
        if not (inner / MODEL_FOLDER_FILES[0]).is_file():
            continue
        try:
            table = json.loads((inner / MODEL_FOLDER_FILES[0]).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise WeightsError(f"{inner / MODEL_FOLDER_FILES[0]} is damaged: {error}") from error
        if not isinstance(table, dict):
            raise WeightsError(f"{inner / MODEL_FOLDER_FILES[0]} is damaged: it holds no table")
        if table.get("format") == "patchwords":
            return WeightsLocation("patchwords", inner, path.name)
        if "pretrained_cfg" in table or "architecture" in table:
            return WeightsLocation("timm", inner, path.name)
        if "model_type" in table or "architectures" in table:
            return WeightsLocation("huggingface", inner, path.name)
        raise WeightsError(
            f"{inner / MODEL_FOLDER_FILES[0]} is of no kind known here: it has none of format, pretrained_cfg, "
            "model_type"
        )
    if (path / "config.yaml").is_file():
        raise WeightsError(
            f"{path} is a run that has not ended, so it has no model/ yet; go on with it by "
            "--resume"
        )
    raise WeightsError(
        f"{path} is no model folder: it lacks {MODEL_FOLDER_FILES[0]} and {MODEL_FOLDER_FILES[1]}"
    )


def fetch_from_hub(repository: str) -> WeightsLocation:
    """Fetch a model from the hub by its own library, which caches, resumes and checks."""
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    offline = are_downloads_forbidden()
    download = partial(huggingface_hub.snapshot_download, repository)
    if offline:
        download = partial(download, local_files_only=True)
    patterns = ["config.json", "preprocessor_config.json", "model*.safetensors", "*.index.json"]
    try:
        folder = Path(download(allow_patterns=patterns))
        if not any(folder.glob("*.safetensors")):
            download(allow_patterns="pytorch_model*.bin")
    except GatedRepoError as error:
        raise WeightsError(
            f"{repository} asks for your consent: give it at https://huggingface.co/{repository}, "
            "then log in with: hf auth login"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise WeightsError(
            f"there is no {repository} on the Hugging Face hub, or it is private (then log in "
            "with: hf auth login)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        why = "--offline forbids downloads" if offline else "the Hugging Face hub cannot be reached"
        raise WeightsError(
            f"{repository} is not in the cache, and {why}: on "
            f"another machine fetch config.json and model.safetensors from "
            f"https://huggingface.co/{repository}, put them into one folder, and give its path"
        ) from error
    place = locate_folder(folder)
    return WeightsLocation(place.kind, place.path, repository)
