"""The ground floor: errors, noise, files, device."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from patchwords import errors
from patchwords.device import choose_device, has_fast_bf16
from patchwords.errors import ConfigError, Interrupted, PatchwordsError, did_you_mean
from patchwords.files import write_atomically
from patchwords.rng import derive_seed, numpy_generator, torch_generator


@pytest.mark.parametrize(
    ("word", "choices", "clause"),
    [
        ("rose", ["daisy", "roses"], "; did you mean 'roses'?"),
        ("VIT-B/16", ["ViT-B/16"], "; did you mean 'ViT-B/16'?"),
        ("xyzzy", ["daisy", "rose"], "; choose from daisy, rose"),
        ("xyzzy", [f"class{i}" for i in range(13)], ""),
        ("xyzzy", [], ""),
    ],
)
def test_did_you_mean(word: str, choices: list[str], clause: str) -> None:
    assert did_you_mean(word, iter(choices)) == clause


def test_every_error_of_the_user_exits_with_2_but_for_a_stop() -> None:
    family = [
        c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, PatchwordsError)
    ]
    assert len(family) == 9
    assert {c.exit_code for c in family} == {2}
    assert Interrupted("stopped", 143).exit_code == 143
    assert Interrupted("stopped").exit_code == 130


def test_noise_is_known() -> None:
    """Written down: another value would make every seed mean another run."""
    assert derive_seed(0) == 2631537505891389924
    assert derive_seed(0, "epoch", 1) == 65714578822508956
    assert derive_seed(7, "init", "head.linear.weight") == 6913458365789560411


def test_noise_tells_places_apart() -> None:
    places = [
        (0,),
        (1,),
        (0, 1),
        (0, "1"),
        (0, 1, 1),
        (0, 11),
        (0, "a", "b"),
        (0, "ab"),
        (0, "a', 'b"),
        (-1,),
    ]
    values = {derive_seed(*place) for place in places}
    assert len(values) == len(places)
    assert all(0 <= value < 2**63 for value in values)
    assert derive_seed(np.int64(5), "x") == derive_seed(
        5, "x"
    )  # a seed from an array is the same seed


def test_noise_does_not_depend_on_the_process() -> None:
    """Python salts its own hashes anew in each."""
    program = "from patchwords.rng import derive_seed; print(derive_seed(3, 'x', 4))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert int(other.stdout) == derive_seed(3, "x", 4)


def test_generators_belong_to_their_place_and_disturb_no_other() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first, again = numpy_generator(0, "x").random(5), numpy_generator(0, "x").random(5)
    assert first.tolist() == again.tolist() != numpy_generator(0, "y").random(5).tolist()
    draw = torch.rand(5, generator=torch_generator(0, "x"))
    assert torch.equal(draw, torch.rand(5, generator=torch_generator(0, "x")))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


def test_noise_is_evenly_spread() -> None:
    draws = np.array([derive_seed(0, "sample", i) for i in range(4096)], dtype=np.float64) / 2**63
    # The mean of 4,096 uniform numbers has a standard error of 0.0045; five of them.
    assert draws.mean() == pytest.approx(0.5, abs=0.0225)
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 5 / 64  # five standard errors


def test_write_atomically(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "ä")
    assert path.read_bytes() == "ä".encode()
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full: .* was not written; free some space"),
        (errno.EROFS, "cannot be written: Read-only file system; choose another --output"),
        (errno.EACCES, "cannot be written: Permission denied; choose another --output"),
        (errno.EIO, "cannot be written: Input/output error"),
    ],
)
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ConfigError, match=reason) as caught:
        write_atomically(path, "new")
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        write_atomically(tmp_path / "file" / "x.json", "new")


def test_choose_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    assert choose_device("cpu", "fp32").precision == "fp32"
    assert choose_device("cpu", "bf16").precision == "bf16"
    assert choose_device("cpu", "auto").bf16 == has_fast_bf16(cuda=False)
    with pytest.raises(ConfigError, match="--device cuda: this machine has no usable GPU"):
        choose_device("cuda")


def test_precision_is_that_of_products() -> None:
    x = torch.ones(3, 3)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with choose_device("cpu", precision).autocast():
            assert (x @ x).dtype == dtype


def test_the_device_describes_itself() -> None:
    about = choose_device("cpu", "fp32").describe()
    assert (about["type"], about["precision"]) == ("cpu", "fp32")
    assert about["threads"] == torch.get_num_threads()
    assert about["name"]
