"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# The same examples in every run, however slow the machine: a failure is one of the change.
settings.register_profile("tests", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The models are so small that threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
