"""results.json: everything that a study found, from which its page and its figure are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from patchwords.device import choose_device
from patchwords.evaluation.statistics import compute_seed_statistics
from patchwords.studies.evidence import collect_answers, collect_evidence
from patchwords.studies.grid import StudyManifest, choose_labelled_trials, collect_trial_metrics
from patchwords.studies.inference import (
    LEVEL,
    Estimate,
    Evidence,
    adjust_by_holm,
    compute_direction_ps,
    compute_equivalence_ps,
    estimate_difference,
)
from patchwords.studies.study import (
    Claim,
    Contrast,
    DisplayUnit,
    Study,
    StudyContext,
    Trial,
    TrialMetrics,
    ValuesByLabel,
)
from patchwords.version import __version__

# The verdict on a claim follows a rule that is fixed before the run; inference.py has its intervals.
#
# A claim above 0 agrees where its two-sided p is at most 5 %, a claim of equality where both of
# two one-sided tests say that the difference is within the margin. A claim with parts has the
# largest p of its whole and its parts. The p-values of all claims of a page that its scale can
# test are adjusted by Holm's method. A claim whose controls are not above zero, each by its own
# 95 % interval, was not tested.


VerdictName = Literal["agrees", "disagrees", "cannot tell at this scale", "not tested here"]
CANNOT_TELL: VerdictName = "cannot tell at this scale"
UNTESTED: VerdictName = "not tested here"


@dataclass(frozen=True)
class Difference:
    """The measured difference of a claim, of one of its parts or of a control."""

    values: tuple[float, ...]  # per seed
    diverged_seeds: tuple[int, ...]  # seeds in which a trial diverged
    statistics: Estimate | None  # None: without a seed left


@dataclass(frozen=True)
class Verdict:
    """A claim with its measured difference and verdict."""

    claim: Claim
    whole: Difference
    parts: tuple[Difference, ...]  # in the order of the claim
    controls: tuple[Difference, ...]  # in the order of the claim
    untested: str | None  # why this scale cannot test the claim
    p: float  # of the verdict, adjusted for the number of claims
    name: VerdictName


def judge_claims(
    claims: Sequence[Claim], evidence: Evidence, untested: Mapping[str, str]
) -> list[Verdict]:
    """Judge all claims of a page together, adjusted for their number."""
    drafts = [judge_claim(claim, evidence, untested.get(claim.text)) for claim in claims]
    family = [number for number, draft in enumerate(drafts) if not draft.untested]
    adjusted = adjust_by_holm([drafts[number].p for number in family])
    verdicts = list(drafts)
    for number, p in zip(family, adjusted, strict=True):
        draft = drafts[number]
        word = draft.name if p <= LEVEL or draft.name == UNTESTED else CANNOT_TELL
        verdicts[number] = replace(draft, p=p, name=word)
    return verdicts


def judge_claim(
    claim: Claim, evidence: Evidence | ValuesByLabel, untested: str | None = None
) -> Verdict:
    """Judge one claim alone, as if its page had no other."""
    known = evidence if isinstance(evidence, Evidence) else Evidence(evidence)
    whole = compute_difference(claim.more, claim.less, known)
    parts = [compute_difference(part.more, part.less, known) for part in claim.parts]
    controls = tuple(
        compute_difference(contrast.more, contrast.less, known) for contrast in claim.controls
    )
    agrees, disagrees = (
        max(ps)
        for ps in zip(*(compute_ps(part, claim.margin) for part in (whole, *parts)), strict=True)
    )
    p = min(agrees, disagrees)
    word: VerdictName = CANNOT_TELL
    if p <= LEVEL:
        word = "agrees" if agrees <= disagrees else "disagrees"
    measured = whole.statistics is not None and whole.statistics.error is not None
    if untested or (measured and not all(map(is_above_zero, controls))):
        word = UNTESTED
    return Verdict(claim, whole, tuple(parts), controls, untested, p, word)


def compute_difference(more: Sequence[str], less: Sequence[str], evidence: Evidence) -> Difference:
    """Subtract the means of two label groups, over the seeds in which no trial diverged."""
    labels, table = (*more, *less), evidence.values
    seeds = sorted(set.intersection(*(set(table[label]) for label in labels)))
    lost = tuple(s for s in seeds if any(table[label][s] is None for label in labels))
    whole = [seed for seed in seeds if seed not in lost]
    values = tuple(_mean_of_labels(more, table, s) - _mean_of_labels(less, table, s) for s in whole)
    return Difference(
        values, lost, estimate_difference(values, more, less, evidence) if values else None
    )


def compute_ps(difference: Difference, margin: float | None) -> tuple[float, float]:
    """Compute the p of "agrees" and of "disagrees"."""
    if difference.statistics is None:
        return 1.0, 1.0
    if margin is None:
        return compute_direction_ps(difference.statistics)
    return compute_equivalence_ps(difference.statistics, margin)


def is_above_zero(control: Difference) -> bool:
    """Whether the 95 % interval of a control is above zero."""
    agrees, disagrees = compute_ps(control, None)
    return agrees <= LEVEL and agrees < disagrees


def format_claim_rule(claim: Claim, unit: DisplayUnit) -> str:
    """Format the rule behind a verdict."""
    more, less = (
        " and ".join(labels)
        for labels in (_abbreviate_labels(claim.more), _abbreviate_labels(claim.less))
    )
    what = f"{more} minus {less}" if less else more
    if claim.margin is None:
        where = "is above 0"
    else:
        value = f"{unit.times * claim.margin:g}"
        difference_unit = unit.difference.removesuffix("s") if value == "1" else unit.difference
        where = f"is within {value} {difference_unit} of 0, by two one-sided tests"
    parts = ", in each part as well" if claim.parts else ""
    names = " and ".join(control.name for control in claim.controls)
    controls = f"; control: {names}, above 0" if names else ""
    return f"{what} {where}{parts}{controls}"


def _abbreviate_labels(labels: Sequence[str]) -> Sequence[str]:
    return labels if len(labels) <= 3 else (f"mean of {len(labels)} trials",)


def _mean_of_labels(labels: Sequence[str], table: ValuesByLabel, seed: int) -> float:
    if not labels:
        return 0.0
    values = [table[label][seed] for label in labels]
    return sum(value for value in values if value is not None) / len(values)


MetricsByTrial = Mapping[tuple[str, int], TrialMetrics]  # (trial, seed) -> metrics


def assemble_results(
    study: Study,
    record: StudyManifest,
    encoders: Sequence[Trial],
    trials: Sequence[Trial],
    context: StudyContext,
) -> dict[str, Any]:
    """Assemble the results of a study whose trials are all finished."""
    labels = choose_labelled_trials(study, trials, context)
    measured, judged = (
        collect_trial_metrics(trials, context, "measure"),
        collect_trial_metrics(trials, context, "judge"),
    )
    pretrained = collect_trial_metrics(encoders, context, "measure")
    whole = {key: {**numbers, **judged.get(key, {})} for key, numbers in measured.items()}
    table = compute_values_by_label(study, labels, whole, record.seeds)
    answers = collect_answers(labels, record.seeds, context)
    return {
        "study": study.name,
        "version": study.version,
        "digest": record.digest,
        "patchwords": __version__,
        "scale": record.scale,
        "title": study.title,
        "question": study.question,
        "source": study.source,
        "quantity": study.quantity,
        "data": context.data,
        "transfer": context.transfer,
        "device": choose_device(context.device).describe()["name"],
        "seeds": record.seeds,
        "notes": list(record.notes),
        # as cut by the budget; settings of single trials are not among them
        "settings": convert_tuples(
            {name: trials[0].settings[name] for name in context.scale.settings}
        ),
        "grid": {name: convert_tuples(settings) for name, settings in context.scale.grid.items()},
        "encoders": {
            name: convert_tuples(settings) for name, settings in context.scale.encoders.items()
        },
        "labels": [build_label_result(study, labels, *row) for row in table.items()],
        "answers": answers,
        "claims": build_claim_results(
            study,
            collect_evidence(study, context.scale, labels, table, whole, answers),
            context.scale.untested,
        ),
        "compute": sum_training_compute([*pretrained.values(), *measured.values()]),
        "pretrainings": [build_trial_row(trial, pretrained, context) for trial in encoders],
        "cells": [build_trial_row(trial, whole, context) for trial in trials],
    }


def compute_values_by_label(
    study: Study, labels: Mapping[str, str], whole: MetricsByTrial, seeds: int
) -> ValuesByLabel:
    """Compute the values of every label and seed from the trials."""
    table: dict[str, dict[int, float | None]] = {}
    for seed in range(seeds):
        metrics = {
            name: numbers for (name, trial_seed), numbers in whole.items() if trial_seed == seed
        }
        for label, value in study.compute_values(labels, metrics).items():
            table.setdefault(label, {})[seed] = value
    return table


def rejudge_results(study: Study, results: Mapping[str, Any]) -> dict[str, Any]:
    """Recompute labels and claims of results from their trials, by the study as it is now."""
    whole = {(row["name"], row["seed"]): row for row in results["cells"]}
    labels = {row["label"]: row["cell"] for row in results["labels"] if row["cell"]}
    if not labels:  # nothing was chosen
        labels = {name: name for name in results["grid"]}
    table = compute_values_by_label(study, labels, whole, results["seeds"])
    scale = study.scales[results["scale"]]
    evidence = collect_evidence(study, scale, labels, table, whole, results.get("answers", {}))
    return {
        **results,
        "title": study.title,
        "question": study.question,
        "source": study.source,
        "quantity": study.quantity,
        "labels": [build_label_result(study, labels, *row) for row in table.items()],
        "claims": build_claim_results(study, evidence, scale.untested),
    }


def build_claim_results(
    study: Study, evidence: Evidence, untested: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Build the rows of all claims: difference, verdict, reasons."""
    rows = []
    for judged in judge_claims(study.claims, evidence, untested):
        claim, unit = judged.claim, describe_unit(study, judged.claim)
        rows.append(
            {
                "text": claim.text,
                "paper": claim.paper,
                "rule": format_claim_rule(claim, study.unit(claim.more[0])),
                "unit": unit,
                "margin": claim.margin,
                "values": list(judged.whole.values),
                "seeds_lost": list(judged.whole.diverged_seeds),
                "difference": judged.whole.statistics and asdict(judged.whole.statistics),
                "parts": [
                    build_contrast_result(part, of_part, unit)
                    for part, of_part in zip(claim.parts, judged.parts, strict=True)
                ],
                "controls": [
                    {
                        **build_contrast_result(control, seen, describe_unit(study, control)),
                        "shown": is_above_zero(seen),
                    }
                    for control, seen in zip(claim.controls, judged.controls, strict=True)
                ],
                "untested": judged.untested,
                "p": judged.p,
                "verdict": judged.name,
            }
        )
    return rows


def build_contrast_result(
    contrast: Contrast, measured: Difference, unit: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the row of a part or a control of a claim."""
    return {
        "name": contrast.name,
        "unit": unit,
        "values": list(measured.values),
        "seeds_lost": list(measured.diverged_seeds),
        "difference": measured.statistics and asdict(measured.statistics),
    }


def describe_unit(study: Study, contrast: Claim | Contrast) -> dict[str, Any]:
    return asdict(study.unit(contrast.more[0]))


def build_label_result(
    study: Study, labels: Mapping[str, str], label: str, values: Mapping[int, float | None]
) -> dict[str, Any]:
    """Build the row of a label: its trial, values and unit."""
    about = summarise_label(label, values, study.paper.get(label))
    return {"cell": labels.get(label), **about, "unit": asdict(study.unit(label))}


def build_trial_row(trial: Trial, metrics: MetricsByTrial, context: StudyContext) -> dict[str, Any]:
    """Build the row of a trial: metrics and file paths."""
    place = context.trial_folder(trial).relative_to(context.folder)
    about = {"name": trial.name, "seed": trial.seed, "folder": str(place)}
    return {**about, **metrics[trial.name, trial.seed]}


def summarise_label(
    label: str, values: Mapping[int, float | None], paper: float | None
) -> dict[str, Any]:
    """Summarise a label over the seeds that did not diverge, next to the paper's number."""
    alive = [value for value in values.values() if value is not None]
    over = asdict(compute_seed_statistics(alive)) if alive else None
    return {
        "label": label,
        "values": list(values.values()),
        "paper": paper,
        "over_seeds": over,
    }


def sum_training_compute(measured: Sequence[TrialMetrics]) -> dict[str, float]:
    """Sum FLOPs and seconds of all trainings; diverged ones are not included."""
    trained = [metrics for metrics in measured if "flops" in metrics or metrics.get("diverged")]
    whole = [numbers for numbers in trained if not numbers.get("diverged")]
    total = {
        name: math.fsum(numbers.get(name) or 0.0 for numbers in whole)
        for name in ("flops", "seconds", "images")
    }
    return {**total, "trainings": len(trained), "diverged": len(trained) - len(whole)}


def convert_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}
