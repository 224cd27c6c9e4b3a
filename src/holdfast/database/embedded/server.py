"""A client's hold on the embedded server."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from holdfast.database.embedded import locks, processes
from holdfast.database.embedded.cluster import SOCKET, Cluster
from holdfast.database.embedded.probe import Answer, ask
from holdfast.errors import EmbeddedServerError

_LONGEST_SOCKET_PATH = 107 if os.uname().sysname == "Linux" else 103
_LOCK_SECONDS = 330.0


def default_home() -> Path:
    """Return the data home: $HOLDFAST_HOME, or ~/.holdfast."""
    return Path(os.environ.get("HOLDFAST_HOME") or "~/.holdfast").expanduser()


def is_made(home: Path | None = None) -> bool:
    """Return True if a data home has a database, or one is being made in it."""
    cluster = Cluster((home or default_home()).expanduser().absolute())
    return cluster.data.exists() or cluster.unfinished.exists()


class EmbeddedServer:
    """A running PostgreSQL that is shared by all processes of one data home.

    Use `acquire`, which starts the server unless it runs; the last client to release it stops
    it. A client that is killed loses its hold, and the server then runs until the next client
    has released it.

        with EmbeddedServer.acquire(Path("/tmp/shop")) as server:
            connection = await asyncpg.connect(server.url)
    """

    def __init__(self, cluster: Cluster, hold: int, directory: Path) -> None:
        self._cluster = cluster
        self._hold: int | None = hold
        self._directory = directory
        self._mutex = threading.Lock()

    @classmethod
    def acquire(cls, home: Path | None = None, *, binaries: Path | None = None) -> Self:
        """Start the server of a data home, or join it, and hold it until `release`.

        Blocks: about a second if the data is new, milliseconds if the server runs.

        Args:
            home: the data home, by default `default_home()`.
            binaries: a directory with PostgreSQL's programs, by default the embedded ones.

        Raises:
            EmbeddedServerError: the home cannot be used, or the server does not start.
        """
        cluster = Cluster((home or default_home()).expanduser().absolute(), binaries)
        with _explained(cluster):
            cluster.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _start_lock(cluster) as lock:
                hold = locks.hold_shared(_clients_lock(cluster))
                try:
                    cluster.create(lock)
                    directory = _reachable(cluster.data)
                    cluster.start(str(directory / SOCKET), lock)
                except BaseException:
                    os.close(hold)
                    raise
        return cls(cluster, hold, directory)

    @property
    def url(self) -> str:
        """The database's URL, as asyncpg, libpq and SQLAlchemy take it."""
        return f"postgresql://holdfast@/holdfast?host={quote(str(self._directory))}&port=5432"

    @property
    def home(self) -> Path:
        return self._cluster.home

    @property
    def postmaster_pid(self) -> int | None:
        """The number of the server's first process, None while there is none."""
        return processes.live_pid(self._cluster.data)

    def ensure_running(self) -> None:
        """Restart the server if it died; costs one connection if it lives.

        Any thread may call it, and any number of processes at once.

        Raises:
            EmbeddedServerError: it was released, or does not start again.
        """
        socket = str(self._directory / SOCKET)
        if self._hold is not None and ask(socket) is Answer.READY:
            return
        with self._mutex, _explained(self._cluster):
            if self._hold is None:
                raise EmbeddedServerError(
                    f"the hold on {self.home} was released: acquire the server again"
                )
            with _start_lock(self._cluster) as lock:
                _reachable(self._cluster.data)
                self._cluster.start(socket, lock)

    def release(self) -> None:
        """Release the server, and stop it if no other client holds it. May be called again."""
        with self._mutex, _explained(self._cluster):
            if self._hold is None:
                return
            # Closed, not unlocked: a forked child shares the descriptor and keeps its hold.
            os.close(self._hold)
            self._hold = None
            with _start_lock(self._cluster):
                if locks.is_free(_clients_lock(self._cluster)):
                    self._cluster.stop()
                    _forget_short_path(self._cluster.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _clients_lock(cluster: Cluster) -> Path:
    return cluster.home / "clients.lock"


def _start_lock(cluster: Cluster) -> AbstractContextManager[int]:
    return locks.held_exclusively(cluster.home / "start.lock", _LOCK_SECONDS)


@contextmanager
def _explained(cluster: Cluster) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(
            f"the data home {cluster.home} cannot be used: {error}; "
            "choose another with --data or $HOLDFAST_HOME"
        ) from error


def _short_path(data: Path) -> Path:
    """Name the link to a data directory, in the first temporary folder whose own path is short.

    Raises EmbeddedServerError if there is none.
    """
    name = f"holdfast-{os.geteuid()}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"
    for folder in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        if folder and os.access(folder, os.W_OK) and _is_short(Path(folder, name)):
            return Path(folder, name)
    raise EmbeddedServerError(
        f"the path of {data} is too long for a socket, and so are those of the temporary "
        "folders: choose a shorter path with --data or $HOLDFAST_HOME, or a shorter $TMPDIR"
    )


def _is_short(directory: Path) -> bool:
    return len(os.fsencode(directory / SOCKET)) <= _LONGEST_SOCKET_PATH


def _reachable(data: Path) -> Path:
    """Return a path to the data directory that is short enough for a socket's address.

    A longer path gets a link in a temporary folder. A link of another user is refused: it could
    lead to another server.
    """
    if _is_short(data):
        return data
    link = _short_path(data)
    try:
        link.symlink_to(data)
    except FileExistsError:
        if link.lstat().st_uid != os.geteuid() or link.readlink() != data:
            raise EmbeddedServerError(
                f"{link} is not ours and stands where the socket of {data} needs a short "
                "path: remove it, or choose a shorter path with --data"
            ) from None
    return link


def _forget_short_path(data: Path) -> None:
    if _is_short(data):
        return
    link = _short_path(data)
    if link.is_symlink() and link.lstat().st_uid == os.geteuid():
        link.unlink()
