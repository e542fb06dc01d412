from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from asked import LIMITS, App, subject_of
from starlette.testclient import TestClient

from patchwords.app.middleware import LOOPBACK_HOSTS
from patchwords.app.neighbours import NeighbourSearch
from patchwords.app.server import create_app
from patchwords.app.service import PredictionService
from patchwords.evaluation.predictions import LoadedModel


@pytest.fixture
def start() -> Iterator[Callable[..., App]]:
    """(subject, hosts, neighbours, limits by name) -> App"""
    opened: list[tuple[PredictionService, TestClient]] = []

    def make(
        subject: LoadedModel | None = None,
        hosts: tuple[str, ...] | None = LOOPBACK_HOSTS,
        neighbours: NeighbourSearch | None = None,
        **limits: Any,
    ) -> App:
        subject = subject or subject_of()
        near = neighbours or NeighbourSearch(subject, None, reason="there are none")
        service = PredictionService(subject, near, replace(LIMITS, **limits))
        client = TestClient(
            create_app(service, hosts), "http://localhost", raise_server_exceptions=False
        )
        client.__enter__()  # one event loop for all requests, from whatever thread
        opened.append((service, client))
        return App(service, client)

    yield make
    for service, client in opened:
        client.__exit__(None, None, None)
        service.close()


@pytest.fixture
def app(start: Callable[..., App]) -> App:
    return start()
