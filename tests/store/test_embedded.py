"""The embedded server: shared, restarted, stopped by its last client, and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest
from tests.clusters import Homes

from holdfast.database.embedded import EmbeddedServer, binaries, cluster, default_home, processes
from holdfast.database.embedded.account import account_for
from holdfast.database.embedded.probe import Answer, ask
from holdfast.errors import EmbeddedServerError

AS_ROOT = os.geteuid() == 0
DEADLINE_SECONDS = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data home that is still to be made."""
    return tmp_path / "home"


@pytest.fixture
def made(home: Path, homes: Homes) -> Path:
    """A data home in which a server has been."""
    return homes.make(home, migrated=False)


@pytest.fixture
def server(made: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.acquire(made) as server:
        yield server


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it is still not so: {what}"
        time.sleep(0.005)


def wait_for_death(server: EmbeddedServer) -> None:
    until(lambda: server.postmaster_pid is None, "the postmaster's death")


CLIENT = """
import sys
from pathlib import Path
from holdfast.database.embedded import EmbeddedServer

with EmbeddedServer.acquire(Path(sys.argv[1])) as server:
    print(server.postmaster_pid, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def client(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the server until it is told to go."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_it_answers_the_driver_with_durability_on(server: EmbeddedServer) -> None:
    connection = await asyncpg.connect(server.url)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await connection.fetchval(f"show {setting}") == "on"
    assert await connection.fetchval("show listen_addresses") == ""
    assert await connection.fetchval("select current_database()") == "holdfast"
    await connection.close()


def test_the_home_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/data/holdfast")
    assert default_home() == Path("/data/holdfast")
    monkeypatch.setenv("HOLDFAST_HOME", "")
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_home() == Path("/home/ann/.holdfast")


def test_data_outlives_the_server(made: Path) -> None:
    with EmbeddedServer.acquire(made) as first:
        with psycopg.connect(first.url) as connection:
            connection.execute("create table kept as select 42 as n")
    assert first.postmaster_pid is None
    with EmbeddedServer.acquire(made) as second:
        assert query(second.url, "select n from kept") == 42


def test_the_last_client_out_stops_it(server: EmbeddedServer, home: Path) -> None:
    with client(home) as other:
        assert line_of(other) == str(server.postmaster_pid)
        server.release()
        assert query(server.url, "select 1") == 1
        other.communicate("go\n")
    wait_for_death(server)
    server.release()


def test_clients_of_one_process_count_one_by_one(made: Path) -> None:
    first, second = EmbeddedServer.acquire(made), EmbeddedServer.acquire(made)
    first.release()
    first.release()
    assert query(second.url, "select 1") == 1
    second.release()
    assert second.postmaster_pid is None


def test_six_cold_racers_share_one_server(home: Path) -> None:
    """Trap 27 for the server itself: raced set-up gives one initdb and one postmaster."""
    with client(home) as a, client(home) as b, client(home) as c:
        with client(home) as d, client(home) as e, client(home) as f:
            racers = [a, b, c, d, e, f]
            pids = {line_of(racer) for racer in racers}
            assert len(pids) == 1
            assert pids != {"None"}
            for racer in racers:
                racer.communicate("go\n")
                assert racer.returncode == 0
    assert processes.live_pid(home / "postgres") is None


@pytest.mark.crash
def test_committed_rows_survive_a_killed_postmaster(server: EmbeddedServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("create table kept as select generate_series(1, 1000) as n")
    for _ in range(3):
        killed = server.postmaster_pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_for_death(server)
        server.ensure_running()
        assert server.postmaster_pid not in (None, killed)
        assert query(server.url, "select count(*) from kept") == 1000


@pytest.mark.crash
def test_a_busy_orphan_does_not_keep_the_server_down(server: EmbeddedServer) -> None:
    """A backend deep in a query notices a dead postmaster late, and holds its memory."""
    busy = psycopg.connect(server.url, autocommit=True)
    backend = busy.info.backend_pid
    burn = threading.Thread(target=_burn, args=(busy,))
    burn.start()
    active = f"select state = 'active' from pg_stat_activity where pid = {backend}"
    until(lambda: query(server.url, active) is True, "a busy backend")
    postmaster = server.postmaster_pid
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    wait_for_death(server)
    server.ensure_running()
    assert query(server.url, "select 1") == 1
    burn.join()
    busy.close()


def _burn(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute("do $$ begin loop null; end loop; end $$")


@pytest.mark.crash
def test_threads_that_miss_the_server_bring_back_one(server: EmbeddedServer) -> None:
    postmaster = server.postmaster_pid
    assert postmaster is not None
    os.kill(postmaster, signal.SIGKILL)
    wait_for_death(server)
    threads = [threading.Thread(target=server.ensure_running) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    revived = server.postmaster_pid
    server.ensure_running()
    assert server.postmaster_pid == revived is not None


@pytest.mark.crash
def test_a_killed_client_leaves_the_server_to_the_next(made: Path) -> None:
    with client(made) as killed:
        pid = line_of(killed)
        killed.kill()
        killed.wait()
        assert processes.live_pid(made / "postgres") == int(pid)
        with EmbeddedServer.acquire(made) as server:
            assert server.postmaster_pid == int(pid)
        assert server.postmaster_pid is None


@pytest.mark.crash
@pytest.mark.parametrize(
    "reached", ["start.lock", "postgres.new", "postgres", "postgres/postmaster.pid"]
)
def test_a_start_cut_off_in_the_middle_is_made_good(home: Path, reached: str) -> None:
    """Whatever a killed starter left behind or running, the next one starts."""
    with client(home) as killed:
        until((home / reached).exists, f"a start that has reached {reached}")
        killed.kill()
    with EmbeddedServer.acquire(home) as server:
        assert query(server.url, "select 1") == 1
        assert server.postmaster_pid is not None
    assert server.postmaster_pid is None
    assert not (home / "postgres.new").exists()


@pytest.mark.crash
def test_a_stale_pid_file_that_names_a_stranger_is_no_obstacle(made: Path) -> None:
    """After a reboot, the number in the file may be anybody's."""
    with EmbeddedServer.acquire(made):
        pass
    stale = made / "postgres" / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n/proc/self/cwd\n0\n5432\n.\n\n 1 1\nready\n")
    account_for(made / "postgres").adopt(stale)
    with EmbeddedServer.acquire(made) as server:
        assert query(server.url, "select 1") == 1


def test_a_home_too_deep_for_a_socket_is_reached_by_a_short_path(
    tmp_path: Path, homes: Homes
) -> None:
    with EmbeddedServer.acquire(homes.make(tmp_path / ("deep" * 30))) as server:
        assert query(server.url, "select 1") == 1
        link = Path(server.url.partition("host=")[2].partition("&")[0])
        assert link.is_symlink()
    assert not link.is_symlink()


def test_a_temporary_folder_too_deep_for_a_socket_is_passed_over(
    tmp_path: Path, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with EmbeddedServer.acquire(homes.make(deep / "home")) as server:
        assert query(server.url, "select 1") == 1


def test_a_short_path_that_leads_elsewhere_is_refused(tmp_path: Path, homes: Homes) -> None:
    home = homes.make(tmp_path / ("deep" * 30))
    with EmbeddedServer.acquire(home) as server:
        link = Path(server.url.partition("host=")[2].partition("&")[0])
    link.symlink_to(tmp_path)
    with pytest.raises(EmbeddedServerError, match="remove it"):
        EmbeddedServer.acquire(home)
    link.unlink()


ODD = ("with space", "it's", "ünïcode", "per%cent", "a&b=c")


@pytest.mark.parametrize("name", [*ODD, "".join(ODD)])
async def test_any_path_serves_as_home(tmp_path: Path, homes: Homes, name: str) -> None:
    """That with all of it is made there, the others are used."""
    home = homes.make(tmp_path / name) if name in ODD else tmp_path / name
    with EmbeddedServer.acquire(home) as server:
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("select 1") == 1
        await connection.close()
        assert query(server.url, "select 1") == 1


def test_the_callers_postgres_variables_do_not_lead_it_astray(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("LC_ALL", "xx_XX")
    with EmbeddedServer.acquire(home) as server:
        assert query(server.url, "select 1") == 1


def test_a_home_that_is_a_file_is_a_clear_error(home: Path) -> None:
    home.write_text("not a directory")
    with pytest.raises(EmbeddedServerError, match=r"cannot be used.*--data"):
        EmbeddedServer.acquire(home)


def test_a_server_that_cannot_start_says_why(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_REFUSED_SECONDS", 0.5)
    with EmbeddedServer.acquire(made):
        pass
    (made / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedServerError, match="incompatible"):
        EmbeddedServer.acquire(made)


@pytest.mark.skipif(not AS_ROOT, reason="only root can stand in for another account")
def test_as_root_it_runs_under_another_account_below_a_closed_home(home: Path) -> None:
    """The server's account has no right to the directories above its data."""
    home.mkdir(mode=0o700)
    with EmbeddedServer.acquire(home) as server:
        pid = server.postmaster_pid
        assert Path(f"/proc/{pid}").stat().st_uid != 0
        assert home.stat().st_mode & 0o777 == 0o700
        assert home.stat().st_uid == 0


@pytest.mark.skipif(not AS_ROOT, reason="only root can stand in for another account")
def test_binaries_that_the_account_cannot_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_runs", lambda directory, account: False)
    account = account_for(Path("/none"))
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        monkeypatch.setattr(binaries, "_COPIES", Path(open_to_all, "copies"))
        copied = binaries.binaries_for(account)
        assert Path(open_to_all) in copied.parents
        assert binaries.binaries_for(account) == copied
        result = account.run([str(copied / "postgres"), "--version"], output=subprocess.PIPE)
        assert result.stdout.startswith("postgres (PostgreSQL)")


def test_an_ordinary_user_runs_it_under_the_same_account() -> None:
    account = account_for(Path("/none"))
    assert account.switches == AS_ROOT
    assert (account.uid == os.geteuid()) is not AS_ROOT


async def test_the_probe_tells_up_from_not_yet_from_down(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    assert await asyncio.to_thread(ask, path) is Answer.NOBODY
    replies = [b"R\0\0\0\x08\0\0\0\0", b"E\0\0\0\x10SFATAL\0C57P03\0\0", b"E..C53300\0", b""]
    expected = [Answer.READY, Answer.NOT_YET, Answer.READY, Answer.NOBODY]

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(replies.pop(0))
        writer.close()

    async with await asyncio.start_unix_server(reply, path):
        assert [await asyncio.to_thread(ask, path) for _ in expected] == expected
