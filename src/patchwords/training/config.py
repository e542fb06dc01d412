"""Every setting of a fine-tuning run, in groups; `None` means "as the recipe says".

The groups become the sections of `patchwords finetune --help`; the comments become its texts.
Nothing here imports torch: help must be quick.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import yaml

from patchwords.data.augment import AugmentSettings
from patchwords.data.sampler import SHUFFLE_SHARDS
from patchwords.data.splits import MAX_VALIDATION_IMAGES
from patchwords.device import DeviceName, PrecisionName
from patchwords.errors import ConfigError, did_you_mean
from patchwords.models.config import Classifier, Position, PositionAt
from patchwords.training.objective_settings import ObjectiveSettings

ScheduleName = Literal["cosine", "linear", "constant", "staircase"]
FrozenMode = Literal["auto", "cache", "compute"]
CompileMode = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class DataSettings:
    """Which images to train on, and which to hold out."""

    section: ClassVar[str] = "Data"

    image_column: str | None = None
    """column with the images, in a CSV or parquet table; default: found by name and type"""
    label_column: str | None = None
    """column with the labels, in a CSV or parquet table; default: found by name and type"""
    classes: tuple[str, ...] | None = None
    """train on these classes only, by name; default: all"""
    test: float = 0.2
    """share of the images held out for the report, if DATA has no test split"""
    validation: float = 0.1
    """share of the training images held out for validation during training"""
    most_validation: int | None = MAX_VALIDATION_IMAGES
    """maximum number of validation images; None: no limit"""
    split_seed: int | None = None
    """seed of the splits; default: the value of --seed"""
    train_images: int | None = None
    """train on a random subset of N images (smaller subsets are contained in larger ones); default:
    all"""
    join_validation: bool = False
    """train on DATA's own validation split, too, as in a final run"""
    unseen_classes: bool = False
    """accept test images of classes without training images, and count them as errors"""
    max_bad: float = 0.01
    """stop if more than this share of the images cannot be read"""
    exclude: str | None = None
    """file from `patchwords dedup` with images to leave out; default: none"""
    shuffle_shards: int = SHUFFLE_SHARDS
    """number of shards whose images are shuffled together"""
    cache_size: float = 64.0
    """local disk budget in GiB for remote shards and cached frozen features"""


@dataclass(frozen=True)
class ModelSettings:
    """Changes to the architecture that the model's name stands for."""

    section: ClassVar[str] = "Model"
    unset: ClassVar[str] = "from the model"

    image_size: tuple[int, ...] | None = None
    """image size in pixels: one number, or height and width"""
    patch_size: int | None = None
    """patch size in pixels; in a hybrid, in cells of the ResNet's feature map"""
    depth: int | None = None
    """number of transformer blocks (App. D.2)"""
    width: int | None = None
    """token width D"""
    heads: int | None = None
    """attention heads per block"""
    mlp_width: int | None = None
    """hidden width of the MLP in each block"""
    mixer: str | None = None
    """how the tokens of a block exchange information: attention, axial (App. D.6), local, pooling,
    mlp, identity, or package.module:Class of your own"""
    window: int | None = None
    """side of the neighbourhood that --mixer local sees, in patches: odd, usually 7"""
    classifier: Classifier | None = None
    """what the head reads: the class token, the mean of all patches (gap), or attention pooling
    (map; App. D.3)"""
    representation_size: int | None = None
    """width of a tanh layer before the classifier"""
    head_bias: float | None = None
    """initial bias of the classifier"""
    position: Position | None = None
    """type of position embeddings (App. D.4)"""
    position_at: PositionAt | None = None
    """where position embeddings are added: once at the stem, in every block its own, or one shared
    by all blocks"""
    gelu: Literal["erf", "tanh"] | None = None
    """form of GELU: tanh as in the official code, erf as in timm"""
    dropout: float | None = None
    """dropout rate after every dense layer except qkv (App. B.1)"""
    drop_path: float | None = None
    """stochastic depth: drop rate of the last block, rising linearly from 0 over the depth"""


DURATION_FIELDS = ("epochs", "steps", "examples", "budget")  # ways to say how long a run is


@dataclass(frozen=True)
class RecipeSettings:
    """How long and how to train; what is not set comes from the paper's Tables 3 and 4."""

    section: ClassVar[str] = "Training"
    unset: ClassVar[str] = "from the recipe"

    recipe: str | None = None
    """published recipe to train by; `patchwords recipes` lists them; default: the paper's, fitted
    to the size of DATA"""
    scale: Literal["auto"] | float | None = None
    """train on SCALE times the images of --recipe, 0 to 1; auto: fitted to the size of DATA;
    default: the whole recipe"""
    epochs: float | None = None
    """passes over the training images"""
    steps: int | None = None
    """number of updates, instead of --epochs"""
    examples: int | None = None
    """number of images to train on, repeats counted, instead of --epochs"""
    batch_size: int | None = None
    """images per update, over all devices"""
    optimizer: Literal["sgd", "adamw"] | None = None
    """sgd (with momentum), or adamw (Adam with decoupled weight decay)"""
    lr: float | None = None
    """peak learning rate"""
    schedule: ScheduleName | None = None
    """learning-rate schedule after the warm-up"""
    drops: tuple[float, ...] | None = None
    """shares of the steps after which --schedule staircase lowers the rate, such as 0.3 0.6 0.9"""
    warmup_steps: int | None = None
    """steps of linear warm-up from 0"""
    weight_decay: float | None = None
    """decoupled weight decay, times the learning rate; on kernels only"""
    clip: float = 1.0
    """maximum norm of the gradient"""
    layer_decay: float = 1.0
    """factor on the learning rate for each layer below the head; 1: the same rate everywhere"""
    label_smoothing: float = 0.0
    """share of the target that is spread evenly over all classes"""
    teacher: str | None = None
    """model to learn from (distillation): a run, a model folder, a file, a hub id or a published
    name; it sees the same images; default: none"""
    distillation: Literal["soft", "hard"] = "soft"
    """what to learn from --teacher: its probabilities (soft), or its most likely class (hard)"""
    temperature: float = 1.0
    """number that divides the logits of model and --teacher before soft distillation"""
    teacher_weight: float | None = None
    """share of the loss that is by --teacher, the rest being by the labels; default: 1"""
    ema: float | None = None
    """decay of an exponential moving average of the weights, such as 0.9999; default: no average,
    or from the recipe"""
    train: str = "all"
    """which weights learn: all; head; last:N, the last N layers and the head; norms, all norms and
    the head; or lora:R, a low-rank update of rank R for each dense layer of a ViT, and the head"""
    balance: Literal["none", "loss", "sample", "auto"] = "none"
    """compensate for rare classes: weigh the loss, or sample them more often; auto: weigh the loss
    if one class has nearly all images; default: none, or auto where the data choose the model"""
    early_stop: int | None = None
    """stop after N evaluations without a better validation result; default: never"""


@dataclass(frozen=True)
class MachineSettings:
    """What to train on; the results do not depend on the number of workers."""

    section: ClassVar[str] = "Machine"

    device: DeviceName = "auto"
    """device to train on; auto: a GPU if there is one"""
    precision: PrecisionName = "auto"
    """precision of matrix products; auto: bf16 where it is fast, else fp32"""
    frozen: FrozenMode = "auto"
    """cache the outputs of frozen layers on disk, or recompute them every step"""
    compile: CompileMode = "auto"
    """torch.compile each block: slow start, faster steps"""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """with several processes: replicate the weights (ddp) or shard them (fsdp)"""
    checkpoint_activations: bool = False
    """recompute activations in the backward pass: far less memory, slower steps"""
    workers: int | None = None
    """processes that decode images; 0: decode in the training process; default: by the number of
    CPU cores"""
    grad_accum: Literal["auto"] | int = "auto"
    """micro-batches per update; auto: as few as fit in memory"""
    log_every: int | None = None
    """steps between rows of metrics.jsonl; default: 1 % of the run, 50 at most"""
    eval_every: int | None = None
    """steps between evaluations on the validation split; default: an epoch, or 1/30 of the run if
    that is longer"""
    save_every: int | None = None
    """steps between checkpoints; default: the value of --eval-every"""
    fewshot_every: int | None = None
    """steps between few-shot evaluations; default: never"""
    fewshot_shots: int = 5
    """training images per class for --fewshot-every"""


@dataclass(frozen=True)
class FinetuneConfig:
    """All settings of a run; `recipes.fill` replaces the `None`s, and config.yaml keeps that."""

    section: ClassVar[str] = "Run"

    verb: ClassVar[str] = "finetune"

    data: str = ""
    """folder, CSV, parquet, tar shards, hf:NAME or digits"""
    model: str | None = None
    """architecture, by name (`patchwords models` lists them); default: that of --weights, else
    chosen by the data in finetune, ViT-B/16 in pretrain"""
    weights: str | None = None
    """start from these weights: a run, a model folder, a file, a hub id or a published name;
    patchwords:cifar10-small comes with the package; none: random ones; auto: published ones that
    suit the data and the time; default: auto in finetune where the data choose the model, else
    none"""
    offline: bool = False
    """download no weights: use those on this machine"""
    budget: str | None = None
    """time for training and evaluation, such as 15m or 1h30m, instead of --epochs; default: 15m on
    a CPU where the data choose the model, else no limit"""
    explain: bool = False
    """print every setting with its reason and stop; nothing is written"""
    task: str = "auto"
    """what to learn: classification, segmentation (a class for every pixel), or package.module:Name
    for an objective of your own; auto: segmentation if DATA has images/ and masks/"""
    decoder: str | None = None
    """what makes masks of a segmentation model's features: linear, mla, pup (SETR) or mask
    (Segmenter); default: linear on a ViT, mla on a CNN"""
    output: str | None = None
    """run folder to write; default: runs/DATA-MODEL"""
    resume: bool = False
    """continue the interrupted run in --output exactly"""
    overwrite: bool = False
    """delete what is in --output first"""
    seed: int = 0
    """seed of every random choice"""
    data_settings: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    resize: Literal["crop", "squash"] | None = None
    """resizing for evaluation: crop the centre, or squash to the image size; default: from
    --weights, else by the size of the images"""
    crop_fraction: float | None = None
    """share of the short side that the centre crop keeps in evaluation; default: from --weights,
    else by the size of the images"""
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    recipe: RecipeSettings = field(default_factory=RecipeSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def check(self) -> None:
        """Refuse settings that are out of range or contradict one another, by name."""
        recipe, machine = self.recipe, self.machine
        if not self.data:
            raise ConfigError(
                f"no data given: patchwords {self.verb} DATA, where DATA is a folder with one "
                "folder of images per class, a CSV, a parquet file, tar shards, hf:NAME or digits"
            )
        check_duration(self)
        if self.weights == "auto" and self.verb != "finetune":
            raise ConfigError(f"--weights auto is for finetune; {self.verb} needs their name")
        if self.resume and self.overwrite:
            raise ConfigError("--resume goes on with a run, --overwrite deletes it; give one")
        for flag, values in {
            "--classes": self.data_settings.classes,
            "--image-size": self.model_settings.image_size,
            "--drops": recipe.drops,
        }.items():
            if values == ():
                raise ConfigError(f"{flag} lacks a value; leave it out, or say which")
        _check_recipe(recipe)
        _check_crop(self.augment)
        parse_train_layers(recipe.train)
        if machine.parallel == "fsdp" and parse_lora_rank(recipe.train) is not None:
            raise ConfigError(f"--train {recipe.train} is not for --parallel fsdp; choose ddp")
        _require_positive(
            {
                "--epochs": recipe.epochs,
                "--steps": recipe.steps,
                "--examples": recipe.examples,
                "--batch-size": recipe.batch_size,
                "--lr": recipe.lr,
                "--layer-decay": recipe.layer_decay,
                "--early-stop": recipe.early_stop,
                "--grad-accum": None if machine.grad_accum == "auto" else machine.grad_accum,
                "--log-every": machine.log_every,
                "--eval-every": machine.eval_every,
                "--save-every": machine.save_every,
                "--fewshot-every": machine.fewshot_every,
                "--fewshot-shots": machine.fewshot_shots,
                "--most-validation": self.data_settings.most_validation,
                "--train-images": self.data_settings.train_images,
                "--shuffle-shards": self.data_settings.shuffle_shards,
                "--cache-size": self.data_settings.cache_size,
            }
        )
        if not recipe.clip > 0:  # inf: no clipping
            raise ConfigError(f"--clip {recipe.clip:g} must be greater than 0")
        _require_share(
            {
                "--label-smoothing": recipe.label_smoothing,
                "--ema": recipe.ema,
                "--max-bad": self.data_settings.max_bad,
                "--test": self.data_settings.test,
                "--validation": self.data_settings.validation,
            }
        )
        for name, value in {
            "--warmup-steps": recipe.warmup_steps,
            "--weight-decay": recipe.weight_decay,
            "--workers": machine.workers,
        }.items():
            if value is not None and value < 0:
                raise ConfigError(f"{name} {value} is negative")
        if recipe.early_stop and not self.data_settings.validation:
            raise ConfigError("--early-stop needs validation images, and --validation is 0")


def parse_train_layers(train: str) -> int | None:
    """`--train` as the number of last layers that learn: None = some of all, 0 = the head only.

    Layers are blocks, or the residual units of a ResNet.
    """
    if train in {"all", "norms"} or parse_lora_rank(train) is not None:
        return None
    layers = parse_number_after("last:", train)
    if train != "head" and layers is None:
        raise ConfigError(
            f"--train {train!r}: choose all, head, norms, last:N with N layers, as last:2, or "
            "lora:R with a rank R, as lora:8"
        )
    return layers or 0


def parse_lora_rank(train: str) -> int | None:
    """Rank R of `--train lora:R`; None for any other."""
    return parse_number_after("lora:", train)


def parse_number_after(prefix: str, text: str) -> int | None:
    """Parse a number of at least 1 after a prefix; None for another text."""
    digits = text.removeprefix(prefix)
    is_number = text.startswith(prefix) and digits.isascii() and digits.isdigit()
    return int(digits) or None if is_number else None


def check_duration(config: FinetuneConfig) -> None:
    """Refuse several settings that each say how long to train."""
    if (config.budget or config.explain) and config.verb not in {"finetune", "pretrain"}:
        flag = f"--budget {config.budget}" if config.budget else "--explain"
        raise ConfigError(f"{flag} is for a single run, and {config.verb} makes several")
    flat = flatten_config(config)
    given = [
        f"--{name} {format_duration_value(flat[name])}"
        for name in DURATION_FIELDS
        if flat[name] is not None
    ]
    if len(given) > 1:
        every = "both" if len(given) == 2 else "all"
        raise ConfigError(f"{' and '.join(given)} {every} say how long to train; give one of them")


def format_duration_value(value: float | str) -> str:
    """A whole number in all its digits, as it was given."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_recipe(recipe: RecipeSettings) -> None:
    """`--recipe`'s own name is looked up where it is used."""
    if recipe.scale is not None and recipe.recipe is None:
        raise ConfigError(
            f"--scale {recipe.scale} says how much of a --recipe to do; name one, or leave it out: "
            "without a recipe the settings suit the size of the data anyway"
        )
    if isinstance(recipe.scale, float | int) and not 0 < recipe.scale <= 1:
        raise ConfigError(f"--scale {recipe.scale:g} must be above 0 and at most 1, or auto")
    drops = recipe.drops
    if drops is None:
        return
    if not all(0 < drop < 1 for drop in drops) or list(drops) != sorted(drops):
        said = " ".join(f"{drop:g}" for drop in drops)
        raise ConfigError(f"--drops {said}: give rising shares of the steps, as 0.3 0.6 0.9")
    if recipe.schedule != "staircase" and recipe.recipe is None:
        raise ConfigError("--drops says where --schedule staircase falls; give that, too")


def _check_crop(augment: AugmentSettings) -> None:
    share, plain = augment.random_crop, AugmentSettings()
    for name in ("crop_area", "crop_ratio"):
        if share is not None and getattr(augment, name) != getattr(plain, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} shapes the inception crop, and --random-crop "
                f"{share:.3g} takes its place; leave one out, or say --random-crop None"
            )


def _require_positive(settings: Mapping[str, float | None]) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} {value:g} must be greater than 0")
        if value == math.inf:
            raise ConfigError(f"{name} {value:g} must be a finite number")


def _require_share(settings: dict[str, float | None]) -> None:
    for name, value in settings.items():
        if value is not None and not 0 <= value < 1:
            raise ConfigError(f"{name} {value:g} must be at least 0 and less than 1")


# Every setting of a pre-training run: those of fine-tuning, and what is learned.
#
# Nothing here imports torch: help must be quick.


@dataclass(frozen=True)
class PretrainDataSettings(DataSettings):
    """Which images to pre-train on: all but a validation split of at most 5,000."""

    test: float = 0.0
    """share of the images held out for the report, if DATA has no test split"""


@dataclass(frozen=True)
class PretrainConfig(FinetuneConfig):
    """All settings of a run; `pretrain.settle` and `recipes.fill` replace the `None`s."""

    verb: ClassVar[str] = "pretrain"

    data_settings: PretrainDataSettings = field(default_factory=PretrainDataSettings)
    learn: ObjectiveSettings = field(default_factory=ObjectiveSettings)

    def check(self) -> None:
        """Refuse settings that are out of range or contradict one another, by name."""
        super().check()
        learn = self.learn
        if learn.mask_ratio is not None and not 0 < learn.mask_ratio <= 1:
            raise ConfigError(
                f"--mask-ratio {learn.mask_ratio:g} is not a share: above 0, and at most 1"
            )
        if learn.head == "linear" and self.model_settings.representation_size is not None:
            raise ConfigError(
                "--head linear has no layer before the classifier, and --representation-size "
                f"{self.model_settings.representation_size} is the width of one; give one of them"
            )
        if self.task not in {"auto", "classification"}:
            raise ConfigError(f"--task {self.task}: pre-training has --objective instead")
        decoder = {"--decoder-width": learn.decoder_width, "--decoder-depth": learn.decoder_depth}
        _require_positive(decoder)
        owners: dict[tuple[str, ...], Mapping[str, object]] = {
            ("supervised",): self._of_labels(),
            ("supervised", "distill"): self._of_classes(),
            ("masked",): {"--target": learn.target},
            ("masked", "mae"): {"--mask-ratio": learn.mask_ratio},
            ("mae",): decoder,
        }
        for objectives, settings in owners.items():
            for name, value in settings.items():
                if value is not None and learn.objective not in objectives:
                    raise ConfigError(
                        f"{name} {value} has a meaning with --objective {' or '.join(objectives)} "
                        "only; leave it out"
                    )

    def _of_labels(self) -> dict[str, object]:
        """Settings of labels, and of a head for them."""
        return {
            "--loss": self.learn.loss,
            "--head": self.learn.head,
            "--label-smoothing": self.recipe.label_smoothing or None,
            "--balance": None if self.recipe.balance == "none" else self.recipe.balance,
        }

    def _of_classes(self) -> dict[str, object]:
        """Settings of a classifier, which learning without classes has not."""
        recipe, augment, model = self.recipe, self.augment, self.model_settings
        return {
            "--representation-size": model.representation_size,
            "--head-bias": model.head_bias,
            "--train": None if recipe.train == "all" else recipe.train,
            "--mixup": augment.mixup or None,
            "--cutmix": augment.cutmix or None,
        }


# A run's settings as one flat table, and back: what config.yaml holds and --config takes.


ConfigT = TypeVar("ConfigT")

# How a run is started and where it goes says nothing about what it computes: not in config.yaml.
UNSAVED_SETTINGS = (
    *("output", "resume", "overwrite", "config", "json", "explain", "offline"),
    "named",  # of PlainRecipeSettings: it has done its work before the first step
)
# What may differ when a run goes on: it changes where and how fast, not what is computed.
CHANGEABLE_ON_RESUME = {
    *UNSAVED_SETTINGS,
    *("workers", "device", "parallel", "checkpoint_activations", "cache_size", "frozen"),
    "max_bad",  # a run that was refused for unreadable images can be gone on with
}


def flatten_config(config: Any) -> dict[str, Any]:
    """The fields of a dataclass and of the groups in it, in order; no two have the same name."""
    flat: dict[str, Any] = {}
    for setting in dataclasses.fields(config):
        value = getattr(config, setting.name)
        entries = (
            flatten_config(value) if dataclasses.is_dataclass(value) else {setting.name: value}
        )
        assert not entries.keys() & flat.keys(), entries.keys() & flat.keys()
        flat.update(entries)
    return flat


def unflatten_config(default: ConfigT, settings: Mapping[str, Any], where: str = "") -> ConfigT:
    """`default` with these fields replaced; raises ConfigError for a name that it has not."""
    check_setting_names(default, settings, where)
    return _replace_fields(default, settings)


def check_setting_names(default: Any, settings: Iterable[str], where: str = "") -> None:
    """Raise ConfigError for a name that no field has, with the nearest one."""
    known = flatten_config(default)
    for name in settings:
        if name not in known:
            place = f"{where}: " if where else ""
            raise ConfigError(f"{place}unknown setting {name!r}{did_you_mean(name, known)}")


def _replace_fields(default: ConfigT, settings: Mapping[str, Any]) -> ConfigT:
    changes: dict[str, Any] = {}
    for setting in dataclasses.fields(default):  # type: ignore[arg-type]
        value = getattr(default, setting.name)
        if dataclasses.is_dataclass(value):
            changes[setting.name] = _replace_fields(value, settings)
        elif setting.name in settings:
            new = settings[setting.name]
            changes[setting.name] = tuple(new) if isinstance(new, list) else new
    return dataclasses.replace(default, **changes)  # type: ignore[type-var]


def collect_changed_settings(config: Any) -> dict[str, Any]:
    """Collect the settings that the user made, except UNSAVED_SETTINGS; lists for tuples."""
    default = flatten_config(type(config)())
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in flatten_config(config).items()
        if name not in UNSAVED_SETTINGS and value != default[name]
    }


def config_to_yaml(config: Any) -> str:
    """The settings, one a line, in the order of the help."""
    flat = {
        name: value
        for name, value in flatten_config(config).items()
        if name not in UNSAVED_SETTINGS
    }
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in flat.items()}
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True)


def read_config_yaml(path: Path) -> dict[str, Any]:
    """The table in a YAML file; raises ConfigError where there is none."""
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML: {reason}") from error
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise ConfigError(f"{path} must hold settings as 'name: value' lines")
    for name, value in table.items():
        if isinstance(value, dict):
            raise ConfigError(f"{path}: {name} holds a table, where a setting has one value")
    return {name.replace("-", "_"): value for name, value in table.items()}
