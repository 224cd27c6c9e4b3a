"""Data homes whose database cluster is a copy: to make one takes seconds, and dozens are needed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from holdfast.database.embedded import EmbeddedServer
from holdfast.database.migrate import render
from tests.databases import execute

# A third of the files of a cluster is theirs: connections are made to `template1` in their place.
UNUSED = "postgres", "template0"


@dataclass(frozen=True)
class Homes:
    """Makes data homes; `place` is a directory that all test processes of a session share."""

    place: Path

    def make(self, home: Path, *, migrated: bool = True) -> Path:
        """Put a cluster into a data home, as clients that have gone left it; return the home."""
        kept = self._kept("migrated" if migrated else "new")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", kept / "postgres", home / "postgres"], check=True)
        return home

    def _kept(self, name: str) -> Path:
        """Return a home that is only copied: no server ever runs in it again."""
        kept, making = self.place / name, self.place / f"{name}.making"
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                shutil.rmtree(making, ignore_errors=True)
                if name == "migrated":
                    self.make(making, migrated=False)
                with EmbeddedServer.acquire(making) as server:
                    if name == "migrated":
                        execute(server.url, render())
                    else:
                        _lighten(server.url)
                making.rename(kept)
        return kept


def _lighten(url: str) -> None:
    """Drop what each copy would cost, and let no session load the language of functions."""
    execute(url, "alter database template0 is_template false")
    for name in UNUSED:
        execute(url, f"drop database {name}")
    execute(url, "alter system set shared_preload_libraries = plpgsql")
