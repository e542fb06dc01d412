"""Published weights that the plain command starts from: `--weights auto`.

The rule: of the published weights whose features of all images fit into FEATURE_SHARE of the time,
those of the best published accuracy on ImageNet; what is on this machine first, then what the hub
has. docs/training.md has it as a table. The speed is an estimate here, so that nothing need be
fetched for it; `fit_to_budget` measures what is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from patchwords.data.dataset import TRAIN, DatasetSplits
from patchwords.data.preprocess import Preprocess
from patchwords.device import Device
from patchwords.distributed import get_world
from patchwords.download import forbid_downloads
from patchwords.errors import ConfigError, WeightsError
from patchwords.files import format_duration
from patchwords.models.cost import count_macs
from patchwords.models.zoo import create_model, resolve_model
from patchwords.planning.matmul_peak import measure_matmul_peak
from patchwords.training.budget import parse_budget
from patchwords.training.config import FinetuneConfig
from patchwords.training.plan import ResolvedSetting
from patchwords.training.recipes.plain import (
    DEFAULT_CPU_BUDGET,
    LARGE_DATA_IMAGES,
    PLAIN_HEAD_RECIPE,
    PlainRecipeSettings,
    adopt_recipe,
)
from patchwords.training.recipes.scaling import FINETUNE_EPOCHS
from patchwords.weights.locate import BUNDLED_PREFIX
from patchwords.weights.pretrained import Pretrained
from patchwords.weights.published import (
    NON_COMMERCIAL,
    PUBLISHED_WEIGHTS,
    PublishedWeights,
    ask_hub_for_bytes,
)
from patchwords.weights.store import from_pretrained

AUTO, NONE = "auto", "none"
FEATURE_SHARE = 0.6  # of the time, for computing features; the head, evaluation and report follow
UTILISATION = 0.4  # of the machine's fastest matrix product: an assumption, measured later
TRAINING_COST = 3  # forward passes that a training step on all weights costs
VIEWS = (4, 2, 1)  # crops of each image whose features are computed: as many as fit
SMALLEST_SIDE = 32  # pixels: smaller images must be enlarged 7 times and more
MAX_DOWNLOAD_MB = 500
HUB_SECONDS = 5.0  # to wait for the hub's answer


@dataclass(frozen=True)
class WeightsOption:
    """Published weights that a run could start from."""

    row: PublishedWeights
    seconds: float  # of an image, once through the frozen model: estimated
    cached: bool

    @property
    def megabytes(self) -> float:
        """Size of the download; where the authors do not say: of float32 values."""
        return (self.row.download_bytes or 4 * self.row.parameters) / 1e6

    @property
    def address(self) -> str:
        repository = self.row.hub_repository
        return self.row.name if repository is None else f"huggingface.co/{repository}"

    @property
    def accuracy(self) -> str:
        row = self.row
        return "no published accuracy" if row.accuracy is None else f"{row.accuracy:g} %"


def list_weights_options(device: Device) -> list[WeightsOption]:
    """List the published weights for any use, the most accurate first, then the fastest."""
    peak = UTILISATION * measure_matmul_peak(device) / 2  # multiply-adds in a second
    options = []
    for row in PUBLISHED_WEIGHTS:
        if row.name.startswith(BUNDLED_PREFIX) or row.licence == NON_COMMERCIAL:
            continue
        config = resolve_model(row.architecture).config
        larger = row.image_size**2 / math.prod(
            config.image_size
        )  # attention grows faster: estimated
        options.append(WeightsOption(row, larger * count_macs(config) / peak, row.cached))
    return sorted(options, key=lambda option: (-(option.row.accuracy or 0), option.seconds))


class WeightsSearch:
    """The search for published weights of one run; what fails is left out of the next try."""

    def __init__(
        self,
        config: FinetuneConfig,
        data: DatasetSplits,
        device: Device,
        say: Callable[[str], None],
    ) -> None:
        open_choice = isinstance(config.recipe, PlainRecipeSettings)
        if config.weights == AUTO and not open_choice:
            raise ConfigError(
                "--weights auto chooses the model by the data: leave out --model, --recipe and "
                "other settings of the model, or name the weights (patchwords weights lists them)"
            )
        self.active = open_choice and config.weights != NONE
        self.forced, self.offline = config.weights == AUTO, config.offline
        self.fetches = not config.explain
        self.train = len(data.splits[TRAIN])
        self.held_out = sum(len(split) for split in data.splits.values()) - self.train
        self.device, self.say = device, say
        self.options: list[WeightsOption] = []
        self.chosen: dict[str, WeightsOption] = {}
        # Why no published weights are taken; this where `find` is not called.
        self.obstacle = f"from {LARGE_DATA_IMAGES:,} images on the paper's recipe starts without"
        self.opened: dict[str, Pretrained] = {}
        self.opening: str | None = None  # what an error is about
        self.refused: set[str] = set()
        self.notes: list[str] = []

    def find(self, config: FinetuneConfig, short_side: float) -> list[FinetuneConfig]:
        """List the settings to try, the best weights first; [] where there is an obstacle."""
        self.chosen, self.obstacle = {}, ""
        if not self.active:
            return []
        self.seconds = FEATURE_SHARE * parse_budget(config.budget or DEFAULT_CPU_BUDGET)
        if get_world().size > 1:
            self.obstacle = "several processes have to name their weights"
        elif short_side < SMALLEST_SIDE and not self.forced:
            self.obstacle = (
                f"images of {short_side:.0f} pixels are too small for published weights "
                "(--weights auto takes them all the same)"
            )
        else:
            self.options = self.options or list_weights_options(self.device)
            self.chosen = {option.row.name: option for option in self.choose_options()}
        return [self.configure(config, option) for option in self.chosen.values()]

    def choose_options(self) -> list[WeightsOption]:
        """Choose by the rule: the best that fits, and the fastest in case that it does not."""
        options = [option for option in self.options if option.row.name not in self.refused]
        fitting = [o for o in options if self.count_seconds(o, 1) <= self.seconds]
        here = [option for option in fitting if option.cached]
        if here:
            fastest = min(here, key=lambda option: option.seconds)
            return [here[0]] if fastest is here[0] else [here[0], fastest]
        if not fitting:
            least = min(self.count_seconds(option, 1) for option in self.options)
            self.obstacle = (
                f"features of {self.train + self.held_out:,} images take "
                f"{format_duration(least)} or more; --budget {count_minutes(least)}m has the time"
            )
            return []
        offered = [
            option
            for option in fitting
            if option.row.hub_repository and option.megabytes <= MAX_DOWNLOAD_MB
        ]
        return self.choose_download(offered)

    def choose_download(self, offered: list[WeightsOption]) -> list[WeightsOption]:
        """Choose what the hub has, if it answers."""
        from huggingface_hub import constants

        if self.refused:
            self.obstacle = "those that were chosen cannot be read"
            return []
        self.obstacle = "no fitting ones are on this machine, and "
        if self.offline or constants.HF_HUB_OFFLINE:
            name = "--offline" if self.offline else "HF_HUB_OFFLINE"
            self.obstacle += f"{name} forbids the download"
            return []
        if not offered:
            self.obstacle += "the hub has none of that size"
            return []
        best = offered[0]
        size = ask_hub_for_bytes(best.row.hub_repository or "", HUB_SECONDS)
        if size is None:
            self.obstacle += f"the Hugging Face hub did not answer within {HUB_SECONDS:g} s"
            return []
        self.obstacle = ""
        return [replace(best, row=replace(best.row, download_bytes=size))]

    def count_seconds(self, option: WeightsOption, views: int) -> float:
        """Estimate the time for the features of all images."""
        return option.seconds * (views * self.train + self.held_out)

    def configure(self, config: FinetuneConfig, option: WeightsOption) -> FinetuneConfig:
        """Return the settings that start from these weights: which layers learn, and how."""
        assert isinstance(config.recipe, PlainRecipeSettings)
        all_layers = TRAINING_COST * FINETUNE_EPOCHS * self.train * option.seconds
        named = config.recipe.train if "train" in config.recipe.named else None
        head = self.device.type == "cpu" or all_layers > self.seconds
        if named not in {None, "head"} or (named is None and not head):
            return replace(adopt_recipe(config, None), weights=option.row.name)
        fitting = (views for views in VIEWS if self.count_seconds(option, views) <= self.seconds)
        settings = {**PLAIN_HEAD_RECIPE.settings, "views": next(fitting, 1)}
        recipe = replace(PLAIN_HEAD_RECIPE, settings=settings)
        return replace(adopt_recipe(config, recipe), weights=option.row.name)

    def open(self, load: Callable[[], Pretrained | None], name: str | None) -> Pretrained | None:
        """Open the starting weights of a run; of what is not here yet, a model of that shape."""
        if name is None or name not in self.chosen:
            return load()
        if name not in self.opened:
            option = self.chosen[name]
            if not option.cached:
                return make_stand_in(option.row)
            self.opening = name
            with forbid_downloads():
                self.opened[name] = from_pretrained(name)
            self.opening = None
        return self.opened[name]

    def fetch(self, name: str | None) -> None:
        """Download the weights that were decided on, and say how much; not for --explain."""
        option = self.chosen.get(name or "")
        if option is None or option.cached or not self.fetches:
            return
        self.say(f"downloading {option.megabytes:,.0f} MB from {option.address} (once)")
        self.opening = option.row.name
        self.opened[option.row.name] = from_pretrained(option.row.name)
        self.opening = None

    def give_up(self, error: WeightsError) -> bool:
        """Note that the weights that were chosen cannot be read; False: the error is another's."""
        if self.opening is None:
            return False
        self.refused.add(self.opening)
        self.notes.append(f"going on without {self.opening}: {error}")
        self.opening = None
        return True

    def explain(self, name: str | None) -> ResolvedSetting:
        """Say what was chosen, why, what was given up for it, and how to have that."""
        option = self.chosen.get(name or "")
        if option is None:
            return ResolvedSetting("weights", NONE, self.explain_scratch())
        place = "on this machine"
        if not option.cached:
            place = f"a download of {option.megabytes:,.0f} MB from {option.address}"
        images = self.train + self.held_out
        took = format_duration(images * option.seconds)
        parts = [
            f"{option.accuracy} {option.row.protocol}".strip(),
            place,
            f"licence {option.row.licence or 'as on ' + option.address}",
            f"its features of {images:,} images take about {took}",
            *self.explain_better(option),
            "--weights none starts from random ones",
        ]
        return ResolvedSetting("weights", option.row.name, "; ".join(parts))

    def explain_views(self, config: FinetuneConfig) -> dict[str, str]:
        """Give the reason of the crops whose features are computed, where the time decides."""
        if config.weights not in self.chosen or config.recipe.recipe != PLAIN_HEAD_RECIPE.name:
            return {}
        return {"views": "crops of each image whose features are computed once: as many as fit"}

    def explain_scratch(self) -> str:
        """Say why no published weights are taken."""
        if self.chosen:
            return "measured, the features of published weights do not fit into the time"
        return self.obstacle

    def explain_better(self, option: WeightsOption) -> list[str]:
        """Name the most accurate weights that the time or the network keeps from the run."""
        better = next(iter(self.options), option)
        if better.row.name in {option.row.name, *self.refused}:
            return []
        seconds = self.count_seconds(better, 1)
        if seconds > self.seconds:
            how = f"--budget {count_minutes(seconds)}m has the time"
        else:
            how = f"--weights {better.row.name} fetches {better.megabytes:,.0f} MB"
        return [f"given up: {better.row.name} ({better.accuracy}; {how})"]


def count_minutes(seconds: float) -> int:
    """Return the budget in minutes for this time of features."""
    return int(seconds / FEATURE_SHARE // 60) + 1


def make_stand_in(row: PublishedWeights) -> Pretrained:
    """Make a model of published weights without them, to be measured in their place."""
    size = (row.image_size, row.image_size)
    model = create_model(row.architecture, num_classes=1, image_size=size)
    return Pretrained(model.eval(), Preprocess(image_size=size), (), row.architecture)
