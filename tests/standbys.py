"""A server with a streaming standby, for tests of what is read there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from holdfast.database.embedded import EmbeddedServer, cluster
from tests.clusters import Homes
from tests.databases import execute
from tests.memory import ROOT


@dataclass(frozen=True)
class Pair:
    """A server, and a standby that streams from it. What the tests change stays in both."""

    primary: EmbeddedServer
    standby: EmbeddedServer

    def pause(self) -> None:
        """Let the standby fall behind from now on."""
        execute(self.standby.url, "select pg_wal_replay_pause()")
        with psycopg.connect(self.standby.url, autocommit=True) as connection:
            while _first(connection, "select pg_get_wal_replay_pause_state()") != "paused":
                pass  # each look is a round trip; the server pauses at its next record

    def resume(self) -> None:
        """Let the standby catch up, and wait until it has what the primary has now."""
        execute(self.standby.url, "select pg_wal_replay_resume()")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has what the primary has now."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            there = _first(connection, "select pg_logical_emit_message(true, 'tests', '')")
        with psycopg.connect(self.standby.url, autocommit=True) as connection:
            while not _first(connection, f"select pg_last_wal_replay_lsn() >= '{there}'"):
                pass  # each look is a round trip


@contextmanager
def streaming(homes: Homes) -> Iterator[Pair]:
    """Run a server and its standby for the length of the block.

    They meet at a socket, in a folder that the account of the servers may enter. A standby begins
    as a copy of the files of the server, as they are while it is stopped.
    """
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="standby-", dir=os.environ.get(ROOT))
        place = Path(stack.enter_context(folder))
        place.chmod(0o755)
        first, second = homes.make(place / "first"), homes.make(place / "second")
        first.chmod(0o755)
        conf = second / "postgres" / "postgresql.auto.conf"
        with conf.open("a") as file:
            file.write(f"primary_conninfo = 'host={first}/postgres user=holdfast'\n")
        (second / "postgres" / "standby.signal").touch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(cluster._SETTINGS, "fsync", "off")
            primary = stack.enter_context(EmbeddedServer.acquire(first))
            standby = stack.enter_context(EmbeddedServer.acquire(second))
        pair = Pair(primary, standby)
        pair.catch_up()
        yield pair


def _first(connection: psycopg.Connection[tuple[object, ...]], query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
