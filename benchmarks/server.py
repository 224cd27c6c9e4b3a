"""The one PostgreSQL server that all engines are measured on."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.database.embedded import EmbeddedServer

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
SHOWN = ("server_version", *DURABLE, "shared_buffers", "max_wal_size", "checkpoint_timeout")


@dataclass(frozen=True)
class Server:
    """A server, through a database of it that exists."""

    url: str
    kind: str

    def fresh_database(self, name: str) -> str:
        """Create the database again, empty, and return its URL."""
        self.ask(
            f'drop database if exists "{name}" with (force)',
            f'create database "{name}"',
            "checkpoint",  # not in the middle of a measurement
        )
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def drop_database(self, name: str) -> None:
        """Drop the database if it exists."""
        self.ask(f'drop database if exists "{name}" with (force)')

    def describe(self) -> dict[str, str]:
        """Return version and settings; refuse a server that would not keep what it confirms."""
        shown = self.ask(*(f"show {setting}" for setting in SHOWN))
        about = dict(zip(SHOWN, shown, strict=True))
        if off := [setting for setting in DURABLE if about[setting] != "on"]:
            raise SystemExit(f"the server must have {', '.join(off)} on to be measured")
        return {"server": self.kind, **about}

    def process_id(self) -> int:
        """Return the id of the server's first process, 0 if it runs on another machine."""
        [pid] = self.ask("select pid from pg_stat_activity where backend_type = 'checkpointer'")
        about = Path("/proc", str(pid), "stat")
        name, _, fields = about.read_text().rpartition(")") if about.exists() else ("", "", "")
        return int(fields.split()[1]) if "postgres" in name else 0

    def ask(self, *statements: str) -> list[str]:
        """Run statements and return the first value that each answers."""

        async def run() -> list[str]:
            connection = await asyncpg.connect(self.url)
            try:
                return [await connection.fetchval(statement) for statement in statements]
            finally:
                await connection.close()

        return asyncio.run(run())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse to measure while another measurement of this checkout runs: it has the same databases.

    The kernel drops the lock with the process, however it ends.
    """
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                "another measurement runs in this checkout, on the same databases: wait for its"
                " end, or measure in another checkout"
            ) from None
        yield


@contextmanager
def serve(url: str | None, home: Path) -> Iterator[Server]:
    """Take the server at the URL, or run holdfast's embedded one under `home`."""
    if url is not None:
        yield Server(url, "the one given with --database")
        return
    with EmbeddedServer.acquire(home) as embedded:
        yield Server(embedded.url, "embedded")
