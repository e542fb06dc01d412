"""Every mistake a user can make with finetune: one line, exit 2, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from stage import COUNTS, TINY, call, done, draw, make_photos, rows, snapshot, start

Words = list[object]


def refused(*words: object, watch: Path) -> str:
    """The line that a command is refused with; nothing below `watch` may change."""
    before = snapshot(watch)
    error = call(*words).error
    assert snapshot(watch) == before
    assert not list(Path().iterdir())  # nor may anything be left where the command was given
    return error


def no_such_path(at: Path) -> Words:
    make_photos(at / "photos")
    return [at / "fotos"]


def empty_folder(at: Path) -> Words:
    (at / "photos").mkdir()
    return [at / "photos"]


def empty_class_folders(at: Path) -> Words:
    (at / "photos" / "disc").mkdir(parents=True)
    (at / "photos" / "square").mkdir()
    return [at / "photos"]


def one_class(at: Path) -> Words:
    return [make_photos(at / "photos", {"disc": 5})]


def a_class_with_one_image(at: Path) -> Words:
    return [make_photos(at / "photos", {"disc": 5, "square": 1, "stripe": 5})]


def images_in_no_class(at: Path) -> Words:
    make_photos(at / "photos", {"disc": 5})
    return [at / "photos" / "disc"]


def no_images_but_others(at: Path) -> Words:
    (at / "photos" / "disc").mkdir(parents=True)
    (at / "photos" / "disc" / "notes.txt").write_text("round")
    return [at / "photos"]


def csv_with_missing_files(at: Path) -> Words:
    make_photos(at / "a", {"disc": 2})
    (at / "x.csv").write_text("path,label\na/disc/00.png,disc\na/disc/77.png,disc\n")
    return [at / "x.csv"]


def csv_with_an_unknown_column(at: Path) -> Words:
    (at / "x.csv").write_text("path,kind\na.png,disc\n")
    return [at / "x.csv", "--label-column", "kinds"]


def csv_without_a_label_column(at: Path) -> Words:
    (at / "x.csv").write_text("path,kind\na.png,disc\n")
    return [at / "x.csv"]


def parquet_without_images(at: Path) -> Words:
    table = pyarrow.table({"text": ["a", "b"], "label": ["x", "y"]})
    pyarrow.parquet.write_table(table, at / "x.parquet")
    return [at / "x.parquet"]


def no_parquet_at_all(at: Path) -> Words:
    (at / "x.parquet").write_bytes(b"PAR2 and so on")
    return [at / "x.parquet"]


def a_label_that_train_lacks(at: Path) -> Words:
    make_photos(at / "d" / "train", {"disc": 5, "square": 5})
    make_photos(at / "d" / "val", {"disc": 2, "stripe": 2}, first=10)
    return [at / "d"]


def size_that_patches_do_not_divide(at: Path) -> Words:
    return [make_photos(at / "photos"), "--image-size", 18]


def three_sizes(at: Path) -> Words:
    return [make_photos(at / "photos"), "--image-size", 16, 16, 16]


def classes_that_data_lack(at: Path) -> Words:
    return [make_photos(at / "photos"), "--classes", "disc", "squares"]


def taken_output(at: Path) -> Words:
    (at / "taken").mkdir()
    (at / "taken" / "mine.txt").write_text("mine")
    return [make_photos(at / "photos"), "--output", at / "taken"]


def output_below_a_file(at: Path) -> Words:
    (at / "file").write_text("I am no folder")
    return [make_photos(at / "photos"), "--output", at / "file" / "run"]


def output_that_is_a_file(at: Path) -> Words:
    (at / "file").write_text("I am no folder")
    return [make_photos(at / "photos"), "--output", at / "file", "--overwrite"]


def unknown_key_in_a_config(at: Path) -> Words:
    (at / "c.yaml").write_text("lr: 0.1\nwarmup_step: 3\n")
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def config_that_is_not_yaml(at: Path) -> Words:
    (at / "c.yaml").write_text("lr: [0.1\n")
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def config_of_wrong_types(at: Path) -> Words:
    (at / "c.yaml").write_text("lr: fast\n")
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def config_of_no_settings(at: Path) -> Words:
    (at / "c.yaml").write_text("- lr\n- 0.1\n")
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def config_with_a_table_for_a_number(at: Path) -> Words:
    (at / "c.yaml").write_text("recipe:\n  lr: 0.1\n")
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def config_that_is_not_there(at: Path) -> Words:
    return [make_photos(at / "photos"), "--config", at / "c.yaml"]


def weights_that_are_not_there(at: Path) -> Words:
    return [make_photos(at / "photos"), "--weights", at / "run"]


def weights_that_are_no_model(at: Path) -> Words:
    photos = make_photos(at / "photos")
    return [photos, "--weights", photos]


def damaged_weights(at: Path) -> Words:
    model = Path(shutil.copytree(FINISHED[0] / "model", at / "model"))
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    return [make_photos(at / "photos"), "--weights", model]


def weights_of_another_model(at: Path) -> Words:
    return [make_photos(at / "photos"), "--weights", FINISHED[0], "--model", "ViT-S/16"]


def nothing_to_resume(at: Path) -> Words:
    return [make_photos(at / "photos"), "--output", at / "run", "--resume"]


def nothing_held_out(at: Path) -> Words:
    return [make_photos(at / "photos"), "--test", 0, "--validation", 0]


def nothing_held_out_of_copies(at: Path) -> Words:
    for name in ("disc", "square"):
        (at / "photos" / name).mkdir(parents=True)
        for number in range(3):
            draw(name, 0).save(at / "photos" / name / f"{number}.png")
    return [at / "photos"]


FINISHED: list[Path] = []  # the session's run, for the cases above


@pytest.fixture(autouse=True)
def finished(run: Path) -> None:
    FINISHED[:] = [run]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (no_such_path, "fotos: no such file or folder; did you mean 'photos'?"),
        (empty_folder, "photos: the folder is empty; put one folder of images per class in it"),
        (empty_class_folders, "photos: no images in it, only empty folders"),
        (one_class, "one class only, 'disc'; a classifier needs two classes or more"),
        (a_class_with_one_image, "square/00.png"),
        (images_in_no_class, "lie in no class: put them in one folder per class"),
        (no_images_but_others, "photos: no images in it; found .txt (1)"),
        (csv_with_missing_files, "x.csv: row 3 names 'a/disc/77.png', which cannot be found"),
        (csv_with_an_unknown_column, "x.csv: no column 'kinds'; did you mean 'kind'?"),
        (csv_without_a_label_column, "its columns are path, kind: choose with --label-column"),
        (parquet_without_images, "no image column; its columns are text, label"),
        (no_parquet_at_all, "x.parquet: not a parquet file, or a damaged one"),
        (a_label_that_train_lacks, "class 'stripe' is in validation (val/stripe/10.png) but not"),
        (size_that_patches_do_not_divide, "18"),
        (three_sizes, "must be one number or (height, width)"),
        (classes_that_data_lack, "no class 'squares'; did you mean 'square'?"),
        (taken_output, "taken exists: go on with it by --resume, replace it by --overwrite"),
        (output_below_a_file, "file"),
        (output_that_is_a_file, "file"),
        (unknown_key_in_a_config, "c.yaml: unknown setting 'warmup_step'; did you mean 'warmup_st"),
        (config_that_is_not_yaml, "c.yaml is not YAML: "),
        (config_of_wrong_types, "c.yaml: --lr 'fast': expected a number"),
        (config_of_no_settings, "c.yaml must hold settings as 'name: value' lines"),
        (config_with_a_table_for_a_number, "c.yaml: recipe holds a table, where a setting has"),
        (config_that_is_not_there, "c.yaml: No such file or directory"),
        (weights_that_are_not_there, "no weights at "),
        (weights_that_are_no_model, "is no model folder"),
        (damaged_weights, "model.safetensors is damaged"),
        (weights_of_another_model, "weights of ViT-mu/4, but ViT-S/16 was asked for"),
        (nothing_to_resume, "holds no run to go on with"),
        (nothing_held_out, "no image is held out to measure the model on"),
        (nothing_held_out_of_copies, "no image is held out to measure the model on"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_mistake_is_one_line_and_changes_nothing(
    case: Callable[[Path], Words], said: str, tmp_path: Path
) -> None:
    words = case(tmp_path)
    tiny = list(TINY)
    if "--image-size" in words:
        tiny = [*tiny[:2], *tiny[4:]]
    if "--weights" in words:
        tiny = tiny[4:]
    if "--output" not in words:
        words += ["--output", tmp_path / "run"]
    assert said in refused("finetune", *words, *tiny, watch=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there(photos: Path, tmp_path: Path) -> None:
    words = ("--device", "cuda", "--output", tmp_path / "run")
    assert "no usable GPU" in refused("finetune", photos, *words, watch=tmp_path)


def test_a_checkpoint_of_another_model_is_refused_by_name(own_run: Path, photos: Path) -> None:
    """The settings say the same, but what lies in checkpoints/ is of something else."""
    newest = sorted((own_run / "checkpoints").iterdir())[-1]
    config = own_run / "config.yaml"
    config.write_text(config.read_text().replace("ViT-mu/4", "ViT-Ti/4"))
    before = snapshot(own_run)
    error = call("finetune", photos, "--output", own_run, "--resume").error
    assert "is of another model: it differs in width, depth, heads, mlp_width" in error
    assert snapshot(own_run) == before
    assert newest.exists()


def test_data_that_changed_is_refused_on_resume(
    own_run: Path, photos: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(photos, tmp_path / "photos"))
    config = own_run / "config.yaml"
    config.write_text(config.read_text().replace(str(photos), str(other)))
    draw("disc", 99).save(other / "disc" / "99.png")
    before = snapshot(own_run)
    error = call("finetune", other, "--output", own_run, "--resume").error
    assert "is not as it was when the run began" in error
    assert snapshot(own_run) == before


def spoil(folder: Path, count: int) -> list[str]:
    """Make the first images of a folder unreadable, in the middle or altogether."""
    chosen = sorted(folder.iterdir())[:count]
    for number, path in enumerate(chosen):
        path.write_bytes(path.read_bytes()[:60] if number % 2 else b"no image at all")
    return [f"{path.parent.name}/{path.name}" for path in chosen]


def test_more_than_one_percent_unreadable_stops(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    spoil(photos / "disc", 4)
    before = snapshot(photos)
    words = ("finetune", photos, *TINY, "--steps", 9, "--output", tmp_path / "run")
    error = call(*words).error
    assert "training images cannot be read, more than --max-bad 1.00%; the first: disc/" in error
    assert snapshot(photos) == before
    done(*words, "--resume", "--max-bad", 0.5)  # a refused run can be gone on with


def test_one_unreadable_image_of_a_few_stops_no_run(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    spoil(photos / "disc", 1)
    done("finetune", photos, *TINY, "--steps", 12, "--output", tmp_path / "run")


def test_a_batch_is_never_larger_than_the_training_split(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    words = list(TINY)
    words[words.index("--batch-size") + 1] = "1000000"
    out = done("finetune", photos, *words, "--steps", 1, "--output", tmp_path / "run")
    assert "--batch-size 1,000,000 is more than there are training images: batches of 29" in out


def test_a_few_unreadable_are_named_and_the_run_goes_on(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    bad = spoil(photos / "disc", 4)
    run = tmp_path / "run"
    # Enough steps to meet every training image.
    words = ("--steps", 9, "--max-bad", 0.5, "--output", run)
    done("finetune", photos, *TINY, *words)
    data, evaluation = (run / "data.json").read_text(), (run / "evaluation.json").read_text()
    page, splits = (run / "report.html").read_text(), (run / "splits.csv").read_text()
    for path in bad:
        assert path in splits
        held_out = f"{path},disc,test" in splits
        validation = f"{path},disc,validation" in splits
        assert (path in data) == (not held_out and not validation)
        assert (path in evaluation) == held_out
        assert path in page or validation


def test_less_than_one_percent_is_the_default(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", dict.fromkeys(COUNTS, 60))
    bad = spoil(photos / "disc", 1)
    done("finetune", photos, *TINY, "--steps", 20, "--output", tmp_path / "run")
    told = (tmp_path / "run" / "data.json").read_text()
    assert bad[0] in told or "train" not in bad[0]


@pytest.mark.parametrize("lr", ["1e30", "1e39"])
def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_finite(
    lr: str, photos: Path, tmp_path: Path
) -> None:
    """1e39 is beyond float32: the loss is fine for a step more than the weights are."""
    run = tmp_path / "run"
    words = ("--steps", 30, "--lr", lr, "--warmup-steps", 5, "--save-every", 1, "--output", run)
    error = call("finetune", photos, *TINY, *words).error
    assert "step" in error
    assert "the last finite checkpoint is kept" in error
    assert rows(run, "train")
    for path in (run / "checkpoints").glob("*/state.pt"):
        state = torch.load(path, weights_only=True)
        assert all(value.isfinite().all() for value in state["model"].values())
    assert not (run / "model").exists()


def test_the_program_itself_prints_one_line_and_no_traceback(photos: Path) -> None:
    process = start("finetune", photos, "--lr", "x")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "patchwords: --lr 'x': expected a number (see patchwords finetune --help)\n"
