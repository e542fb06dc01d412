"""Page of `flowers`: scores by class, the arithmetic of the notes, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from patchwords.evaluation.statistics import compute_seed_statistics
from patchwords.studies.page_blocks import PageBlock, PageHeading, PageTable, PageText

if TYPE_CHECKING:
    from patchwords.report.figures.plots import Curve


# The notes' printed numbers on flower_photos, and the photo counts that they allow.


VIT, RESNET = "ViT", "ResNet"
# Recipes: the notes' with the head only, with all weights, and the one of this program.
NOTES_HEAD_ONLY, NOTES_ALL_WEIGHTS, OUR_RECIPE = (
    "notes, head alone",
    "notes, all weights",
    "our recipe",
)
HELD_OUT, ALL_PHOTOS = "held out", "all photos"
COLUMNS = (HELD_OUT, ALL_PHOTOS)

PHOTOS_BY_CLASS = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}


class ClassScores(NamedTuple):
    """Precision, recall and F1 of one class."""

    precision: float
    recall: float
    f1: float


NOTES_SCORES = {
    VIT: {
        "daisy": ClassScores(0.966, 0.973, 0.969),
        "dandelion": ClassScores(0.963, 0.976, 0.969),
        "roses": ClassScores(0.903, 0.939, 0.920),
        "sunflowers": ClassScores(0.979, 0.979, 0.979),
        "tulips": ClassScores(0.966, 0.914, 0.939),
    },
    RESNET: {
        "daisy": ClassScores(0.962, 0.643, 0.770),
        "dandelion": ClassScores(0.493, 0.988, 0.657),
        "roses": ClassScores(0.941, 0.501, 0.654),
        "sunflowers": ClassScores(0.978, 0.441, 0.608),
        "tulips": ClassScores(0.767, 0.758, 0.763),
    },
}
NOTES_ACCURACY = {VIT: 0.956, RESNET: 0.689}
# Predictions "dandelion" of that ResNet: with 887 right ones the precision allows 1,798 to 1,801, and
# only with the last do the predictions of all classes add up to the photos.
NOTES_DANDELION_ANSWERS = 1_801


def count_held_out_photos(name: str) -> int:
    """Count a class's photos in the fifth that the notes' script holds out: int(n / 5)."""
    return PHOTOS_BY_CLASS[name] // 5


def find_possible_correct_counts(recall: float, photos: int) -> list[int]:
    """Find how many of N photos can be right for a recall that is printed like this.

    >>> find_possible_correct_counts(0.973, 126), find_possible_correct_counts(0.973, 633)
    ([], [616])
    """
    return [count for count in range(photos + 1) if abs(count / photos - recall) <= 0.0005]


StudyResults = Mapping[str, Any]
SeedValues = list[float]


def collect_seed_values(results: StudyResults, trial: str, number: str) -> SeedValues:
    """Collect a metric of a trial over the seeds that did not diverge."""
    rows = (row for row in results["cells"] if row["name"] == trial)
    return [row[number] for row in rows if row.get(number) is not None]


def build_tables(results: StudyResults) -> list[PageBlock]:
    """Build the tables, those of held-out photos first."""
    pieces: list[PageBlock] = [PageHeading("Class by class"), PageText(CLASS_TABLE_NOTE)]
    for trial in results["grid"]:
        pieces += build_class_table(results, trial)
    for model in (VIT, RESNET):
        pieces += build_confusion_table(results, f"{model}, {NOTES_ALL_WEIGHTS}")
    pieces += [
        PageHeading("What the notes' tables are of"),
        PageText(NOT_HELD_OUT_NOTE),
        build_recall_check_table(),
    ]
    pieces += [
        PageText(NO_BASELINE_NOTE),
        PageHeading("What is different here"),
        PageText(DIFFERENCES_NOTE),
    ]
    return [*pieces, PageText(MINI_SCALE_NOTE)] if results["scale"] == "mini" else pieces


CLASS_TABLE_NOTE = (
    "Precision, recall and F1 in per cent: of the photos held out, ± the standard deviation of a "
    "seed; in one column those of all photos; and in another what the notes print, which is of all "
    "photos. Below: what the photos held out were taken for."
)
NOT_HELD_OUT_NOTE = (
    "The notes set a fifth of the photos apart for validation, and give precision, recall and F1 "
    "of each class. A recall is a whole number of a class's photos over all of them. Of the fifth, "
    "no whole number prints as the notes' recalls do, with one exception; of all photos one number "
    "does for each of the ten, and with these the accuracies come out, too: 3,508 of 3,670 are "
    "0.956, and 2,529 are 0.689. So both tables count the photos that the models were trained on, "
    "2,939 of them. They say how well these were learned by heart, and cannot be compared with any "
    "accuracy that was held out."
)
NO_BASELINE_NOTE = (
    f"By the same arithmetic the notes' ResNet answers 'dandelion' for {NOTES_DANDELION_ANSWERS:,} of the 3,670 "
    "photos, where 898 are dandelions, and recognises 44 to 76 % of each other class, "
    "mostly on photos that it was trained on. Something in its training went wrong: it is no baseline, and "
    "the distance to it is no evidence for ViT. Here the ResNet is pre-trained on the same images "
    "as the ViT, and then trained by the same recipes."
)
DIFFERENCES_NOTE = (
    "The notes' recipe is what they state, 200 epochs in batches of 256 at a rate of 0.001, and "
    "for the rest the script that they follow. The rate falls after every step and to 0, in "
    "the script after every epoch and to a hundredth: 1 % less in sum. A tenth of the training "
    "photos (294) only draws the curves: 2,642 are learned from in place of 2,939. Each seed holds "
    "other photos out. The head starts from zeros. Evaluation is the script's: the short side at "
    "256/224 of the image size, the centre cut out. Our recipe is what `patchwords finetune` "
    "chooses for this many photos, from Table 4: 20 epochs in batches of 512 at 0.01."
)
MINI_SCALE_NOTE = (
    "This is a miniature. In place of ViT-B/16 and ImageNet-21k at 224 pixels there are a ViT of "
    "469 thousand parameters and the ResNet BiT-R14x1 of 8 million, at one cost (32 and 30 "
    "million multiplications an image) and 32 pixels, pre-trained on 75,000 images of CIFAR-10 in "
    "the same order. With the head alone all 200 epochs were trained, on ten fixed views of each "
    "photo in turn, in place of a new one in every epoch. With all weights there are 25 epochs in "
    "place of 200, at eight times the rate: the sum of the rates and the shape of the schedule are "
    "the notes', but each photo is seen an eighth as often, so less is learned by heart. "
    "Accuracies are those of such models: only their differences, and the distance between the two "
    "columns, bear on the notes."
)


def build_class_table(results: StudyResults, trial: str) -> list[PageBlock]:
    """Build the table of one trial; none if all its seeds diverged."""
    if not collect_seed_values(results, trial, "accuracy"):
        return []
    model = trial.partition(",")[0]
    printed = NOTES_SCORES[model] if not trial.endswith(OUR_RECIPE) else {}
    said = (f"{HELD_OUT}: {what.replace('f1', 'F1')}" for what in CLASS_METRICS)
    head = (trial, *said, f"{ALL_PHOTOS}: P, R, F1")
    rows = []
    for name in PHOTOS_BY_CLASS:
        ours = [
            format_with_spread(collect_seed_values(results, trial, f"{HELD_OUT} {what}, {name}"))
            for what in CLASS_METRICS
        ]
        every = [
            collect_seed_values(results, trial, f"{ALL_PHOTOS} {what}, {name}")
            for what in CLASS_METRICS
        ]
        rows.append(
            (
                name,
                *ours,
                format_percentages(map(mean_or_none, every)),
                format_percentages(printed.get(name, ())),
            )
        )
    overall = format_with_spread(collect_seed_values(results, trial, "accuracy"))
    theirs = format_percentages((NOTES_ACCURACY[model],) if printed else ())
    rows.append(
        (
            "accuracy",
            overall,
            "",
            "",
            format_percentages([mean_or_none(collect_seed_values(results, trial, ALL_PHOTOS))]),
            theirs,
        )
    )
    if not printed:
        return [PageTable(head, [row[:-1] for row in rows])]
    return [PageTable((*head, "the notes: P, R, F1"), rows)]


CLASS_METRICS = ("precision", "recall", "f1")


def format_with_spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    over = compute_seed_statistics([100 * value for value in values])
    return f"{over.mean:.1f}" + ("" if over.std is None else f" ± {over.std:.1f}")


def mean_or_none(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def format_percentages(values: Any) -> str:
    """Format shares as per cent, in a row."""
    return "  ".join("-" if value is None else f"{100 * value:.1f}" for value in values)


def build_confusion_table(results: StudyResults, trial: str) -> list[PageBlock]:
    """Build the confusion of held-out photos, summed over seeds."""
    counts = {
        name: [
            round(
                sum(collect_seed_values(results, trial, f"{HELD_OUT}, {name} taken for {answer}"))
            )
            for answer in PHOTOS_BY_CLASS
        ]
        for name in PHOTOS_BY_CLASS
    }
    if not any(map(sum, counts.values())):
        return []
    head = (f"{trial}: held out, all seeds", *(f"taken for {name}" for name in PHOTOS_BY_CLASS))
    return [PageTable(head, [(name, *map(str, row)) for name, row in counts.items()])]


def build_recall_check_table() -> PageTable:
    """Build the table of photo counts that the printed recalls allow."""

    def said(recall: float, photos: int) -> str:
        return ", ".join(map(str, find_possible_correct_counts(recall, photos))) or "no number"

    head = ("class", "a fifth", "all photos")
    of_model = [
        (f"{model}: recall", "right, of the fifth", "right, of all") for model in (VIT, RESNET)
    ]
    rows = []
    for name, photos in PHOTOS_BY_CLASS.items():
        row = [name, str(count_held_out_photos(name)), str(photos)]
        for model in (VIT, RESNET):
            recall = NOTES_SCORES[model][name].recall
            row += [
                f"{recall:.3f}",
                said(recall, count_held_out_photos(name)),
                said(recall, photos),
            ]
        rows.append(row)
    return PageTable((*head, *of_model[0], *of_model[1]), rows)


def draw_study_figures(results: StudyResults) -> dict[str, bytes]:
    """Draw the training losses, and F1 of each class."""
    return {**draw_flowers_losses(results), **draw_flowers_f1(results)}


def draw_flowers_losses(results: StudyResults) -> dict[str, bytes]:
    """Draw the losses, a panel per recipe."""
    from patchwords.report.figures.plots import Panel, draw_panels

    panels = []
    for recipe in (NOTES_HEAD_ONLY, NOTES_ALL_WEIGHTS, OUR_RECIPE):
        lines = [
            build_loss_curve(results, f"{model}, {recipe}", part, f"{model}, {part}")
            for model in (VIT, RESNET)
            for part in ("training", "validation")
        ]
        shown = [line for line in lines if line.x]
        panels.append(Panel(recipe, "share of the training", "loss", shown))
    caption = (
        "Loss on the photos of the training, as they are augmented, mean since the point before; "
        "and on the tenth of them that is set apart for these curves (validation). Mean over "
        "seeds; bands reach from the lowest to the highest."
    )
    return draw_panels(panels, caption, "flowers-loss")


def build_loss_curve(results: StudyResults, trial: str, part: str, label: str) -> Curve:
    from patchwords.report.figures.plots import Curve

    start = f"{part} loss at "
    row: Mapping[str, Any] = next(
        (one for one in results["cells"] if one["name"] == trial and not one.get("diverged")), {}
    )
    names = [name for name in row if name.startswith(start)]
    values = [collect_seed_values(results, trial, name) for name in names]
    return Curve(
        label,
        [float(name.removeprefix(start)) for name in names],
        [sum(some) / len(some) for some in values],
        [min(some) for some in values],
        [max(some) for some in values],
    )


def draw_flowers_f1(results: StudyResults) -> dict[str, bytes]:
    """Draw both models by the notes' recipe with all weights, next to the notes."""
    from patchwords.report.figures.plots import DotSeries, draw_dot_plot

    cells = [
        model
        for model in (VIT, RESNET)
        if collect_seed_values(results, f"{model}, {NOTES_ALL_WEIGHTS}", "accuracy")
    ]
    if not cells:
        return {}
    places = [(model, name) for model in cells for name in PHOTOS_BY_CLASS]

    def ours(column: str) -> list[SeedValues]:
        return [
            [
                100 * v
                for v in collect_seed_values(
                    results, f"{model}, {NOTES_ALL_WEIGHTS}", f"{column} f1, {name}"
                )
            ]
            for model, name in places
        ]

    first, second = map(ours, COLUMNS)
    series = [
        DotSeries(
            f"here, {HELD_OUT}",
            [sum(values) / len(values) for values in first],
            [min(values) for values in first],
            [max(values) for values in first],
        ),
        DotSeries(f"here, {ALL_PHOTOS}", [sum(values) / len(values) for values in second]),
        DotSeries(
            f"the notes, {ALL_PHOTOS}",
            [100 * NOTES_SCORES[model][name].f1 for model, name in places],
        ),
    ]
    caption = (
        f"F1 by class, {NOTES_ALL_WEIGHTS}, mean over seeds; lines reach from the lowest to the highest. The "
        "notes' models are ViT-B/16 and a ResNet at 224 pixels."
    )
    names = [f"{model}: {name}" for model, name in places]
    return draw_dot_plot(names, series, "F1, %", caption, "flowers-f1")
