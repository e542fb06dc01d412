"""The record of a run, written before its first step: data, environment and settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from patchwords.data.dataset import DatasetSplits
from patchwords.data.doctor.contents import write_fingerprints
from patchwords.data.splits import fingerprint_dataset, write_splits
from patchwords.device import Device
from patchwords.distributed import World, get_launch_id, get_world
from patchwords.files import write_atomically
from patchwords.training.config import FinetuneConfig, collect_changed_settings, config_to_yaml
from patchwords.training.engine.countdown import TimeBudget, write_time_budget
from patchwords.training.logs.run_folder import (
    RunFolder,
    describe_data,
    describe_environment,
    find_free_path,
    read_requested_settings,
    write_json,
)


def choose_output_folder(data: str, model: str) -> Path:
    """Choose runs/DATA-MODEL, with a number where that is taken."""
    model = model.split(" with ", maxsplit=1)[0]
    stem = Path(data.removeprefix("hf:").rstrip("/")).stem or "data"
    return find_free_path(Path("runs") / f"{stem}-{model.replace('/', '-')}")


def format_launch_prefix(here: World) -> str:
    """The start of a command line that runs as several processes: torchrun; else empty."""
    if here.size == 1:
        return ""
    nodes = "" if here.size == here.local_size else "... "  # what says where the others are
    return f"torchrun {nodes}--nproc-per-node {here.local_size} -m "


def write_run_record(
    folder: RunFolder,
    config: FinetuneConfig,
    asked: FinetuneConfig,
    data: DatasetSplits,
    device: Device,
    budget: TimeBudget | None = None,
) -> None:
    """Write what the run is, before it starts."""
    if budget is not None:
        write_time_budget(folder.budget, budget)
    write_splits(folder.splits, data)
    write_fingerprints(folder.fingerprints, data)
    write_json(folder.data, describe_data(data, {}))
    about = {"source": data.source, "kind": data.kind, "fingerprint": fingerprint_dataset(data)}
    write_run_settings(folder, config, asked, about, device)


def write_run_settings(
    folder: RunFolder,
    config: FinetuneConfig,
    asked: FinetuneConfig,
    about: Mapping[str, str],
    device: Device,
) -> None:
    """Write the settings, as asked for and as resolved, and the environment; `about` is the data."""
    record = describe_environment(device.describe(), about)
    record["processes"] = get_world().size
    record["launch"] = get_launch_id()  # by which a restart knows its own run
    record["started"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    # What was asked for at first, so that the same command can go on with the run.
    record["asked"] = (
        read_requested_settings(folder) if config.resume else collect_changed_settings(asked)
    )
    write_json(folder.environment, record)
    write_atomically(folder.config, config_to_yaml(config))  # last: it marks a run that can go on
