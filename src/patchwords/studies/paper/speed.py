"""Figure 12: inference speed and largest batch against image size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from patchwords.evaluation.statistics import compute_seed_statistics
from patchwords.files import GIB
from patchwords.report.format import pluralise
from patchwords.studies.page_blocks import PageBlock, PageTable, PageText
from patchwords.studies.study import (
    Claim,
    DisplayUnit,
    Scale,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
)

# Values that claims compare: speed ratios of pairs of models, and growth powers.


IMAGE_SIZES = (64, 128, 224, 384, 512)  # pixels, of Figure 12
GROWTH_SPAN = (224, 512)  # sizes between which growth is fitted
# ViT and a ResNet of similar MACs at 224 pixels: 4.4 and 4.1 G, 17.6 and 16.1 G.
MODEL_PAIRS = (("ViT-B/32", "BiT-R50x1"), ("ViT-B/16", "BiT-R50x2"))

VIT_POWER, RESNET_POWER = "ViT: power of the side", "ResNet: power of the side"
VIT_POWER_EXCESS = "ViT: power of the side, less 2"


def make_speed_trial_name(model: str, size: int) -> str:
    """Make the name of a trial."""
    return f"{model}, {size} px"


def make_speed_label(vit: str, resnet: str) -> str:
    return f"{vit} over {resnet}: speed, in doublings"


def make_batch_label(vit: str, resnet: str) -> str:
    return f"{vit} over {resnet}: largest batch, in doublings"


def parse_model_names(cells: Iterable[str]) -> list[str]:
    """Parse the model names, in grid order."""
    return list(dict.fromkeys(trial.rpartition(", ")[0] for trial in cells))


def is_vit(model: str) -> bool:
    return model.startswith("ViT")


def compute_values(
    labels: Mapping[str, str], found: Mapping[str, TrialMetrics]
) -> dict[str, float | None]:
    """Compute the values that claims compare, for one repeat."""
    models = parse_model_names(labels)
    values: dict[str, float | None] = {}
    for pair in MODEL_PAIRS:
        values[make_speed_label(*pair)] = mean_if_complete(
            compute_ratio_in_doublings(found, "images/s", pair, size) for size in IMAGE_SIZES
        )
    for pair in MODEL_PAIRS:
        values[make_batch_label(*pair)] = compute_ratio_in_doublings(
            found, "largest batch", pair, 224
        )
    powers = {model: fit_growth_power(found, model, "images/s") for model in models}
    values[VIT_POWER] = mean_if_complete(powers[model] for model in models if is_vit(model))
    values[RESNET_POWER] = mean_if_complete(powers[model] for model in models if not is_vit(model))
    ours = values[VIT_POWER]
    values[VIT_POWER_EXCESS] = None if ours is None else ours - 2
    return values


def compute_ratio_in_doublings(
    found: Mapping[str, TrialMetrics], what: str, pair: tuple[str, str], size: int
) -> float | None:
    """Compute log2 of the ratio of two trials; None if one fits nothing."""
    ours, theirs = (found[make_speed_trial_name(model, size)][what] for model in pair)
    return math.log2(ours / theirs) if ours and theirs else None


def fit_growth_power(found: Mapping[str, TrialMetrics], model: str, what: str) -> float | None:
    """Fit k where a metric falls as side^-k; k = 2 is proportional to the pixels."""
    first, last = (found[make_speed_trial_name(model, size)] for size in GROWTH_SPAN)
    before, after, short, long = first[what], last[what], first["side"], last["side"]
    if not (before and after and short and long):
        return None
    return math.log(before / after) / math.log(long / short)


def mean_if_complete(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    found = list(values)
    alive = [value for value in found if value is not None]
    return sum(alive) / len(alive) if alive and len(alive) == len(found) else None


# The page: tables and Figure 12.


def build_tables(results: Mapping[str, Any]) -> list[PageBlock]:
    """Build tables of speeds, their growth, the largest batches, and the machine."""
    models, means = parse_model_names(results["grid"]), average_repeats(results)
    pixels = tuple(f"{size} px" for size in IMAGE_SIZES)
    return [
        PageText(format_speed_setup(results)),
        PageTable(
            ("images/s at", *pixels),
            [
                (model, *(format_speed(results, model, size) for size in IMAGE_SIZES))
                for model in models
            ],
        ),
        PageText(
            "How the time of an image, and its multiplications, grow with its side between "
            f"{GROWTH_SPAN[0]} and {GROWTH_SPAN[1]} pixels: a power of 2 is in proportion to the pixels, one of "
            "4 would be bi-quadratic."
        ),
        PageTable(
            ("model", "power, time", "power, multiplications", "share of the peak at 224 px"),
            [build_growth_row(means, model) for model in models],
        ),
        PageText(format_memory_note(means)),
        PageTable(
            ("largest batch at", *pixels),
            [
                (model, *(format_largest_batch(means, model, size) for size in IMAGE_SIZES))
                for model in models
            ],
        ),
    ]


def format_speed_setup(results: Mapping[str, Any]) -> str:
    one, cells = results["cells"][0], results["cells"]
    threads = pluralise(int(one["threads"]), "thread")
    batches = " or ".join(f"{batch:.0f}" for batch in sorted({c["at a time"] for c in cells}))
    return (
        f"Measured on {results['device']} with {threads} in {'bf16' if one['bf16'] else 'fp32'}, "
        "one cell after the other, through the call that `patchwords predict` makes: images come "
        "from main memory as bytes, scores go back to it. Each speed is the best over images at a "
        f"time ({batches} won), and of each the median of several runs. A repeat stands for a "
        "seed: weights are as they begin, and do not matter."
    )


def format_memory_note(means: Mapping[str, TrialMetrics]) -> str:
    free = [one["free bytes"] or 0.0 for one in means.values()]
    return (
        "The largest batch is by arithmetic, not by filling the machine: what a training step "
        "with Adam holds (weights, gradients, two moments, activations) in nine tenths of the "
        f"memory that was free, {min(free) / GIB:.1f} to {max(free) / GIB:.1f} GiB. The tests hold "
        "that arithmetic to what torch takes, within 13 %."
    )


def format_speed(results: Mapping[str, Any], model: str, size: int) -> str:
    """Format the speed with its standard deviation over repeats."""
    over = compute_seed_statistics(collect_repeat_values(results, model, size, "images/s"))
    digits = 0 if over.mean >= 100 else 1
    beside = "" if over.std is None else f" ± {over.std:.{digits}f}"
    return f"{over.mean:.{digits}f}{beside}"


def build_growth_row(means: Mapping[str, TrialMetrics], model: str) -> tuple[str, ...]:
    time, work = fit_growth_power(means, model, "images/s"), fit_growth_power(means, model, "macs")
    assert time is not None
    assert work is not None
    share = means[make_speed_trial_name(model, 224)]["share of peak"] or 0.0
    return model, f"{time:.2f}", f"{-work:.2f}", f"{share:.0%}"


def format_largest_batch(means: Mapping[str, TrialMetrics], model: str, size: int) -> str:
    return f"{means[make_speed_trial_name(model, size)]['largest batch']:,.0f}"


def collect_repeat_values(
    results: Mapping[str, Any], model: str, size: int, what: str
) -> list[float]:
    """Collect a metric over the repeats."""
    name = make_speed_trial_name(model, size)
    return [trial[what] for trial in results["cells"] if trial["name"] == name]


def average_repeats(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Average the metrics of each trial over the repeats."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for trial in results["cells"]:
        found.setdefault(trial["name"], []).append(trial)
    about = {"name", "seed", "folder"}
    return {
        name: {key: sum(c[key] for c in cells) / len(cells) for key in cells[0].keys() - about}
        for name, cells in found.items()
    }


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw Figure 12: both panels over image size."""
    from patchwords.report.figures.plots import Panel, draw_panels

    caption = (
        f"On {results['device']}. Left: the best over images at a time, mean of "
        f"{pluralise(results['seeds'], 'repeat')}, bands from the slowest to the fastest. Right: what "
        "fits into the free memory in training with Adam, by arithmetic."
    )
    panels = [
        Panel(
            title,
            "image size, pixels",
            what,
            build_model_curves(results, what),
            True,
            True,
            IMAGE_SIZES,
        )
        for title, what in (("Speed", "images/s"), ("Memory", "largest batch"))
    ]
    return draw_panels(panels, caption, "speed")


def build_model_curves(results: Mapping[str, Any], what: str) -> Sequence[Any]:
    """Build a curve per model; sizes that do not fit are left out."""
    from patchwords.report.figures.plots import Curve

    found = []
    for model in parse_model_names(results["grid"]):
        values = {size: collect_repeat_values(results, model, size, what) for size in IMAGE_SIZES}
        fit = {size: some for size, some in values.items() if min(some) > 0}
        means = [sum(some) / len(some) for some in fit.values()]
        low, high = [min(some) for some in fit.values()], [max(some) for some in fit.values()]
        found.append(Curve(model, list(fit), means, low, high))
    return found


SECONDS = 0.6  # per batch size
BATCHES = {
    "cpu": (1, 4, 16, 64),
    "cuda": (8, 32, 128, 512),
    "mps": (8, 32, 128),
}  # the fastest batch size counts, as in Figure 12
# Patches of 14 pixels divide only 224: the others are the nearest multiples, 518 as in Table 2.
SIZES_OF_14 = {64: 70, 128: 126, 224: 224, 384: 378, 512: 518}

MINI_MODELS = ("ViT-S/32", "ViT-S/16", "ViT-B/32", "ViT-B/16", "BiT-R50x1", "BiT-R50x2")
FULL_MODELS = (  # those of Figure 12
    "ViT-B/32",
    "ViT-L/32",
    "ViT-B/16",
    "ViT-L/16",
    "ViT-H/14",
    "BiT-R50x1",
    "BiT-R50x2",
    "BiT-R152x4",
)


def build_speed_grid(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Build a trial per model and image size."""
    return {
        make_speed_trial_name(model, size): {
            "model": model,
            "image_size": (SIZES_OF_14[size] if model.endswith("/14") else size,),
        }
        for model in models
        for size in IMAGE_SIZES
    }


def build_speed_scale(models: Iterable[str], time: str) -> Scale:
    """Build the scale; repeats take the place of seeds, as nothing is trained."""
    return Scale(
        data=None, verb="none", settings={}, grid=build_speed_grid(models), seeds=3, time=time
    )


def measure_trial(trial: Trial, context: StudyContext) -> TrialMetrics:
    """Measure the best speed over batch sizes, and estimate the largest batch that fits.

    Other processes in the folder wait, so that nothing else runs during the measurement.
    """
    import torch

    from patchwords.benchmark.clock import reset_peak_memory
    from patchwords.device import choose_device, free_memory
    from patchwords.files import file_lock
    from patchwords.models.cost import count_macs
    from patchwords.studies.paper.analysis import build_timing_workload, measure_inference_speeds

    device = choose_device(context.device, context.precision)
    subject = build_timing_workload(trial, context, device, BATCHES[device.type])
    with file_lock(context.folder / ".clock.lock"):
        reset_peak_memory(device)  # frees what the previous trial left
        free = free_memory(device.torch_device)
        rows = measure_inference_speeds(subject, SECONDS)
    best = max(rows, key=lambda row: row.images_per_second or 0.0)
    return {
        "images/s": best.images_per_second,
        "at a time": best.batch,
        "share of peak": best.share_of_peak,
        "macs": count_macs(subject.shape),
        "side": subject.shape.image_size[0],
        "largest batch": estimate_largest_batch(subject.shape, device.precision, free),
        "free bytes": free,
        "threads": torch.get_num_threads(),
        "bf16": float(device.bf16),
    }


def estimate_largest_batch(shape: Any, precision: str, free: int) -> int:
    """Estimate the largest training batch with Adam, the optimizer of Table 3."""
    from patchwords.planning.memory import OptimizerSpec, ParallelLayout, estimate_memory_footprint

    update = OptimizerSpec("adamw", False, "bf16" if precision == "bf16" else "fp32")
    return estimate_memory_footprint(shape, ParallelLayout(1, "ddp", False), update).most_images(
        free
    )


STUDY = Study(
    name="speed",
    version=1,
    title="Speed and memory against the size of the image",
    question="How fast is a ViT next to a ResNet of similar compute, how does that change with the "
    "size of the image, and which of them needs less memory?",
    source="Figure 12, Appendix D.5",
    quantity="what the claims are about; the speeds themselves stand below",
    note="The figure is of one TPUv3 core. A ResNet is BiT, as in the paper: GroupNorm, and "
    "weights that are standardised, here once before it is asked.",
    paper={},
    paper_quantity="curves only; Figure 12 prints no numbers",
    scales={
        "mini": build_speed_scale(MINI_MODELS, "about ten minutes on two cores"),
        "full": build_speed_scale(
            FULL_MODELS, "not measured yet; some seconds a cell on a large GPU"
        ),
    },
    claims=(
        *(
            Claim(
                f"{vit} is about as fast as {resnet}, mean of all sizes",
                "ViTs have speed comparable to similar ResNets (Figure 12, Appendix D.5)",
                (make_speed_label(vit, resnet),),
                (),
                1.0,  # comparable: within a factor of two
            )
            for vit, resnet in MODEL_PAIRS
        ),
        Claim(
            "ViT's time grows about as the pixels: bi-quadratic scaling is barely visible",
            "barely visible (Figure 12, Appendix D.5)",
            (VIT_POWER_EXCESS,),
            (),
            0.5,  # a quarter of the way from a power of 2 to one of 4
        ),
        Claim(
            "ViT's speed falls with the size of the image about as ResNet's does",
            "barely visible bi-quadratic scaling, speeds comparable (Figure 12, Appendix D.5)",
            (VIT_POWER,),
            (RESNET_POWER,),
            0.5,
        ),
        *(
            Claim(
                f"{vit} fits more images into memory than {resnet}, at 224 px",
                "ViT is more memory-efficient (Figure 12, Appendix D.5)",
                (make_batch_label(vit, resnet),),
                (),
            )
            for vit, resnet in MODEL_PAIRS
        ),
    ),
    measure_trial=measure_trial,
    draw_figures=draw_study_figures,
    timed=True,
    compute_values=compute_values,
    units={
        **{
            of(*pair): DisplayUnit("log2", "doublings")
            for of in (make_speed_label, make_batch_label)
            for pair in MODEL_PAIRS
        },
        **dict.fromkeys(
            (VIT_POWER, RESNET_POWER, VIT_POWER_EXCESS), DisplayUnit("", "in the power", 1.0, 2)
        ),
    },
    build_tables=build_tables,
)
