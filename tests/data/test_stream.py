"""Training from shards far away: every sample once, in an order of seed and epoch alone."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from patchwords import download as remote
from patchwords.cli import main
from patchwords.data.dataset import ImageDataset
from patchwords.data.loader import EvalTransform, ImageBatch, load_batches
from patchwords.data.open import open_data
from patchwords.data.preprocess import Preprocess
from patchwords.data.sampler import draw_epoch_order, draw_shard_groups, iterate_batch_keys
from patchwords.data.shards.store import ShardReader
from patchwords.data.shards.stream import build_shard_prefetcher, check_shard_cache_size
from patchwords.data.splits import fingerprint_dataset, group_exact_duplicates, split_dataset
from patchwords.errors import ConfigError, DataError, StorageError
from patchwords.files import file_lock
from storage import LABELS, Server, png, serving, write_set, write_tar

COUNTS = (7, 5, 11, 3, 7, 2, 5)  # images of the shards: 40
N, BATCH, GROUP, SEED = sum(COUNTS), 6, 2, 4
VIEW = EvalTransform(Preprocess(image_size=(5, 6)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATCHWORDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "FIRST_RETRY_PAUSE", 0.001)
    return tmp_path / "cache"


@pytest.fixture(params=["tar", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "far").mkdir()
    with serving(tmp_path / "far") as found:
        yield found


def spec_of(server: Server, kind: str = "tar", counts: tuple[int, ...] = COUNTS) -> str:
    write_set(server.folder, counts, kind)
    return f"{server.address}/x-{{0..{len(counts) - 1}}}.{kind}"


def batches(
    examples: ImageDataset, steps: range, rank: int = 0, world: int = 1, workers: int = 0
) -> Iterator[ImageBatch]:
    plan = iterate_batch_keys(
        len(examples),
        BATCH,
        SEED,
        steps.start,
        steps.stop,
        rank=rank,
        world=world,
        shards=examples.shards,
        group=GROUP,
    )
    ahead = build_shard_prefetcher(examples, SEED, GROUP)
    return load_batches(examples, VIEW, plan, workers, reached=ahead)


def seen(found: Iterator[ImageBatch]) -> list[list[int]]:
    """The number of each image, from its pixels: what was read, not what was asked for."""
    numbers = []
    for batch in found:
        assert not batch.bad
        numbers.append(batch.images[:, 0, 0, 0].tolist())
        assert [number % 3 for number in numbers[-1]] == batch.targets.tolist()
    return numbers


def empty(folder: Path) -> None:
    for entry in os.scandir(folder / "shards"):
        os.unlink(entry)


def in_cache(folder: Path) -> int:
    with file_lock(folder / "shards/.room"):
        return sum(entry.stat().st_size for entry in os.scandir(folder / "shards"))


def test_what_is_opened(server: Server, kind: str, own_cache: Path) -> None:
    data = open_data(spec_of(server, kind))
    examples = data.splits["all"]
    assert (data.kind, data.classes, len(examples)) == ("stream", LABELS, N)
    assert examples.keys[7] == ("x-1.tar:007.png" if kind == "tar" else "x-1.parquet:0")
    assert [examples.read(i) for i in range(N)] == [png(i) for i in range(N)]
    assert examples.sizes.tolist() == [len(png(i)) for i in range(N)]
    assert data.notes[0].startswith("7 shards (0.00 GiB) fetched as they are wanted, into ")
    assert set(server.asked.values()) == {1}  # for index and images together
    again = open_data(data.source)
    assert fingerprint_dataset(again) == fingerprint_dataset(data)
    assert set(server.asked.values()) == {1}  # the index is kept


def test_near_and_far_are_the_same_data(server: Server) -> None:
    far = open_data(spec_of(server))
    near = open_data(str(server.folder / "x-{0..6}.tar"))
    assert fingerprint_dataset(far) == fingerprint_dataset(near)
    assert np.array_equal(far.splits["all"].shards, near.splits["all"].shards)


def test_an_epoch_is_a_permutation_by_groups_of_shards() -> None:
    shards = np.repeat(np.arange(len(COUNTS)), COUNTS)
    orders = {}
    for epoch in range(3):
        order = draw_epoch_order(SEED, epoch, N, shards=shards, group=GROUP)
        assert sorted(order.tolist()) == list(range(N))
        groups = [set(group.tolist()) for group in draw_shard_groups(SEED, epoch, shards, GROUP)]
        assert [len(group) for group in groups] == [2, 2, 2, 1]
        place = 0
        for group in groups:
            size = sum(COUNTS[shard] for shard in group)
            assert set(shards[order[place : place + size]].tolist()) == group
            place += size
        orders[epoch] = order.tolist()
    assert len({tuple(order) for order in orders.values()}) == 3
    whole = draw_epoch_order(SEED, 1, N, shards=shards, group=len(COUNTS))
    assert np.array_equal(whole, draw_epoch_order(SEED, 1, N))  # one group is no group


def test_within_a_group_every_order_may_come() -> None:
    """The first of an epoch, over 4,000 seeds: each of 5 samples equally often, in 2 groups."""
    shards = np.array([0, 0, 1, 2, 2])
    first = [draw_epoch_order(seed, 0, 5, shards=shards, group=2)[0] for seed in range(4000)]
    # Pairs of shards are drawn for the first group, and of its samples one: by hand
    chances = [(1 / 3 + 1 / 4) / 3] * 2 + [2 / 9] + [(1 / 3 + 1 / 4) / 3] * 2
    np.testing.assert_allclose(np.bincount(first) / 4000, chances, atol=0.03)  # 4 sigma


@pytest.mark.parametrize("cache_gib", [1.0, 6000 / 2**30 * 11])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (2, 0), (3, 0), (3, 2)])
def test_every_sample_once_an_epoch(
    server: Server, world: int, workers: int, cache_gib: float
) -> None:
    """Two epochs: whoever reads them, whatever the cache holds, the order is the plan's."""
    data = open_data(spec_of(server), cache_size=cache_gib)
    examples = data.splits["all"]
    steps = range(2 * N // BATCH + 1)
    parts = [seen(batches(examples, steps, rank, world, workers)) for rank in range(world)]
    flat = [number for shares in zip(*parts, strict=True) for share in shares for number in share]
    want = [draw_epoch_order(SEED, e, N, shards=examples.shards, group=GROUP) for e in range(3)]
    assert flat == np.concatenate(want)[: len(flat)].tolist()
    assert sorted(flat[:N]) == sorted(flat[N : 2 * N]) == list(range(N))


def test_the_cache_keeps_its_bound(server: Server, kind: str, own_cache: Path) -> None:
    spec = spec_of(server, kind)
    reader = open_data(spec).splits["all"].reader
    assert isinstance(reader, ShardReader)
    two = sum(sorted(shard.needs for shard in reader.shards.shards)[-GROUP:])
    bound = 2 * two
    empty(own_cache)
    examples = open_data(spec, cache_size=bound / 2**30).splits["all"]
    assert sum(shard.needs for shard in reader.shards.shards) > bound
    most = 0
    for _ in batches(examples, range(0, 14)):
        most = max(most, in_cache(own_cache))
    assert 0 < most <= bound
    check_shard_cache_size(examples, GROUP)
    with pytest.raises(ConfigError, match=r"^--cache-size .* of 7 shards mixed"):
        check_shard_cache_size(examples, 7 * GROUP)


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_in_the_middle(server: Server, workers: int) -> None:
    examples = open_data(spec_of(server)).splits["all"]
    whole = seen(batches(examples, range(17), workers=workers))
    for start in (1, 5, 7, 16):
        assert seen(batches(examples, range(start, 17), workers=workers)) == whole[start:]


def test_the_next_group_comes_ahead(server: Server, own_cache: Path) -> None:
    spec = spec_of(server)
    open_data(spec)
    empty(own_cache)
    server.asked.clear()
    examples = open_data(spec).splits["all"]
    assert examples.shards is not None
    groups = [g.tolist() for g in draw_shard_groups(SEED, 0, examples.shards, GROUP)]
    ahead = build_shard_prefetcher(examples, SEED, GROUP)
    assert ahead is not None
    order = draw_epoch_order(SEED, 0, N, shards=examples.shards, group=GROUP)
    place = next(iter(iterate_batch_keys(N, 1, SEED, 0, 1, shards=examples.shards, group=GROUP)))[0]
    assert place.sample == order[0]
    ahead(place)
    assert ahead.thread is not None
    ahead.thread.join()
    first_two = {f"x-{shard}.tar" for shard in groups[0] + groups[1]}
    assert server.asked == dict.fromkeys(first_two, 1)
    list(batches(examples, range(2 * N // BATCH)))
    assert set(server.asked.values()) == {1}  # what fits into the cache is fetched once for ever
    near = open_data(str(server.folder / "x-{0..6}.tar")).splits["all"]
    assert build_shard_prefetcher(near, SEED, GROUP) is None


def test_storage_out_of_reach_is_no_bad_image(server: Server, own_cache: Path) -> None:
    spec = spec_of(server)
    open_data(spec)
    empty(own_cache)
    server.faults = [503] * 999
    for workers in (0, 2):
        found = batches(open_data(spec).splits["all"], range(5), workers=workers)
        with pytest.raises(StorageError) as caught:
            list(found)
        assert str(caught.value).startswith(f"{server.address}/x-")
        assert "cannot be read after 5 tries: the server says 503" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_member_that_is_no_image_is_a_bad_image(server: Server) -> None:
    spec = spec_of(server, counts=(3, 4))
    path = server.folder / "x-1.tar"
    data = bytearray(path.read_bytes())
    at = data.index(png(4))
    data[at : at + 8] = b"no image"
    path.write_bytes(data)
    examples = open_data(spec).splits["all"]
    bad = [each for batch in batches(examples, range(1)) for each in batch.bad]
    bad += [each for batch in batches(examples, range(1, 2)) for each in batch.bad]
    assert {examples.keys[index] for index, _ in bad} == {"x-1.tar:004.png"}


def test_shards_that_are_damaged_or_not_there(server: Server, kind: str) -> None:
    spec = spec_of(server, kind)
    path = server.folder / f"x-3.{kind}"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - (3000 if kind == "parquet" else 9000)])
    says = r"not a parquet file, or one cut short" if kind == "parquet" else r"after \d whole image"
    with pytest.raises(DataError, match=rf"/x-3.{kind}: .*{says}") as caught:
        open_data(spec)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(StorageError, match=r"/x-3.*the server says 404"):
        open_data(f"{server.address}/x-3.{kind}?anew")


def test_a_tar_cut_within_a_header_and_one_without_an_end(server: Server) -> None:
    whole = write_tar(server.folder / "x.tar", 0, 3).read_bytes()
    cut = whole.index(png(2)) + 512 * -(-len(png(2)) // 512)  # the header of the last label
    (server.folder / "y.tar").write_bytes(whole[: cut + 100])
    for spec in (f"{server.address}/y.tar", str(server.folder / "y.tar")):
        with pytest.raises(DataError, match=r"y.tar: damaged or cut short after 3 whole images"):
            open_data(spec)
    (server.folder / "z.tar").write_bytes(whole.rstrip(b"\0").ljust(cut + 1024, b"\0"))
    for spec in (f"{server.address}/z.tar", str(server.folder / "z.tar")):
        notes = open_data(spec, need_labels=False).notes
        assert [note for note in notes if "z.tar has no end mark" in note], notes


def test_a_shard_that_is_another_now(server: Server, kind: str, own_cache: Path) -> None:
    spec = spec_of(server, kind, counts=(3, 4))
    examples = open_data(spec).splits["all"]
    write_set(server.folder, (5, 4), kind)
    assert examples.read(0) == png(0)  # still in the cache
    empty(own_cache)
    with pytest.raises(StorageError, match=r"x-0.* but had .* when it was indexed; put the former"):
        examples.read(0)
    assert main(["index", spec, "--anew"]) == 0
    assert len(open_data(spec).splits["all"]) == 9


def test_what_the_cache_holds_of_a_former_state_is_fetched_anew(server: Server, kind: str) -> None:
    spec = spec_of(server, kind, counts=(3, 4))
    assert open_data(spec).splits["all"].read(0) == png(0)
    write_set(server.folder, (5, 4), kind)
    near = str(server.folder / f"x-{{0..1}}.{kind}")
    assert main(["index", near, "--output", str(server.folder / "set.index.jsonl")]) == 0
    examples = open_data(f"{server.address}/set.index.jsonl").splits["all"]
    assert [examples.read(i) for i in range(9)] == [png(i) for i in range(9)]


def test_index_file(server: Server, kind: str, tmp_path: Path, own_cache: Path) -> None:
    spec = spec_of(server, kind)
    near = str(server.folder / f"x-{{0..6}}.{kind}")
    index = server.folder / "set.index.jsonl"
    assert main(["index", near, "--output", str(index)]) == 0
    assert json.loads(index.read_text().splitlines()[0])["shard"] == f"x-0.{kind}"
    far = open_data(f"{server.address}/set.index.jsonl")
    assert server.asked == {"set.index.jsonl": 1}  # no shard is read to open the data
    assert fingerprint_dataset(far) == fingerprint_dataset(open_data(spec))
    examples = far.splits["all"]
    assert [examples.read(i) for i in range(N)] == [png(i) for i in range(N)]
    beside = open_data(str(index)).splits["all"]
    assert [beside.read(i) for i in range(N)] == [png(i) for i in range(N)]
    assert main(["index", near, "--output", str(index)]) == 2  # not over what is there
    assert main(["index", near, "--output", str(tmp_path / "x.txt")]) == 2
    index.write_text(index.read_text()[:-30])
    with pytest.raises(DataError, match=r"set.index.jsonl, line 7: not an index of shards"):
        open_data(str(index))


def test_object_storage_and_several_sources(tmp_path: Path, server: Server) -> None:
    write_set(server.folder, COUNTS)
    storage = fsspec.filesystem("memory")
    for number, name in enumerate(("train-0", "train-1", "val-0")):
        storage.pipe(f"/set/{name}.tar", (server.folder / f"x-{number}.tar").read_bytes())
    data = open_data("memory://set/train-*.tar::memory://set/val-0.tar")
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 12,
        "validation": 11,
    }
    assert data.splits["train"].read(8) == png(8)


def test_what_is_held_out_lies_in_few_shards(server: Server) -> None:
    spec = spec_of(server, counts=(12,) * 10)
    data = split_dataset(open_data(spec), seed=3, validation=0.1, test=0.1)
    for split in ("validation", "test"):
        shards = data.splits[split].shards
        assert shards is not None
        assert len(data.splits[split]) == (12 if split == "test" else 11)
        assert len(np.unique(shards)) <= 3  # of 10
    assert sorted(key for part in data.splits.values() for key in part.keys) == sorted(
        open_data(spec).splits["all"].keys
    )


def test_copies_are_known_by_their_digests(server: Server) -> None:
    write_tar(server.folder / "x-0.tar", 0, 4)
    write_tar(server.folder / "x-1.tar", 2, 4)
    server_asked = open_data(f"{server.address}/x-{{0..1}}.tar").splits["all"]
    before = dict(server.asked)
    assert group_exact_duplicates(server_asked).tolist() == [0, 1, 2, 3, 2, 3, 6, 7]
    assert server.asked == before
    near = open_data(str(server.folder / "x-{0..1}.tar")).splits["all"]
    assert group_exact_duplicates(near).tolist() == [0, 1, 2, 3, 2, 3, 6, 7]


def test_faults_of_what_is_asked_for(server: Server) -> None:
    for spec, says in {
        f"{server.address}/x.tar.gz": "a compressed tar",
        f"{server.address}/x.zip": "shards are .tar or .parquet files",
        "memory://none/*.tar": "no file matches",
        "nothing.index.jsonl": "cannot be read: No such file",
    }.items():
        with pytest.raises(DataError, match=says):
            open_data(spec)


def test_kill_9_in_the_middle_harms_nobody(server: Server, own_cache: Path) -> None:
    spec = spec_of(server)
    bound = 60_000 / 2**30
    child = os.fork()
    if child == 0:
        try:
            examples = open_data(spec, cache_size=bound).splits["all"]
            for _ in batches(examples, range(1_000_000)):
                pass
        finally:
            os._exit(1)
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert in_cache(own_cache)  # it had come so far
    examples = open_data(spec, cache_size=bound).splits["all"]
    three_epochs = np.concatenate(seen(batches(examples, range(20), workers=2)))
    assert np.bincount(three_epochs).tolist() == [3] * N
    assert in_cache(own_cache) <= 60_000


def test_labels_may_lack_where_none_are_needed(server: Server) -> None:
    with tarfile.open(server.folder / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.size = len(png(1))
        tar.addfile(info, io.BytesIO(png(1)))
    spec = f"{server.address}/x.tar"
    data = open_data(spec, need_labels=False)
    assert (data.classes, data.splits["all"].labels.tolist()) == ((), [-1])
    with pytest.raises(DataError, match=r"a.png has no label; put a.cls or a.json"):
        open_data(spec)
