"""A server that a test may kill, and workers that it may kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.database.embedded import EmbeddedServer
from tests.clusters import Homes
from tests.crash.fleet import Fleet
from tests.shards.engine import ShardedServer


@pytest.fixture
def server(tmp_path: Path, homes: Homes) -> Iterator[EmbeddedServer]:
    """A database server of the test's own, which it may kill.

    With HOLDFAST_TEST_SHARDS=4 it has four databases, which are the shards of one engine.
    """
    with ShardedServer.acquire(homes.make(tmp_path / "home")) as server:
        if count := int(os.environ.get("HOLDFAST_TEST_SHARDS", "0")):
            server.make_shards(count)
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
