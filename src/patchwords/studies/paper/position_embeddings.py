"""Table 8: kinds of position embedding, and where they are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchwords.studies.paper.analysis import (
    build_gap_dots,
    compute_label_gaps,
    format_paired_seeds,
)
from patchwords.studies.paper.setups import CIFAR10, IMAGENET, JFT, SMALL_VIT_SETTINGS
from patchwords.studies.study import Claim, Contrast, Scale, Study
from patchwords.studies.training import evaluate_on_test, train_and_measure

STEM, EVERY_LAYER, EVERY_LAYER_SHARED = "stem", "every layer", "every layer, shared"
GRID: dict[str, dict[str, Any]] = {
    f"none, {STEM}": {"position": "none"},
    f"1-D, {STEM}": {"position": "1d"},
    f"1-D, {EVERY_LAYER}": {"position": "1d", "position_at": "every"},
    f"1-D, {EVERY_LAYER_SHARED}": {"position": "1d", "position_at": "shared"},
    f"2-D, {STEM}": {"position": "2d"},
    f"2-D, {EVERY_LAYER}": {"position": "2d", "position_at": "every"},
    f"2-D, {EVERY_LAYER_SHARED}": {"position": "2d", "position_at": "shared"},
    f"relative, {STEM}": {"position": "relative"},
}
PAPER = {  # Table 8: 5-shot linear accuracy on ImageNet
    f"none, {STEM}": 0.61382,
    f"1-D, {STEM}": 0.64206,
    f"1-D, {EVERY_LAYER}": 0.63964,
    f"1-D, {EVERY_LAYER_SHARED}": 0.64292,
    f"2-D, {STEM}": 0.64001,
    f"2-D, {EVERY_LAYER}": 0.64046,
    f"2-D, {EVERY_LAYER_SHARED}": 0.64022,
    f"relative, {STEM}": 0.64032,
}
# A third of the gain from positions in Table 8 (2.8 points); its variants differ by 0.3 at most.
MARGIN = 0.01


def above_none(*names: str) -> tuple[Contrast, ...]:
    """Make a control: these positions beat no positions."""
    return (Contrast(f"{' and '.join(names)}, less none", names, (f"none, {STEM}",)),)


WITH_POSITIONS = tuple(name for name in GRID if not name.startswith("none"))
CLAIMS = (
    Claim(
        "Position embeddings beat none, in the mean of seven ways",
        "+2.7 points, mean of the seven ways (Table 8)",
        WITH_POSITIONS,
        (f"none, {STEM}",),
    ),
    Claim(
        "2-D is no better and no worse than 1-D",
        "-0.2 points (Table 8)",
        (f"2-D, {STEM}",),
        (f"1-D, {STEM}",),
        MARGIN,
        above_none(f"2-D, {STEM}"),
    ),
    Claim(
        "Relative is no better and no worse than 1-D",
        "-0.2 points (Table 8)",
        (f"relative, {STEM}",),
        (f"1-D, {STEM}",),
        MARGIN,
        above_none(f"relative, {STEM}"),
    ),
    Claim(
        "Adding positions at every layer is as good as at the stem",
        "-0.1 points, 1-D and 2-D (Table 8)",
        (f"1-D, {EVERY_LAYER}", f"2-D, {EVERY_LAYER}"),
        (f"1-D, {STEM}", f"2-D, {STEM}"),
        MARGIN,
        above_none(f"1-D, {EVERY_LAYER}", f"2-D, {EVERY_LAYER}"),
    ),
    Claim(
        "Sharing them between layers is as good as the stem alone",
        "+0.1 points, 1-D and 2-D (Table 8)",
        (f"1-D, {EVERY_LAYER_SHARED}", f"2-D, {EVERY_LAYER_SHARED}"),
        (f"1-D, {STEM}", f"2-D, {STEM}"),
        MARGIN,
        above_none(f"1-D, {EVERY_LAYER_SHARED}", f"2-D, {EVERY_LAYER_SHARED}"),
    ),
)

MINI = Scale(
    data=CIFAR10,
    verb="finetune",
    # Nothing is chosen, so no validation images are held out.
    settings={**SMALL_VIT_SETTINGS, "lr": 1e-3, "validation": 0.0, "save_every": 500},
    grid=GRID,
    seeds=3,
    time="about 25 minutes on two cores",
)
FULL = Scale(
    data=JFT,
    verb="pretrain",
    settings={"recipe": "vit-b16-jft"},
    grid=GRID,
    seeds=1,
    time="by --plan",
    shots=5,
    transfer=IMAGENET,
)


def draw_study_figures(results: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw the gap of every trial of Table 8 to 1-D at the stem, paired by seed."""
    from patchwords.report.figures.plots import DotSeries, draw_dot_plot

    usual = f"1-D, {STEM}"
    found = compute_label_gaps(results, list(GRID), usual)
    caption = (
        f"Table 8 as differences. Ours: {results['quantity']}, mean over "
        f"{format_paired_seeds(results)}. Paper: ViT-B/16, 5-shot linear accuracy on ImageNet, one "
        "run."
    )
    paper = DotSeries("paper", [100 * (PAPER[name] - PAPER[usual]) for name in found])
    series = [build_gap_dots(found), paper]
    across = "points above 1-D at the stem"
    return draw_dot_plot(list(found), series, across, caption, "position-embeddings")


STUDY = Study(
    name="position-embeddings",
    version=1,
    title="Position embeddings",
    question="Does it matter how a ViT is told where its patches are, or only that it is told?",
    source="Table 8, Appendix D.4",
    quantity="accuracy on test images, per cent",
    note=(
        "Table 8 gives one number for each cell and no spread. The two are not to be compared in "
        "height, only in what separates their cells. Relative embeddings begin small, as all "
        "others do (normal, standard deviation 0.02), and the class token has no place among them: "
        "a short training may leave them unused."
    ),
    paper=PAPER,
    paper_quantity="ViT-B/16, 5-shot linear accuracy on ImageNet, per cent",
    scales={"mini": MINI, "full": FULL},
    claims=CLAIMS,
    measure_trial=train_and_measure,
    evaluate_trial=evaluate_on_test,
    draw_figures=draw_study_figures,
    layout=(("none", "1-D", "2-D", "relative"), (STEM, EVERY_LAYER, EVERY_LAYER_SHARED)),
)
