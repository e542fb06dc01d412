"""The page: whole, well-formed, safe to open, offline, and honest about what is missing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fabricated_run import NASTY, fabricate, write_json

from patchwords.data.dataset import ImageDataset
from patchwords.errors import DataError
from patchwords.report.page import PAGE_CONTENTS, render_report, write_report
from patchwords.report.run_data import REQUIRED_KEYS, RUN_FILES, read_run_data
from patchwords.report.sections.predictions import RunImages

Given = tuple[Path, ImageDataset]
VOID = {"img", "br", "meta", "col", "input", "link", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed in turn, and keeps what it met."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += " ".join([" ", *data.split(), " "])

    def has(self, words: str) -> bool:
        return " ".join(words.split()) in " ".join(self.words.split())


def page_of(folder: Path, examples: ImageDataset | None = None) -> Page:
    return Page(render_report(read_run_data(folder), RunImages.from_dataset(examples)))


def test_what_is_published_of_the_recipe_is_shown(run: Given) -> None:
    folder, examples = run
    (folder / "config.yaml").write_text("recipe: augreg-none-wd0.03\n", encoding="utf-8")
    page = page_of(folder, examples)  # of ViT-Ti/16
    assert page.has("Published with the recipe augreg-none-wd0.03: 73.75 % on ImageNet, ViT-Ti/16")
    assert not page.has("R+ViT-Ti/16")
    (folder / "config.yaml").write_text("recipe: bit-imagenet\n", encoding="utf-8")
    assert not page_of(folder, examples).has("Published")


def test_all_sections_are_there_and_linked(run: Given) -> None:
    page = page_of(*run)
    identities = {attributes.get("id") for _, attributes in page.tags} - {None}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {f"#{place}" for place in PAGE_CONTENTS}
    assert set(PAGE_CONTENTS) <= identities


def test_one_file_that_loads_nothing(run: Given) -> None:
    page = page_of(*run)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "base"})
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "xlink:href", "action", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\(", page.html)
    policy = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert "default-src 'none'" in str(policy)


def test_user_strings_are_escaped_and_shown_as_written(run: Given) -> None:
    page = page_of(*run)
    assert "script" not in {tag for tag, _ in page.tags}
    for words in (*NASTY, "<photos>", "<u>torn</u>.jpg", "truncated <here>", "<notes>.txt"):
        assert page.has(words), words
    for raw in ("<b>bold", "<u>torn", "<photos>", "<notes>", "<script"):
        assert raw not in page.html


def test_the_headline_says_how_good_on_what_and_against_what(run: Given) -> None:
    page = page_of(*run)
    results = json.loads((run[0] / "evaluation.json").read_text())
    value = results["accuracy"]
    right = round(value["value"] * 60)
    assert page.has(f"{100 * value['value']:.1f}")
    assert page.has(f"95 % interval {100 * value['low']:.1f} % to {100 * value['high']:.1f} %")
    assert page.has(f"{right} of 60 images right, {60 - right} wrong.")
    assert page.has("would be right for 25.0 %")
    assert page.has("The test images were not used for training")
    assert page.has("1 min 33 s")
    assert page.has("96 x 64 px")


def test_what_the_run_took_and_how_its_representation_grew(run: Given) -> None:
    page = page_of(*run)
    assert page.has("Share of peak speed 37 %")
    assert page.has("Peak memory 1.23 GB")
    assert page.has("97 images per second, 37 % of the device's matrix product peak, 5 % of")
    labels = [a.get("aria-label") for tag, a in page.tags if tag == "svg"]
    assert "Few-shot accuracy over the training steps: 5-shot" in labels
    assert "step 400: 5-shot 50 %" in " ".join(page.words.split())
    assert page.has("the frozen model's features of 5 training images per class")
    assert page.has("measured on 47 validation images. At the end 50.0 %.")
    assert page.has("of the rows before it 2 times, at steps 123, 321.")


def test_what_was_not_measured_is_not_spoken_of(run: Given) -> None:
    metrics = run[0] / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] in {"train", "evaluation"}]
    plain = [{k: v for k, v in row.items() if k not in {"utilisation", "memory"}} for row in rows]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in plain))
    page = page_of(*run)
    for words in ("Share of peak", "Peak memory", "matrix product", "Few-shot", "jumped"):
        assert not page.has(words), words


def test_many_spikes_are_counted(run: Given) -> None:
    with (run[0] / "metrics.jsonl").open("a") as file:
        for step in range(130, 140):
            file.write(json.dumps({"kind": "note", "step": step, "about": "loss spike"}) + "\n")
    page = page_of(*run)
    assert page.has("12 times, at steps 123, 130, 131, 132, 133, 134, 135, 136 and 4 more.")


def test_a_split_that_chose_the_model_and_a_result_like_the_baseline_are_called_out(
    run: Given,
) -> None:
    path = run[0] / "evaluation.json"
    results = json.loads(path.read_text())
    low = results["accuracy"]["low"]
    write_json(path, {**results, "selected": True, "baseline": low + 0.01})
    page = page_of(*run)
    assert page.has("also chose the stopping step")
    assert page.has("not measurably better than always answering the most frequent class")
    assert not page.has("were not used for training")


def test_pictures_are_inside_and_missing_ones_say_why(run: Given) -> None:
    folder, examples = run
    page = page_of(folder, examples)
    images = [a for tag, a in page.tags if tag == "img"]
    kinds = {str(a["src"]).split(";")[0] for a in images}
    assert kinds == {"data:image/jpeg", "data:image/png"}  # tiny ones are kept lossless
    assert all(a["alt"] for a in images)
    assert not page.has("No pictures")
    without = page_of(folder, None)
    assert without.has("No pictures: the images were not available when this report was written.")
    assert not [tag for tag, _ in without.tags if tag == "img"]


def test_an_image_that_is_gone_leaves_a_card_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    examples = fabricate(folder, ("a", "b"), n=10)
    rows = (folder / "predictions.csv").read_text().splitlines()
    gone = next(i for i, row in enumerate(rows) if row.startswith("b/5.jpg"))
    rows[gone] = "b/5.jpg,b,a,0.990000,false,0.990000,0.010000"
    (folder / "predictions.csv").write_text("\n".join(rows) + "\n")
    assert page_of(folder, examples).has("No picture: gone.jpg")


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_missing_or_damaged_file_is_told_and_the_rest_is_shown(run: Given, name: str) -> None:
    folder, examples = run
    (folder / name).unlink()
    page = page_of(folder, examples)
    assert page.has("This report is incomplete.")
    assert page.has(f"{name} is missing, so {RUN_FILES[name]} cannot be shown.")
    if name in REQUIRED_KEYS:
        write_json(folder / name, {"images": 3})
        assert page_of(folder, examples).has(f"{name} cannot be read (it has no ")
    (folder / name).write_text("{[\x00" if name != "predictions.csv" else "path,label\nx,y\n")
    damaged = page_of(folder, examples)
    assert damaged.has(name)
    assert damaged.has("This report is incomplete.")


def test_a_torn_last_line_costs_that_line_only(run: Given) -> None:
    with (run[0] / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    page = page_of(*run)
    assert page.has("1 of 411 lines of metrics.jsonl cannot be read (the first is line 411)")
    assert page.has("400 steps (10 epochs). Best validation accuracy 90.0 % at step 400.")


def test_only_metrics_are_enough_for_a_report(tmp_path: Path) -> None:
    fabricate(tmp_path / "full", ("a", "b"))
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "full/metrics.jsonl").rename(started / "metrics.jsonl")
    page = Page(write_report(started).read_text())
    assert page.has("No held-out results yet")
    assert sorted(p.name for p in (started / "figures").iterdir()) == ["curves.png", "curves.svg"]


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run folder"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="no run folder"):
        write_report(tmp_path / "nowhere")


def test_letters_that_are_not_in_a_font_or_in_utf8(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    examples = fabricate(tmp_path, ("\u96cf\u83ca", "odd\udcff", "$"), n=9)
    page = Page(write_report(tmp_path, examples).read_text(encoding="utf-8"))
    assert page.has("\u96cf\u83ca")
    assert page.has("odd?")
    assert not recwarn.list


@pytest.mark.parametrize("classes", [2, 20, 21, 101])
def test_any_number_of_classes(tmp_path: Path, classes: int) -> None:
    names = tuple(f"class {i}" for i in range(classes))
    page = page_of(tmp_path, fabricate(tmp_path, names, n=2 * classes))
    matrices = [a for tag, a in page.tags if tag == "svg" and a.get("class") == "matrix"]
    assert len(matrices) == (1 if classes <= 20 else 0)
    assert page.has("Top-5 accuracy") == (classes > 5)


def test_the_same_run_gives_the_same_bytes(run: Given) -> None:
    def written() -> dict[str, bytes]:
        write_report(*run)
        pages = [run[0] / "report.html", *(run[0] / "figures").iterdir()]
        return {page.name: page.read_bytes() for page in pages}

    first = written()
    assert first == written()
    assert first["report.html"].decode() == page_of(*run).html
    charts = {
        f"{name}.{kind}"
        for name in ("curves", "confusion", "calibration")
        for kind in ("png", "svg")
    }
    assert set(first) == {"report.html", *charts}
