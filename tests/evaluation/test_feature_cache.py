"""Features on disk: the same as without, once, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_frozen import (
    BF16,
    CPU,
    MEBIBYTE,
    PREPROCESS,
    Counted,
    cache,
    images,
    tiny,
    torn,
)

from patchwords.data import feature_store as feature_file
from patchwords.data.feature_store import FeatureStore
from patchwords.distributed import World
from patchwords.errors import ConfigError, DataError
from patchwords.evaluation.probes import cache as feature_cache
from patchwords.evaluation.probes import cache as feature_key
from patchwords.evaluation.probes.cache import (
    FeatureCache,
    FeaturePass,
    compute_cache_key,
    describe_feature_inputs,
    digest_images,
    extract_uncached_features,
)
from patchwords.evaluation.probes.features import extract_example_features

COUNT = 64 * 3 + 17  # three whole blocks and a part of one


def arrays(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def get(here: FeatureCache, model: torch.nn.Module, count: int = COUNT, first: int = 0):  # type: ignore[no-untyped-def]
    return here.represent(model, images(count, first), PREPROCESS, CPU, workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_they_are_those_of_a_pass_and_computed_once(tmp_path: Path, workers: int) -> None:
    model, seen = Counted(), []
    direct = extract_example_features(tiny(), images(COUNT), PREPROCESS, CPU, 0)
    found = cache(tmp_path).represent(
        model, images(COUNT), PREPROCESS, CPU, workers, lambda *at: seen.append(at)
    )
    assert np.array_equal(found.values, direct.values)
    assert found.values.dtype == np.float32
    assert np.array_equal(found.indices, np.arange(COUNT))
    assert np.array_equal(found.labels, images(COUNT).labels)
    assert isinstance(found.values, np.memmap)
    assert {total for _, total in seen} == {COUNT}
    asked = model.images
    assert asked == COUNT + 1  # and one black image, for the size
    again = get(cache(tmp_path), model)
    assert model.images == asked
    assert np.array_equal(again.values, direct.values)


def test_bf16_is_kept_in_half_and_is_the_same_without_a_cache(tmp_path: Path) -> None:
    model = tiny()
    kept = cache(tmp_path).represent(model, images(COUNT), PREPROCESS, BF16, 0)
    anew = extract_uncached_features(model, images(COUNT), PREPROCESS, BF16, 0)
    assert kept.values.dtype == np.float16
    assert np.array_equal(kept.values, anew.values)
    plain = extract_example_features(model, images(COUNT), PREPROCESS, BF16, 0)
    # float16 has 11 significant bits
    np.testing.assert_allclose(kept.values, plain.values, rtol=2**-11, atol=1e-7)


def test_what_16_bits_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match=r"features reach 7e\+04, .* use --precision fp32"):
        feature_cache.to_stored_dtype(np.array([[1.0, 7e4]], np.float32), "bf16")
    assert feature_cache.to_stored_dtype(np.array([[7e4]], np.float32), "fp32")[0, 0] == 7e4


def test_every_part_of_the_key_counts(tmp_path: Path) -> None:
    model, other = tiny(), tiny(seed=2)
    normalised = replace(PREPROCESS, mean=(0.4, 0.5, 0.5))
    keys = [
        compute_cache_key(describe_feature_inputs(*of))
        for of in (
            (model, images(9), PREPROCESS, "fp32"),
            (other, images(9), PREPROCESS, "fp32"),
            (model, images(8), PREPROCESS, "fp32"),
            (model, images(9, first=1), PREPROCESS, "fp32"),
            (model, images(9).select(range(8, -1, -1)), PREPROCESS, "fp32"),
            (model, torn(images(9), [4]), PREPROCESS, "fp32"),  # of the same name and length
            (model, images(9), normalised, "fp32"),
            (model, images(9), PREPROCESS, "bf16"),
        )
    ]
    assert len({*keys}) == len(keys)
    assert keys[0] == compute_cache_key(
        describe_feature_inputs(tiny(), images(9), PREPROCESS, "fp32")
    )
    relabelled = replace(images(9), labels=np.zeros(9, dtype=np.int64))
    assert keys[0] == compute_cache_key(
        describe_feature_inputs(model, relabelled, PREPROCESS, "fp32")
    )


def test_one_weight_is_enough_for_another_key() -> None:
    model = tiny()
    before = feature_key.digest_weights(model)
    with torch.no_grad():
        model.encoder.norm.bias[3] += 1e-7
    assert feature_key.digest_weights(model) != before


def test_of_large_data_a_sample_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_key, "MAX_FULLY_HASHED_BYTES", 1000)
    monkeypatch.setattr(feature_key, "NUM_HASHED_IMAGES", 3)
    whole, read = images(101), []
    plain = digest_images(whole)
    reader = whole.reader
    counted = replace(whole, reader=lambda row: read.append(row) or reader(row))
    assert digest_images(counted) == plain
    assert read == [0, 50, 100]
    renamed = replace(whole, keys=[*whole.keys[:70], "else", *whole.keys[71:]])
    assert digest_images(renamed) != plain
    read.clear()
    digests = np.arange(101, dtype=np.uint64)
    found = digest_images(replace(counted, digests=digests))
    digests[70] = 7
    assert digest_images(replace(counted, digests=digests)) != found
    assert not read


def test_images_that_cannot_be_read_have_no_row(tmp_path: Path) -> None:
    bad = torn(images(COUNT), [2, *range(64, 128), 200])  # a whole block among them
    direct = extract_example_features(tiny(), bad, PREPROCESS, CPU, 0)
    for _ in range(2):  # computed, and found
        found = cache(tmp_path).represent(tiny(), bad, PREPROCESS, CPU, 0)
        assert np.array_equal(found.indices, direct.indices)
        assert np.array_equal(found.labels, direct.labels)
        assert np.array_equal(found.values, direct.values)
        assert [index for index, _ in found.bad] == [2, *range(64, 128), 200]
        assert found.bad == direct.bad
    model = tiny()
    anew = extract_uncached_features(model, bad, PREPROCESS, CPU, 0)
    assert anew.bad == direct.bad


def stop() -> None:
    raise KeyboardInterrupt


def test_a_stopped_pass_goes_on_where_it_was(tmp_path: Path) -> None:
    bad = torn(images(COUNT), [1])
    stopped = Counted(most=1 + 63 + 64, then=stop)
    with pytest.raises(KeyboardInterrupt):
        cache(tmp_path).represent(stopped, bad, PREPROCESS, CPU, 0)
    [folder] = arrays(tmp_path)
    assert not FeatureStore(folder).is_whole
    rest = Counted()
    found = cache(tmp_path).represent(rest, bad, PREPROCESS, CPU, 0)
    assert rest.images == 1 + 64 + 17  # one black image, for the size
    direct = extract_example_features(tiny(), bad, PREPROCESS, CPU, 0)
    assert np.array_equal(found.values, direct.values)
    assert found.bad == direct.bad
    assert {path.name for path in folder.iterdir()} == {"features.npy", "about.json"}


def test_a_killed_pass_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the third block: the two before are on the disk, and the lock is free."""
    monkeypatch.setattr(feature_file, "FLUSH_SECONDS", 0.0)
    bad = torn(images(COUNT), [1, 150])
    model = Counted(most=1 + 63 + 64, then=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside other threads
        child = os.fork()
    if child == 0:
        try:
            cache(tmp_path).represent(model, bad, PREPROCESS, CPU, 0)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    [folder] = arrays(tmp_path)
    with open(folder / "bad.jsonl", "a") as file:  # as a kill in the middle of a line leaves it
        file.write('\n[3, "ha')
    assert FeatureStore(folder).blocks_left().tolist() == [2, 3]
    rest = Counted()
    found = cache(tmp_path).represent(rest, bad, PREPROCESS, CPU, 0)
    assert rest.images == 1 + 63 + 17
    direct = extract_example_features(tiny(), bad, PREPROCESS, CPU, 0)
    assert np.array_equal(found.values, direct.values)
    assert found.bad == direct.bad


def test_two_at_a_time_compute_once(tmp_path: Path) -> None:
    models, found = [Counted(), Counted()], {}

    def ask(number: int) -> None:
        found[number] = get(cache(tmp_path), models[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(model.images for model in models) == [0, COUNT + 1]
    assert np.array_equal(found[0].values, found[1].values)


def test_the_shares_of_processes_are_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three fills its blocks, one of them after a stop; together nothing is done twice."""
    bad = torn(images(COUNT), [5, 70])
    here, model = cache(tmp_path), Counted()
    about = describe_feature_inputs(model, bad, PREPROCESS, "fp32")
    file = FeatureStore(tmp_path / compute_cache_key(about))
    file.begin(COUNT, 14, np.dtype(np.float32))
    asked = []
    for rank in (2, 0, 1):
        monkeypatch.setattr(feature_cache, "get_world", lambda rank=rank: World(rank=rank, size=3))
        before = model.images
        FeaturePass(model, bad, PREPROCESS, CPU, 0).fill(file, lambda done, total: None)
        asked.append(model.images - before)
    assert asked == [64, 63 + 17, 63]
    file.finish(about)
    monkeypatch.undo()
    found = here.represent(model, bad, PREPROCESS, CPU, 0)
    assert model.images == sum(asked)
    direct = extract_example_features(tiny(), bad, PREPROCESS, CPU, 0)
    assert np.array_equal(found.values, direct.values)
    assert found.bad == direct.bad


def test_what_was_used_longest_ago_is_removed_first(tmp_path: Path) -> None:
    each = 64 * 14 * 4
    here = cache(tmp_path, bound=3 * each)
    firsts = (0, 100, 200)
    for first in firsts:
        get(here, tiny(), 64, first)
    assert len(arrays(tmp_path)) == 2  # a description beside each array counts as well
    names = {
        first: tmp_path
        / compute_cache_key(describe_feature_inputs(tiny(), images(64, first), PREPROCESS, "fp32"))
        for first in (0, 100, 200, 300)
    }
    assert not names[0].exists()
    for age, first in enumerate((200, 100)):  # 100 is older than 200
        at = 10**9 * (1000 - age)
        os.utime(names[first] / "about.json", ns=(at, at))
    get(here, tiny(), 64, 100)  # but used again
    kept = get(here, tiny(), 64, 100)
    get(here, tiny(), 64, 300)
    assert {path.name for path in arrays(tmp_path)} == {names[100].name, names[300].name}
    direct = extract_example_features(tiny(), images(64, 100), PREPROCESS, CPU, 0)
    held = here.lock(FeatureStore(names[100]))
    with held:  # in use: not removed, though it is the oldest
        get(here, tiny(), 64, 200)
    assert names[100].exists()
    get(here, tiny(), 64, 0)
    assert np.array_equal(kept.values, direct.values)  # mapped, whatever became of the file


def test_what_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"features of 64 images take 0\.0 GiB, .* --cache none"):
        get(cache(tmp_path, bound=3000), tiny(), 64)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        get(cache(tmp_path / "file"), tiny(), 64)
    get(cache(tmp_path), tiny(), 64)
    [folder] = arrays(tmp_path)
    whole = (folder / "features.npy").read_bytes()
    (folder / "features.npy").write_bytes(whole[:100])
    with pytest.raises(ConfigError, match=r"is damaged .* delete it"):
        get(cache(tmp_path), tiny(), 64)
    assert json.loads((folder / "about.json").read_text())["images"] == 64
    assert cache(tmp_path).bound == MEBIBYTE
