"""What every test shares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples in every run, however slow the machine: a failure is one of the change.
settings.register_profile("tests", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("tests")

TESTS = Path(__file__).parent

# What a developer has in the caches changes no test, and no test asks the network. Set before
# the hub's library reads it; the commands that tests start inherit it.
EMPTY_CACHE = tempfile.TemporaryDirectory(prefix="empty-cache-")
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": EMPTY_CACHE.name}
os.environ |= {"PATCHWORDS_CACHE": str(Path(EMPTY_CACHE.name) / "patchwords")}
for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(variable, None)


# What `make test-fast` leaves out of the folders that it runs: several processes, compilers, memory
# that is filled. A single test is marked where it is.
SLOW_FILES = {
    *("data/test_shard_cache.py", "data/test_stream.py"),
    *("models/test_cost_memory.py", "models/test_hybrid.py", "models/test_int8.py"),
    *("models/test_mixers.py",),
    *("training/test_behind.py", "training/test_every_kind.py", "training/test_exact_resume.py"),
    *("training/test_feed.py", "training/test_front_cache.py", "training/test_layers.py"),
    *("training/test_live.py", "training/test_masked_prediction.py", "training/test_parallel.py"),
    *("training/test_pretrain.py", "training/test_shares.py"),
    *("weights/test_boxed.py", "weights/test_damaged.py"),
    *("test_benchmarks.py", "test_distributed.py"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of SLOW_FILES."""
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The models are so small that threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
