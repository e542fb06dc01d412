"""A look at a trained model: beside its beginning, within its time, and small enough to keep."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import patchwords as pw
from patchwords.data.dataset import ImageDataset
from patchwords.data.preprocess import Preprocess
from patchwords.evaluation import model_insight as module
from patchwords.evaluation.model_insight import (
    COMPARED_PARAMETERS,
    InitialWeights,
    ModelInsight,
    analyse_model,
    load_initial_weights,
    redraw_initial_weights,
)
from patchwords.interpret.distance import attention_distance
from patchwords.interpret.filters import principal_filters
from patchwords.interpret.positions import position_similarity
from patchwords.interpret.rollout import attention_rollout
from patchwords.weights.pretrained import Pretrained

CLASSES = ("a", "b", "c")
NOTHING = InitialWeights("somewhere", None)


class Noise:
    """Photos of noise; the one of row 3 cannot be read."""

    def __call__(self, row: int) -> bytes:
        if row == 3:
            return b"no image"
        pixels = np.random.default_rng(row).integers(0, 256, (12, 20, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()


def photos(n: int = 23) -> ImageDataset:
    names = [f"{i}.png" for i in range(n)]
    labels = np.arange(n) % 3
    return ImageDataset(CLASSES, labels, names, np.full(n, 700), Noise(), np.arange(n))


def source(labels: tuple[str, ...] = CLASSES, **settings: Any) -> Pretrained:
    """Of images of 12x20 pixels: a grid of 3x5 patches"""
    settings = {"depth": 2, "image_size": (12, 20), "num_classes": 3, "seed": 7} | settings
    model = pw.create_model("ViT-mu/4", **settings)
    torch.nn.init.normal_(model.head.linear.weight, generator=torch.Generator().manual_seed(0))
    return Pretrained(model, Preprocess(image_size=(12, 20), crop_fraction=1.0), labels)


def looked(
    of: Pretrained, begun: InitialWeights = NOTHING, shown: tuple[str, ...] = ()
) -> ModelInsight:
    return analyse_model(of, begun, photos(), shown)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": "2d"},
        {"position": "1d", "position_at": "every"},
        {"position": "relative"},
        {"position": "relative", "mixer": "local", "window": 3},
    ],
)
def test_the_beginning_is_drawn_as_it_was(settings: dict[str, Any]) -> None:
    whole = source(**settings).model
    again = redraw_initial_weights(whole.config, 7)
    compared = 0
    for name, parameter in again.named_parameters():
        if COMPARED_PARAMETERS.fullmatch(name):
            compared += 1
            assert torch.equal(parameter, whole.get_parameter(name)), name
        else:
            assert parameter.device.type == "meta", name
    assert compared >= 3
    assert np.array_equal(principal_filters(again).components, principal_filters(whole).components)
    now, then = (position_similarity(one).values for one in (whole, again))
    np.testing.assert_array_equal(now, then)


def test_a_resnet_begins_with_its_root() -> None:
    model = pw.create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, seed=7)
    before = principal_filters(redraw_initial_weights(model.config, 7)).components
    assert np.array_equal(before, principal_filters(model).components)


def test_weights_are_the_beginning_where_they_still_are(tmp_path: Path) -> None:
    of = source(position="1d")
    pw.save_pretrained(of.model, tmp_path / "old", labels=CLASSES)
    larger = of.model.config.with_settings(image_size=(20, 24), num_classes=5)
    begun = load_initial_weights(
        larger, {"weights": str(tmp_path / "old"), "seed": 1, "model": None}
    )
    assert begun.model is not None
    assert begun.description == str(tmp_path / "old")
    assert torch.equal(begun.model.patch_embed.weight, of.model.patch_embed.weight)
    assert begun.model.config.grid == (5, 6)  # brought to the run's size, as training did
    gone = load_initial_weights(larger, {"weights": str(tmp_path / "gone"), "seed": 1})
    assert gone.model is None
    assert "which cannot be read any more" in gone.description
    assert (
        load_initial_weights(larger, {"weights": None, "seed": 5}).description
        == "the initial weights of seed 5"
    )


def test_now_beside_the_beginning() -> None:
    of = source()
    before = redraw_initial_weights(of.model.config, 7)
    with torch.no_grad():
        of.model.patch_embed.weight.mul_(1.25)
    found = looked(of, InitialWeights("seed", before))
    assert found.results["filters"]["moved"] == pytest.approx(0.25)
    for name, model in (("filters", of.model), ("filters_before", before)):
        np.testing.assert_allclose(
            found.arrays[name], principal_filters(model).components, atol=1e-3
        )  # float16
    values = position_similarity(of.model).values
    assert found.arrays["positions"].shape == (1, 3, 5, 3, 5)
    np.testing.assert_allclose(found.arrays["positions_before"], values, atol=1e-3)
    assert found.results["positions"]["explained"] == found.results["positions"]["explained_before"]


def test_of_a_large_grid_some_tiles_and_of_many_tables_the_ends() -> None:
    of = source(image_size=(32, 44), position_at="every", depth=3)
    found = ModelInsight()
    module.analyse_positions(found, of.model, None)
    rows, columns = [0, 1, 2, 4, 5, 6, 7], [0, 2, 3, 5, 7, 8, 10]
    assert found.results["positions"]["rows"] == rows
    assert found.results["positions"]["columns"] == columns
    assert found.results["positions"]["layers"] == [0, 2]
    expected = position_similarity(of.model).values[[0, 2]][:, rows][:, :, columns]
    np.testing.assert_allclose(found.arrays["positions"], expected, atol=1e-3)


def test_what_needs_images(monkeypatch: pytest.MonkeyPatch) -> None:
    of, examples = source(), photos()
    of.model.train()
    found = looked(of, shown=("4.png", "3.png", "0.png"))  # the second cannot be read
    assert of.model.training
    assert not found.results["left_out"]
    of.model.eval()
    pixels = module.read_model_inputs(of, examples)
    assert len(pixels) == 22
    images = of.preprocess.normalise(pixels)
    assert found.results["image_size"] == [12, 20]
    measured = attention_distance(of.model, [images])
    distance = found.results["distance"]
    assert distance["images"] == 22
    np.testing.assert_allclose(distance["pixels"], measured.mean, rtol=1e-5)
    np.testing.assert_allclose(distance["standard_error"], measured.error, rtol=1e-4)
    assert found.results["maps"] == {"paths": ["4.png", "0.png"], "class_token": True}
    place = [3, 0]  # among those that can be read
    rolled = attention_rollout(of.model, images[place])[:, 0, 1:].unflatten(1, (3, 5))
    np.testing.assert_allclose(found.arrays["maps"], rolled, rtol=1e-4)
    np.testing.assert_array_equal(found.arrays["photos"], pixels[place].permute(0, 2, 3, 1))
    truth = found.results["truth"]
    assert truth["images"] == 16
    assert list(truth["maps"]) == ["rollout", "gradient rollout", "random"]
    assert found.arrays["deletion_rollout"].shape == (16, 11)
    for name in ("rollout", "gradient rollout"):
        assert {"mean", "low", "high", "truer"} <= truth["maps"][name]["beside_random"].keys()


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "TIME_BUDGET_SECONDS", dict.fromkeys(module.TIME_BUDGET_SECONDS, 0.0)
    )
    found = looked(source(), shown=("4.png",))
    assert found.results["left_out"].keys() == {"distance", "maps", "truth"}
    assert "too long on this machine" in found.results["left_out"]["truth"]
    assert found.arrays.keys() == {"filters", "positions"}


@pytest.mark.parametrize(
    ("each", "most", "count"), [(0.01, 64, 64), (0.5, 64, 8), (1.0, 64, 4), (1.1, 64, 0), (2, 2, 2)]
)
def test_fewer_images_where_the_model_is_slow(
    each: float, most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve seconds for three passes an image, by a clock that the test moves."""
    now = [0.0]
    of = source()
    images = torch.zeros(3, 3, 12, 20)
    forward = of.model.forward

    def slow(some: torch.Tensor) -> torch.Tensor:
        now[0] += each * len(some)
        return forward(some)

    monkeypatch.setattr(of.model, "forward", slow)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setitem(module.TIME_BUDGET_SECONDS, "distance", 12.001)
    assert module.make_image_budget(of.model, images)("distance", most) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "part", "why"),
    [
        ({"mixer": "pooling"}, "attention", "the mixer pooling has no attention"),
        ({"position": "none"}, "positions", "the model has no position embeddings"),
    ],
)
def test_what_a_model_lacks_is_named(settings: dict[str, Any], part: str, why: str) -> None:
    assert looked(source(**settings)).results["left_out"] == {part: why}


def test_a_resnet_has_filters_only() -> None:
    model = pw.create_model("BiT-R50x1", units=(1, 1, 1, 1), image_size=32, num_classes=3)
    found = looked(Pretrained(model, Preprocess(image_size=(32, 32)), CLASSES))
    assert found.results["left_out"].keys() == {"attention"}
    assert found.arrays.keys() == {"filters"}


def test_without_classes_no_answers_are_explained() -> None:
    found = looked(source(labels=(), num_classes=1), shown=())
    assert found.results.keys() & {"distance", "maps", "truth"} == {"distance"}
    assert not found.results["left_out"]
    assert looked(source(labels=(), num_classes=1), shown=("4.png",)).arrays.keys() == {
        "filters",
        "positions",
    }


def test_without_images_what_needs_none() -> None:
    found = analyse_model(source(), NOTHING, None, ())
    assert found.results["left_out"] == {"attention": "the held-out images were not available"}
    assert found.results["images"] is False
    none = photos().select([3])
    assert (
        "can be read" in analyse_model(source(), NOTHING, none, ()).results["left_out"]["attention"]
    )


def test_fixed_positions_are_not_compared() -> None:
    of = source(position="sincos2d")
    found = looked(of, InitialWeights("seed", redraw_initial_weights(of.model.config, 7)))
    assert found.results["positions"]["learned"] is False
    assert "positions_before" not in found.arrays


def test_what_is_kept_is_small(tmp_path: Path) -> None:
    """At 384 pixels of patches of 16: 576 places, six photos, and filters of 768 weights"""
    settings = {"patch_size": 16, "image_size": 384, "width": 64, "position": "1d"}
    of = source(**settings)
    of = Pretrained(of.model, Preprocess(image_size=(384, 384)), CLASSES)
    found = ModelInsight()
    module.analyse_filters(found, of.model, of.model)
    module.analyse_positions(found, of.model, of.model)
    module.analyse_attention_rollout(
        found, of, of.model, photos(), [f"{i}.png" for i in (0, 1, 2, 4, 5, 6)]
    )
    assert found.arrays["photos"].shape == (6, 192, 192, 3)
    found.write(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2_000_000
