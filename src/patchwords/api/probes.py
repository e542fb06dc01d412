"""Features of a frozen model in a file, and probes: few-shot, linear, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchwords.api.runs import ModelSource, get_source
from patchwords.data.dataset import ALL, DatasetSplits
from patchwords.data.open import DATA_SOURCES, open_images
from patchwords.device import PrecisionName, choose_device
from patchwords.distributed import is_main_process, join_process_group, run_on_all_processes
from patchwords.errors import ConfigError
from patchwords.evaluation.predictions import EvaluationOptions, load_model_on_device
from patchwords.evaluation.probes.cache import extract_probe_features, open_feature_cache
from patchwords.evaluation.probes.defaults import (
    DEFAULT_CACHE_GIB,
    DEFAULT_DEV_SHARE,
    DEFAULT_DRAWS,
    DEFAULT_L2,
    DEFAULT_L2S,
    DEFAULT_SHOTS,
    DEFAULT_TEMPERATURE,
)
from patchwords.evaluation.probes.embed import (
    EmbeddingFile,
    check_embedding_output,
    list_embedded_images,
    write_embedding,
)
from patchwords.evaluation.probes.features import TokenChoice
from patchwords.evaluation.probes.fewshot import (
    build_fewshot_table,
    draw_probe_shots,
    extract_drawn_features,
    require_positive_penalties,
)
from patchwords.evaluation.probes.inputs import ProbeInputs, open_probe_inputs
from patchwords.evaluation.probes.knn import (
    choose_default_ks,
    evaluate_knn,
    validate_knn_settings,
)
from patchwords.evaluation.probes.linear import (
    ProbeSettings,
    evaluate_linear_probe,
)
from patchwords.evaluation.results import Results
from patchwords.training.logs.progress import show_progress
from patchwords.training.setting_layers import apply_settings


@dataclass(frozen=True)
class EmbedOptions(EvaluationOptions):
    """How images are read, and what computes; int8 has no features."""

    precision: PrecisionName = "fp32"


@dataclass(frozen=True)
class ProbeOptions(EmbedOptions):
    """How images are read, what computes, and where features are kept."""

    cache: str | None = None  # folder, or none; default: the user's cache folder
    cache_size: float = DEFAULT_CACHE_GIB  # GiB


def fewshot(
    model: ModelSource,
    data: str | Path,
    *,
    shots: int | Sequence[int] = DEFAULT_SHOTS,
    seeds: int = DEFAULT_DRAWS,
    l2: float | Sequence[float] = DEFAULT_L2,
    seed: int = 0,
    **settings: Any,
) -> Results:
    """Measure few-shot linear accuracy (Sec. 4.1): least squares on features of a few images.

    Args:
        model: a run, a folder or a published name.
        data: a data source with labels.
        shots: training images per class.
        seeds: draws for each number of shots.
        l2: penalties; each has results of its own.
        seed: of the first draw, and of the split into train and test where DATA has none.
        settings: image_column, label_column, max_bad, device, precision, workers, cache, cache_size.

    `table` of the results has a row per number of shots and penalty. Under torchrun the main
    process has the results; those of the others are empty.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds} must be at least 1")
    options, l2s = apply_settings(ProbeOptions(), settings), to_tuple(l2)
    require_positive_penalties(l2s)
    with open_inputs(model, data, options, seed) as inputs:
        drawn = draw_probe_shots(inputs.split, to_tuple(shots), tuple(range(seed, seed + seeds)))
        features, draws = extract_drawn_features(
            inputs.extract, inputs.split, drawn, options.max_bad, inputs.train_is_cached
        )
    title = f"few-shot linear accuracy of {inputs.loaded.name} on {data}"
    if not is_main_process():
        return Results({}, title)
    table = build_fewshot_table(features, draws, l2s)
    return Results({**inputs.describe(), "data": str(data), "pool": drawn.images, **table}, title)


def probe(
    model: ModelSource,
    data: str | Path,
    *,
    l2: float | Sequence[float] = DEFAULT_L2S,
    dev: float = DEFAULT_DEV_SHARE,
    seeds: int = 1,
    seed: int = 0,
    **settings: Any,
) -> Results:
    """Train a linear classifier on the features of a frozen model, from all training images.

    Args:
        l2: penalties to choose from by held-back training images.
        dev: share of the training images of each class that is held back.
        seeds: times that images are held back; the mean accuracy decides.
        seed: of what is held back, and of the split into train and test where DATA has none.
        settings: as for `fewshot`.
    """
    options = apply_settings(ProbeOptions(), settings)
    chosen = ProbeSettings(to_tuple(l2), dev, tuple(range(seed, seed + seeds)))
    with open_inputs(model, data, options, seed) as inputs:
        features = extract_probe_features(inputs.extract, inputs.split, options.max_bad)
    title = f"linear probe of {inputs.loaded.name} on {data}"
    if not is_main_process():
        return Results({}, title)
    chosen = replace(chosen, device=inputs.loaded.device.torch_device)
    results = evaluate_linear_probe(features, chosen)
    return Results({**inputs.describe(), "data": str(data), **results}, title)


def knn(
    model: ModelSource,
    data: str | Path,
    *,
    k: int | Sequence[int] = (),
    temperature: float = DEFAULT_TEMPERATURE,
    seed: int = 0,
    **settings: Any,
) -> Results:
    """Classify test images by their nearest training images, in the features of a frozen model.

    Args:
        k: numbers of neighbours; training images choose one of them; default: 10, 20 and 100.
        temperature: the smaller, the more the nearest neighbours count.
        seed: of the split into train and test where DATA has none.
        settings: as for `fewshot`.
    """
    options, ks = apply_settings(ProbeOptions(), settings), to_tuple(k)
    with open_inputs(model, data, options, seed) as inputs:
        images = len(inputs.split.train)
        validate_knn_settings(ks or choose_default_ks(images), temperature, images)
        features = extract_probe_features(inputs.extract, inputs.split, options.max_bad)
    title = f"nearest neighbours of {inputs.loaded.name} on {data}"
    if not is_main_process():
        return Results({}, title)
    results = evaluate_knn(features, ks, temperature, seed, inputs.loaded.device.torch_device)
    return Results({**inputs.describe(), "data": str(data), **results}, title)


def embed(
    model: ModelSource,
    images: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    tokens: TokenChoice = "classifier",
    overwrite: bool = False,
    **settings: Any,
) -> EmbeddingFile:
    """Write the features of images to a file, in memory that does not grow with their number.

    Args:
        model: a run, a folder or a published name; it needs no classes.
        images: a data source, labels or not; or files, folders and patterns.
        output: NAME.npy, with path, split and label of each row in NAME.csv; or NAME.parquet.
        tokens: what the "classifier" sees, the "class" token, the "mean" of the "patches", or each.
        overwrite: write over existing files.
        settings: image_column, label_column, max_bad, device, precision, workers.

    An interrupted call goes on where it stopped when it is called again. Under torchrun each
    process computes a part.
    """
    options, file = apply_settings(EmbedOptions(), settings), Path(output)
    device = choose_device(options.device, options.precision)
    with join_process_group(cuda=device.type == "cuda"):
        run_on_all_processes(lambda: check_embedding_output(file, overwrite))
        loaded = run_on_all_processes(
            lambda: load_model_on_device(get_source(model), device, options.workers)
        )
        data = run_on_all_processes(lambda: open_embedded_images(images, options))
        examples, splits = list_embedded_images(data, loaded.folder)
        shown = show_progress("computing features") if is_main_process() else nullcontext()
        with shown as progress:
            return write_embedding(
                loaded,
                examples,
                splits,
                file,
                tokens=tokens,
                max_bad=options.max_bad,
                overwrite=overwrite,
                progress=progress,
            )


def open_embedded_images(
    images: str | Path | Sequence[str | Path], options: EmbedOptions
) -> DatasetSplits:
    """Open a data source, or files, folders and patterns, which have no labels."""
    paths = [images] if isinstance(images, str | Path) else list(images)
    if len(paths) == 1 and any(kind.matches(str(paths[0])) for kind in DATA_SOURCES.values()):
        return options.open_data(paths[0], need_labels=False)
    return DatasetSplits("images", "folder", (), {ALL: open_images([str(p) for p in paths])})


def open_inputs(
    model: ModelSource, data: str | Path, options: ProbeOptions, seed: int
) -> AbstractContextManager[ProbeInputs]:
    """Open the model and the images, with progress in the terminal or the notebook."""
    return open_probe_inputs(
        get_source(model),
        str(data),
        choose_device(options.device, options.precision),
        open_feature_cache(options.cache, options.cache_size),
        seed=seed,
        workers=options.workers,
        image_column=options.image_column,
        label_column=options.label_column,
        show_progress=lambda: show_progress("computing features"),
    )


def to_tuple(values: Any) -> tuple[Any, ...]:
    """One value or several as a tuple."""
    return tuple(values) if isinstance(values, Sequence) else (values,)
