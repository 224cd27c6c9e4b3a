"""Real databases for the tests: one server a session, one database a test.

The servers are embedded ones, shared by all test processes of a session. Tests of the store
also run on the system's PostgreSQL where there is one: the server of
$HOLDFAST_TEST_DATABASE_URL, or the programs under /usr/lib/postgresql.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.database.embedded import EmbeddedServer
from holdfast.database.migrate import render

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Where the tests run in the background of a shell; the programs that they start, and
    # interrupt as a person would, must not inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SYSTEM_URL = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
SYSTEM_BINARIES = max(
    (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
    key=lambda path: int(path.parent.name),
    default=None,
)
SERVERS = ["embedded", "system"] if SYSTEM_URL or SYSTEM_BINARIES else ["embedded"]


@dataclass
class DatabaseServer:
    """A server that hands out databases of their own; migrated ones copy a template."""

    url: str
    worker: str
    numbers: Iterator[int] = field(default_factory=itertools.count)
    template: str | None = None

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """Make a database for the length of the block, and give its URL."""
        name = self._create(self._template() if migrated else "template1")
        try:
            yield self.url_of(name)
        finally:
            self._drop(name)

    def close(self) -> None:
        """Leave a server that is not ours as it was."""
        if self.template is not None:
            self._drop(self.template)

    def url_of(self, name: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def _template(self) -> str:
        if self.template is None:
            self.template = self._create("template1")
            execute(self.url_of(self.template), render())
        return self.template

    def _create(self, template: str) -> str:
        name = f"holdfast_test_{self.worker}_{os.getpid()}_{next(self.numbers)}"
        execute(self.url, f"create database {name} template {template}")
        return name

    def _drop(self, name: str) -> None:
        execute(self.url, f"drop database {name} with (force)")


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


@pytest.fixture(scope="session")
def worker_id() -> str:
    """The name of this test process, also where xdist is not loaded: then it is `master`."""
    return os.environ.get("PYTEST_XDIST_WORKER", "master")


@pytest.fixture(scope="session")
def server_homes(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def embedded_server(server_homes: Path) -> Iterator[EmbeddedServer]:
    """The embedded server of this session. Do not kill it: others use it."""
    with EmbeddedServer.acquire(server_homes / "embedded") as server:
        yield server


@pytest.fixture(scope="session")
def database_server(embedded_server: EmbeddedServer, worker_id: str) -> Iterator[DatabaseServer]:
    server = DatabaseServer(embedded_server.url, worker_id)
    yield server
    server.close()


@pytest.fixture
def database_url(database_server: DatabaseServer) -> Iterator[str]:
    """A migrated database of the test's own."""
    with database_server.database() as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(database_server: DatabaseServer) -> Iterator[str]:
    """A migrated database that the tests of one module share."""
    with database_server.database() as url:
        yield url


@pytest.fixture
def empty_database_url(database_server: DatabaseServer) -> Iterator[str]:
    """A database without the schema."""
    with database_server.database(migrated=False) as url:
        yield url


@pytest.fixture(scope="session", params=SERVERS)
def any_database_server(
    request: pytest.FixtureRequest, server_homes: Path, worker_id: str
) -> Iterator[DatabaseServer]:
    """The embedded server, and the system's where there is one."""
    if request.param == "embedded":
        yield request.getfixturevalue("database_server")
    elif SYSTEM_URL is not None:
        server = DatabaseServer(SYSTEM_URL, worker_id)
        yield server
        server.close()
    else:
        with EmbeddedServer.acquire(server_homes / "system", binaries=SYSTEM_BINARIES) as system:
            yield DatabaseServer(system.url, worker_id)


@pytest.fixture
def any_database_url(any_database_server: DatabaseServer) -> Iterator[str]:
    """A migrated database of the test's own, on each server in turn."""
    with any_database_server.database() as url:
        yield url
