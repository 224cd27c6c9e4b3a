"""A server that a test may kill, and workers that it may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.database.embedded import EmbeddedServer
from tests.clusters import Homes
from tests.crash.fleet import Fleet


@pytest.fixture
def server(tmp_path: Path, homes: Homes) -> Iterator[EmbeddedServer]:
    """A database server of the test's own, which it may kill."""
    with EmbeddedServer.acquire(homes.make(tmp_path / "home")) as server:
        yield server


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file in which every effect leaves its trace."""
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
def fleet(server: EmbeddedServer, ledger: Path) -> Iterator[Fleet]:
    """Give a test its workers, and end them with it."""
    fleet = Fleet(server.url, ledger)
    yield fleet
    fleet.kill_all()
