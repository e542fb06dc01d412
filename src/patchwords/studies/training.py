"""A cell that is a training: it runs, goes on where it was killed, and is judged once.

A cell is measured by its own validation images, if it has any; only what a study chooses is judged
by the test images, or by a few-shot classifier on another data set (Sec. 4.1).
"""

from __future__ import annotations

import shutil
from typing import Any

from rich.console import Console

from patchwords.data.examples import VALIDATION
from patchwords.errors import Diverged
from patchwords.evaluate.fewshot import measure_fewshot
from patchwords.evaluate.held_out import measure
from patchwords.evaluate.pretraining import evaluator_of
from patchwords.evaluate.series import finish, or_go_on, read_evaluation
from patchwords.model.cost import FLOPS_PER_MAC, macs, parameters, training_flops
from patchwords.studies.bench import Bench
from patchwords.studies.study import ENCODER, VERB, Cell, Numbers
from patchwords.train import finetune, pretrain
from patchwords.train.config import FinetuneConfig, train_layers
from patchwords.train.job import Job
from patchwords.train.journal import read_rows
from patchwords.train.named_recipe import preset
from patchwords.train.pretrain_config import PretrainConfig
from patchwords.train.progress import Display
from patchwords.train.run_folder import RunFolder
from patchwords.train.settings import unflatten

DRAWS = (0, 1, 2)  # of a few images of each class; the mean counts


def config_of(cell: Cell, bench: Bench) -> FinetuneConfig:
    """The settings of the run. Raises ConfigError for one that training does not know."""
    blank = PretrainConfig() if cell.settings[VERB] == "pretrain" else FinetuneConfig()
    if "recipe" in cell.settings:
        blank = preset(blank, cell.settings["recipe"])
    place: dict[str, Any] = {
        "data": data_of(cell, bench),
        "output": str(bench.run(cell)),
        "seed": cell.seed,
        "device": bench.device,
        "precision": bench.precision,
    }
    if ENCODER in cell.settings:
        place["weights"] = str(bench.encoder(cell))
    settings = {name: v for name, v in cell.settings.items() if name not in (ENCODER, VERB)}
    return unflatten(blank, {**settings, **place})


def data_of(cell: Cell, bench: Bench) -> str | None:
    """What a training learns from."""
    return bench.transfer if bench.scale.tuned and not cell.shared else bench.data


def train(cell: Cell, bench: Bench) -> Job:
    """The cell's run, from wherever it is to its end; what it says goes to log.txt."""
    config, folder = config_of(cell, bench), RunFolder(bench.run(cell))
    if folder.path.exists() and not folder.config.is_file():
        shutil.rmtree(folder.path)  # killed before it was a run
    with (bench.place(cell) / "log.txt").open("a", encoding="utf-8") as log:
        display = Display(Console(file=log, width=100))
        going = or_go_on(config)
        if isinstance(going, PretrainConfig):
            return pretrain.run(going, evaluator_of, display, measure_fewshot)
        return finetune.run(going, measure, display, measure_fewshot)


def measure_training(cell: Cell, bench: Bench) -> Numbers:
    """Train; -> what it took, and the validation accuracy at the end and on the way.

    A training that diverges is a result, too: its accuracy is None.
    """
    try:
        job = train(cell, bench)
    except Diverged:
        return {"validation": None, "diverged": 1.0}
    seen = job.plan.steps * job.plan.batch_size
    shape = job.start.model.config
    rows = [
        row
        for row in read_rows(job.folder.metrics)
        if row["kind"] == "evaluation" and row["split"] == VALIDATION
    ]
    return {
        **({"validation": rows[-1]["accuracy"]} if rows else {}),
        **{f"validation at {row['step'] / job.plan.steps:.4g}": row["accuracy"] for row in rows},
        "steps": job.plan.steps,
        "images": seen,
        "parameters": parameters(shape),
        "flops": flops_of(job.config, macs(shape), seen, job.plan.images),
        "seconds": job.state.seconds,
    }


def flops_of(config: FinetuneConfig, macs: int, seen: int, images: int) -> float:
    """Of a training that sees so many of its images, each as often as it comes.

    Where the head alone learns, 2 for each multiplication of a forward pass in place of 6, of every
    view that is computed; the head's own weights cost nothing beside.
    """
    if train_layers(config.recipe.train) != 0:
        return training_flops(macs, seen)
    views = config.augment.views if config.machine.frozen != "compute" else None
    computed = seen if views is None else min(seen, views * images)
    return FLOPS_PER_MAC / 3 * macs * computed


def judge_training(cell: Cell, bench: Bench) -> Numbers:
    """The model that the cell ended with, by images that nothing was chosen by."""
    if bench.scale.shots is not None:
        return judge_fewshot(cell, bench, bench.scale.shots)
    job = train(cell, bench)  # which is done, and loaded
    finish(job, None)
    evaluation = read_evaluation(job.folder)
    return {
        "accuracy": evaluation["accuracy"]["value"],
        "loss": evaluation["loss"],
        "test images": evaluation["images"],
    }


def judge_fewshot(cell: Cell, bench: Bench, shots: int) -> Numbers:
    """Few-shot linear accuracy of the frozen model on --transfer, the mean of three draws."""
    from patchwords.commands.evaluator import Images, Where
    from patchwords.commands.frozen import Cache, opened
    from patchwords.evaluate.fewshot_table import draw, fewshot_table, freeze_drawn

    assert bench.transfer is not None, "asked for before the first cell"
    where, cache = Where(bench.device), Cache(str(bench.shared / "features"))
    model = str(RunFolder(bench.run(cell)).model)
    with opened(model, bench.transfer, where, Images(), cache, seed=0) as found:
        drawn = draw(found.pair, (shots,), DRAWS)
        frozen, draws = freeze_drawn(found.ask, found.pair, drawn, 0.01, found.whole_is_kept)
    [row] = fewshot_table(frozen, draws)["table"]
    return {"accuracy": row["mean"], "test images": len(frozen.test.labels)}
