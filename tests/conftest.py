"""Real databases for the tests: one server a session, one database a test.

The servers are embedded ones, shared by all test processes of a session. Tests of the store
also run on the system's PostgreSQL where there is one: the server of
$HOLDFAST_TEST_DATABASE_URL, or the programs under /usr/lib/postgresql.

With HOLDFAST_TEST_REDIS=1 all tests use Redis, too: one server a session.
"""

from __future__ import annotations

import compileall
import fcntl
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.fixtures import reorder_items
from hypothesis import HealthCheck, settings

import holdfast
from holdfast.database.embedded import EmbeddedServer, cluster
from tests.clusters import Homes
from tests.databases import DatabaseServer
from tests.memory import FilesInMemory
from tests.sessions import end_loop
from tests.shards.differences import leave_out
from tests.valkey import valkey


def interrupted(number: int, frame: FrameType | None) -> None:
    """Do what Python's own handler does.

    Where that one is set, each `Runner.run` puts another in its place and takes it away, and what
    the module `signal` does for that is a third of the whole call: several for each test.
    """
    signal.default_int_handler(number, frame)


# Also where the tests run in the background of a shell, which lets them ignore it: the programs
# that they start, and interrupt as a person would, must not inherit that.
signal.signal(signal.SIGINT, interrupted)

# Examples are the same ones each time, and none fails because the machine has other work to do.
settings.register_profile(
    "tests", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

SYSTEM_URL = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
SYSTEM_BINARIES = max(
    (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
    key=lambda path: int(path.parent.name),
    default=None,
)
SERVERS = ["embedded", "system"] if SYSTEM_URL or SYSTEM_BINARIES else ["embedded"]


DONT_WRITE = sys.dont_write_bytecode
files_in_memory = FilesInMemory()
redis_for_all = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Say where the temporary folders are to be, before the first is made."""
    if not hasattr(config, "workerinput"):
        files_in_memory.begin()
        if os.environ.get("HOLDFAST_TEST_REDIS"):
            os.environ["HOLDFAST_REDIS_URL"] = redis_for_all.enter_context(valkey()).url


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what this session has made."""
    if not hasattr(config, "workerinput"):
        redis_for_all.close()
        files_in_memory.end()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the package once, for the hundreds of programs that the tests start.

    Some environments do not let them keep what they have compiled.
    """
    if not hasattr(session.config, "workerinput"):
        for folder in holdfast.__path__:
            compileall.compile_dir(folder, quiet=2)


def pytest_collection() -> None:
    """Search for no garbage while thousands of tests are made: it takes half of the time.

    What asserts are made of is kept for the next processes, also in an environment that keeps no
    compiled code: it is half of what is left.

    The pytest processes that tests start do without the plugins of what else is installed here,
    which take seconds to import.
    """
    gc.disable()
    sys.dont_write_bytecode = False
    unused = ("schemathesis", "langsmith_plugin", "hypothesispytest", "xdist")
    unused += ("anyio", "platformdirs", "valkey")
    os.environ["PYTEST_ADDOPTS"] = " ".join(f"-p no:{name}" for name in unused)


# The files whose tests take most: they are begun first, so that the end waits for none of them.
LONG = {
    "test_connections.py",
    "test_frozen.py",
    "test_high_availability.py",
    "test_kills.py",
    "test_kills_across.py",
    "test_kills_streams.py",
    "test_kills_sweeping.py",
    "test_machine.py",
    "test_message_machine.py",
    "test_postgres_clock_steps.py",
    "test_random_programs.py",
    "test_rolling_upgrade.py",
}


def pytest_sessionfinish() -> None:
    """End the loop of the tests that shared one."""
    end_loop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long; within a file, and among the others, the order stays.

    With HOLDFAST_TEST_ORDER, a number, files and the tests of each are in an order drawn by it.
    What shares a fixture of a module or of the session stays together. With HOLDFAST_TEST_SHARDS,
    tests that say something else of several databases are left out.
    """
    if os.environ.get("HOLDFAST_TEST_SHARDS"):
        leave_out(items)
    if seed := os.environ.get("HOLDFAST_TEST_ORDER"):
        drawn = random.Random(int(seed))
        places = {path: drawn.random() for path in sorted({item.path for item in items})}
        drawn.shuffle(items)
        items.sort(key=lambda item: places[item.path])
        items[:] = reorder_items(items)
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Keep what lives as long as the session, a million objects, out of each later search.

    Search less often, too, as `holdfast` does: after each module all is searched in any case.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)
    gc.enable()
    sys.dont_write_bytecode = DONT_WRITE


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let a test process tell no more of tests that pass than is shown.

    Three reports of each of fifteen thousand tests take the process that shows them seconds.
    """
    options = session.config.option
    if options.durations is None and options.xmlpath is None:
        for plugin in session.config.pluginmanager.get_plugins():
            if type(plugin).__name__ == "WorkerInteractor":  # of xdist, which runs it as a text
                plugin.sendevent = partial(tell_little, plugin.sendevent)


def tell_little(tell: Callable[..., None], event: str, **told: Any) -> None:
    """Tell of a test that passes neither its setup and teardown, nor the words that choose it."""
    if event == "testreport" and (report := told["data"])["outcome"] == "passed":
        if report["when"] != "call":
            return
        report["keywords"] = {}
    tell(event, **told)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End the heartbeats of workers that a test has left as it failed.

    They would draw random numbers in later tests, and those of hypothesis would fail.
    """
    before = threading.enumerate()
    try:
        return (yield)
    except BaseException:
        for thread in set(threading.enumerate()).difference(before):
            if thread.name == "holdfast heartbeat" and (main := vars(thread).get("_target")):
                main.__self__.end()
        raise


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free what the tests of a module have left, and keep what they have imported."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@contextmanager
def shared_server(home: Path, binaries: Path | None = None) -> Iterator[EmbeddedServer]:
    """Start or join a server that many tests share.

    It does not wait for the disk: what it holds need not survive a failure of the machine. It takes
    the sessions that all test processes keep, none of which has to load the language of functions.
    Nor does autovacuum change the statistics of databases: each change makes all sessions plan
    again, and a database with other statistics than the template's is not used again.
    """
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(cluster._SETTINGS, "fsync", "off")
            patch.setitem(cluster._SETTINGS, "full_page_writes", "off")
            patch.setitem(cluster._SETTINGS, "autovacuum", "off")
            patch.setitem(cluster._SETTINGS, "max_connections", "400")
            patch.setitem(cluster._SETTINGS, "shared_preload_libraries", "plpgsql")
            server = stack.enter_context(EmbeddedServer.acquire(home, binaries=binaries))
        yield server


def wants_fresh(request: pytest.FixtureRequest) -> bool:
    """Return True if a test measures what a database reads, and wants one without dead rows."""
    return request.node.get_closest_marker("fresh_database") is not None


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
def homes(server_homes: Path) -> Homes:
    """Makes data homes for tests whose server is their own, which they may kill."""
    return Homes(server_homes / "kept")


@pytest.fixture
def mypy_cache(server_homes: Path) -> Iterator[str]:
    """What mypy has read of the package and of all that it uses, for one test at a time."""
    with (server_homes / "mypy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield str(server_homes / "mypy")


@pytest.fixture(scope="session")
def embedded_server(server_homes: Path) -> Iterator[EmbeddedServer]:
    """The embedded server of this session. Do not kill it: others use it."""
    with shared_server(server_homes / "embedded") as server:
        yield server


@pytest.fixture(scope="session")
def durable_server(server_homes: Path) -> Iterator[EmbeddedServer]:
    """A server of this session with the settings that users get. Do not kill it either."""
    with EmbeddedServer.acquire(server_homes / "durable") as server:
        yield server


@pytest.fixture(scope="session")
def database_server(
    embedded_server: EmbeddedServer, server_homes: Path, worker_id: str
) -> Iterator[DatabaseServer]:
    shared = server_homes / "embedded.template"
    server = DatabaseServer(embedded_server.url, worker_id, shared=shared)
    yield server
    server.close()


@pytest.fixture(scope="session")
def elsewhere(
    embedded_server: EmbeddedServer, server_homes: Path, worker_id: str
) -> Iterator[DatabaseServer]:
    """The same server, with databases whose schema is not `holdfast`."""
    shared = server_homes / "elsewhere.template"
    server = DatabaseServer(embedded_server.url, worker_id, schema="elsewhere", shared=shared)
    yield server
    server.close()


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database_server: DatabaseServer) -> Iterator[str]:
    """A migrated database of the test's own."""
    with database_server.database(fresh=wants_fresh(request)) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(
    request: pytest.FixtureRequest, database_server: DatabaseServer
) -> Iterator[str]:
    """A migrated database that the tests of one module share."""
    with database_server.database(fresh=wants_fresh(request)) as url:
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
        with shared_server(server_homes / "system", SYSTEM_BINARIES) as system:
            shared = server_homes / "system.template"
            server = DatabaseServer(system.url, worker_id, shared=shared)
            yield server
            server.close()


@pytest.fixture
def any_database_url(
    request: pytest.FixtureRequest, any_database_server: DatabaseServer
) -> Iterator[str]:
    """A migrated database of the test's own, on each server in turn."""
    with any_database_server.database(fresh=wants_fresh(request)) as url:
        yield url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run a server that speaks S3 in a process of its own, and return its URL."""
    from tests.objects import running_s3

    with running_s3() as url:
        yield url


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a bucket, for which the environment is set up."""
    from tests.objects import environment

    for name, value in environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return "s3://runs"
