"""All processes of the chaos: a database, workers, a server, readers, and Redis."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

from holdfast.database.embedded import EmbeddedServer
from holdfast.database.migrate import render
from tests.chaos.names import READERS, SIDE
from tests.chaos.readers import read
from tests.cli.processes import command, environment
from tests.crash.fleet import Fleet
from tests.crash.processes import processes
from tests.crash.worker import DEFAULT, Pace
from tests.databases import execute
from tests.ports import serve
from tests.proxy import Proxy
from tests.valkey import Valkey, valkey

PACE = Pace(2.5, 0.4, 2.0)
SUPERVISED_SECONDS = 0.1
PROGRESS_BYTES = 1000  # of the ledger: some ten effects


def _work(*given: Any) -> None:
    from tests.chaos.app import work  # adds to the app of the crash suite, in this process alone

    work(*given)


class World(ExitStack):
    """The processes, in a folder of their own. All of them end with the block.

    The folder is removed, unless `keep` was set. `homes` has the databases that exist, each with a
    server of its own; without it, they are made: one, or several that are `shards`.
    """

    def __init__(self, homes: Sequence[Path] = (), *, redis: bool = False, shards: int = 1) -> None:
        super().__init__()
        self._homes, self._with_redis, self.keep = homes, redis, False
        self._count = len(homes) or shards
        self.redis: Valkey | None = None
        self.way: Proxy | None = None  # of the workers to Redis
        self.readers: dict[str, ForkServerProcess] = {}
        self.http: subprocess.Popen[bytes] | None = None
        self.stopped = set[int]()  # the pids of workers that got SIGTERM

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
        self.callback(lambda: self.keep or shutil.rmtree(self.folder, ignore_errors=True))
        self.folder.chmod(0o755)  # PostgreSQL may run as another account
        homes = self._homes or [self.folder / f"home-{number}" for number in range(self._count)]
        self.servers = [self.enter_context(EmbeddedServer.acquire(home)) for home in homes]
        for server in self.servers:
            if not self._homes:
                execute(server.url, render())
            execute(server.url, "create table if not exists public.booked (run_id text)")
        if self._count > 1:
            subprocess.run(
                command("shards", "add", *self._databases()), env=environment({}), check=True
            )
        self.ledger, self.told = self.folder / "ledger", self.folder / "told"
        self.ledger.touch()
        self.told.touch()
        if self._with_redis:
            self.redis = self.enter_context(valkey())
            self.way = self.enter_context(Proxy(f"postgresql:///?host={self.redis.folder}"))
        self.fleet = Fleet(self.url, self.ledger, target=_work)
        self.fleet.redis = "" if self.way is None else f"redis://127.0.0.1:{self.way.port}/0"
        self.callback(self.fleet.kill_all)
        self.callback(self._end_server)
        self.http, self.port = serve(self._popen)
        for how in READERS:
            self.begin_reader(how)
            self.callback(self.end_reader, how)

    @property
    def url(self) -> str:
        """The URLs of all databases."""
        return " ".join(server.url for server in self.servers)

    def _databases(self) -> list[str]:
        return [part for server in self.servers for part in ("--database", server.url)]

    @property
    def redis_url(self) -> str:
        """The URL of Redis, for all but workers; empty without."""
        return "" if self.redis is None else self.redis.url

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def notes(self, how: str) -> Path:
        """The file of what a reader has got."""
        return self.folder / f"notes-{how}"

    # Workers

    def begin_workers(self) -> None:
        """Start a worker of each database."""
        for number in range(self._count):
            self.fleet.start(DEFAULT, SIDE, pace=PACE, shard=number)

    async def supervise(self) -> None:
        """Start again what has ended by itself, as systemd does; without end."""
        while True:
            await asyncio.sleep(SUPERVISED_SECONDS)
            for worker in self.fleet.workers:
                if worker.exitcode is not None:
                    self.fleet.replace(worker)
            if self.http is not None and self.http.poll() is not None:
                self.http = await asyncio.to_thread(self._popen, self.port)
            for how, reader in list(self.readers.items()):
                if reader.exitcode is not None:
                    self.begin_reader(how)

    async def await_progress(self, seconds: float) -> None:
        """Wait until there were some more effects, or so long."""
        enough = self.ledger.stat().st_size + PROGRESS_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.ledger.stat().st_size < enough:
                    await asyncio.sleep(0.05)

    # The server

    def _popen(self, port: int) -> subprocess.Popen[bytes]:
        options = (*self._databases(), "--port", str(port), "--auth", "any")
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                command("server", *options),
                env=environment({"HOLDFAST_HOME": str(self.folder / "server"), **self._redis()}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _redis(self) -> dict[str, str]:
        return {"HOLDFAST_REDIS_URL": self.redis_url} if self.redis_url else {}

    async def is_serving(self) -> bool:
        """Return True if the server listens: before that it would never serve, if it is killed."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    def send_server(self, number: signal.Signals) -> None:
        """Send the server a signal; its supervisor starts it again."""
        if self.http is not None:
            self.http.send_signal(number)

    def _end_server(self) -> None:
        if self.http is not None:
            self.http.kill()
            self.http.wait()
            self.http = None

    # Readers

    def begin_reader(self, how: str) -> None:
        place = self.url if how == "client" else self.http_url
        given = (how, place, self.told, self.notes(how), self.redis_url)
        self.readers[how] = processes.Process(target=read, args=given, daemon=True)
        self.readers[how].start()

    def end_reader(self, how: str) -> None:
        self.readers[how].kill()
        self.readers[how].join()

    def ensure_running(self) -> None:
        """Start the databases that do not run."""
        for server in self.servers:
            server.ensure_running()


def backends_of(server: EmbeddedServer) -> list[int]:
    """Return the processes of a database that serve its clients."""
    pid = server.postmaster_pid
    found = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        return [each for each in map(int, found.read_text().split()) if _serves(each)]
    return []


def _serves(pid: int) -> bool:
    with suppress(OSError):
        return b"postgres: holdfast holdfast" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
