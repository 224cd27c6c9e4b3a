"""Lists come from a replica, and from the database while that cannot be used."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.clusters import Homes
from tests.databases import execute
from tests.proxy import Proxy
from tests.standbys import Pair, streaming

import holdfast
from holdfast.client import Client
from holdfast.client.filters import RunFilters
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.migrate import render
from holdfast.database.resolve import Connecting, resolve_database
from holdfast.errors import ConfigurationError, DatabaseUnavailable, RunNotFound
from holdfast.insight import doctor
from holdfast.payloads import Zlib, payloads_of, with_payloads
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.store.postgres import PostgresStore, following
from holdfast.store.postgres.following import FollowingDatabase
from holdfast.types import RunFilter

WARNING = ("holdfast.database", logging.WARNING)


@pytest.fixture(scope="module")
def pair(homes: Homes) -> Iterator[Pair]:
    with streaming(homes) as pair:
        yield pair


@pytest.fixture(autouse=True)
def tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that was away is tried again at the next call."""
    monkeypatch.setattr(following, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(following, "_LAG_SECONDS", 0.0)


@asynccontextmanager
async def opened(url: str, read_url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, read_url=read_url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(pair: Pair) -> AsyncIterator[PostgresStore]:
    """A store on the primary, whose lists come from the standby."""
    async with opened(pair.primary.url, pair.standby.url) as store:
        yield store


@pytest.fixture
def behind(pair: Pair) -> Iterator[Pair]:
    """The standby does not replay what the test does."""
    pair.pause()
    yield pair
    pair.resume()


async def source_of(call: Awaitable[object]) -> str | None:
    """Await a list, and return where it was read."""
    with noting_reads() as notes:
        await call
    return notes.source


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for name, level, text in caplog.record_tuples if (name, level) == WARNING]


# What is read where


async def test_lists_come_from_the_replica_and_one_run_from_the_database(
    store: PostgresStore, behind: Pair
) -> None:
    """S15: a run that the replica does not have yet exists for all who name it."""
    async with Client(store=store) as client:
        handle = await client.start("shop/checkout", key="order-7", version=1)
        with noting_reads() as notes:
            listed = [run.run_id for run in (await client.runs.list()).runs]
        assert handle.run_id not in listed
        assert notes.source == "replica"
        assert notes.lag_seconds is not None
        assert notes.lag_seconds > 0
        assert (await client.runs.get(handle.run_id)).status == "running"
        assert (await client.runs.get(("shop/checkout", "order-7"))).run_id == handle.run_id
        assert await client.runs.find_ids(handle.run_id.hex) == [handle.run_id]
        again = await client.start("shop/checkout", key="order-7", version=1)
        assert again.already_existed
        assert await client.signal(handle.run_id, "go")
        by_key: RunFilters = {"names": "shop/checkout", "key": "order-7"}
        assert (await client.runs.cancel_all(by_key)).changed == 1
        with pytest.raises(RunNotFound):
            await client.runs.get(uuid4())
        behind.resume()
        assert handle.run_id in [run.run_id for run in (await client.runs.list()).runs]


# Each call that is made through `reads`, by the name of its method.
READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "count_runs": lambda store: store.count_runs(["shop/checkout"], 10),
    "count_runs_by": lambda store: store.count_runs_by("state", RunFilter(limit=10)),
    "export_runs": lambda store: store.export_runs({uuid4(): None}),
    "get_runs": lambda store: store.get_runs([uuid4()], payloads=False),
    "list_approvals": lambda store: store.list_approvals(run_id=None, limit=10),
    "list_buckets": lambda store: store.list_buckets("shop/nightly", before=None, limit=10),
    "list_deliveries": lambda store: store.list_deliveries(dead=None, limit=10),
    "list_flows": lambda store: store.list_flows(),
    "list_kept": lambda store: store.list_kept("letters", limit=10),
    "list_messages": lambda store: store.list_messages("letters", limit=10, clip=10),
    "list_runs": lambda store: store.list_runs(RunFilter(limit=10, states=["waiting", "failed"])),
    "list_schedules": lambda store: store.list_schedules(app=None, after=None, limit=10),
    "list_subscriptions": lambda store: store.list_subscriptions(kind=None, topic=None, limit=10),
    "read_samples": lambda store: store.read_samples(
        since=0, part_seconds=60, name="shop/checkout"
    ),
    "read_stats": lambda store: store.read_stats(since=0),
}


@pytest.mark.parametrize("name", READS)
async def test_each_list_can_be_read_on_a_standby(
    store: PostgresStore, pair: Pair, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(store=store) as client:
        await client.queues.create("letters")
        await client.queues.send("letters", {"to": "Ada"})
        await client.start("shop/checkout", version=1)
    pair.catch_up()
    assert await source_of(READS[name](store.reads)) == "replica"
    assert not warnings_of(caplog)


def test_the_lists_that_are_read_on_a_standby_are_all_known() -> None:
    """A new use of `reads` must be tried on a standby: functions that write fail there."""
    [folder] = holdfast.__path__
    used = {
        name
        for path in Path(folder).rglob("*.py")
        for name in re.findall(r"\breads\.([a-z_]+)\(", path.read_text())
    }
    # Passed on as a store, or chosen before the call.
    passed_on = {"export_runs", "get_runs", "list_approvals", "read_samples", "read_stats"}
    assert used - {"check_reads"} == READS.keys() - passed_on


# A replica that cannot be used


async def test_while_the_replica_is_away_lists_come_from_the_database_with_one_warning(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """S15."""
    caplog.set_level(logging.WARNING, "holdfast.database")
    with Proxy(pair.standby.url) as proxy:
        async with opened(pair.primary.url, proxy.url) as store:
            assert await source_of(store.reads.list_flows()) == "replica"
            proxy.refuse()
            proxy.cut()
            for _ in range(3):
                assert await source_of(store.reads.list_flows()) == "database"
            check = await store.check_reads()
            assert check is not None
            assert (check.trouble or "").startswith("no server answers")  # beside its address
            [warning] = warnings_of(caplog)
            assert warning.startswith("lists are read from the database, not from postgresql://")
            proxy.refuse(refuses=False)
            assert await source_of(store.reads.list_flows()) == "replica"
            assert warnings_of(caplog)[1:] == [f"lists are read from {proxy.url} again"]


async def test_a_replica_that_is_away_when_a_store_opens_is_used_when_it_comes(pair: Pair) -> None:
    with Proxy(pair.standby.url) as proxy:
        proxy.refuse()
        async with opened(pair.primary.url, proxy.url) as store:
            check = await store.check_reads()
            assert check is not None
            assert check.trouble is not None
            assert await source_of(store.reads.list_flows()) == "database"
            proxy.refuse(refuses=False)
            assert await source_of(store.reads.list_flows()) == "replica"


async def test_a_replica_that_is_away_is_not_tried_at_each_call(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_AWAY_SECONDS", 3600.0)
    with Proxy(pair.standby.url) as proxy:
        proxy.refuse()
        async with opened(pair.primary.url, proxy.url) as store:
            await store.reads.list_flows()
            tried = proxy.joined
            proxy.refuse(refuses=False)
            assert await source_of(store.reads.list_flows()) == "database"
            assert proxy.joined == tried


@dataclass
class Mute:
    """A server that resets connections until it is told to be mute; then it keeps them open."""

    port: int = 0
    is_mute: bool = False
    joined: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"postgresql://holdfast@127.0.0.1:{self.port}/holdfast"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_mute:
            self.joined.set()
            await reader.read()  # until the client gives up
        writer.close()


@pytest.fixture
async def mute() -> AsyncIterator[Mute]:
    found = Mute()
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


async def test_lists_do_not_wait_while_another_one_tries_the_replica_again(
    pair: Pair, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers across a network that is divided: each attempt lasts until its limit."""
    monkeypatch.setattr(following, "_ANSWER_SECONDS", 3600.0)
    async with opened(pair.primary.url, f"{mute.url}?connect_timeout=3600") as store:
        assert await source_of(store.reads.list_flows()) == "database"
        monkeypatch.setattr(following, "_AWAY_SECONDS", 3600.0)
        mute.is_mute = True
        trying = asyncio.create_task(store.reads.list_flows())
        await mute.joined.wait()
        for _ in range(3):
            assert await source_of(store.reads.list_flows()) == "database"
        assert not trying.done()
        trying.cancel()


async def test_a_replica_that_is_mute_is_not_waited_for_as_long_as_a_database(
    pair: Pair, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL may have a longer time-out: it is often that of the database, with another host."""
    monkeypatch.setattr(following, "_ANSWER_SECONDS", 0.05)
    mute.is_mute = True
    async with opened(pair.primary.url, f"{mute.url}?connect_timeout=3600") as store:
        assert await source_of(store.reads.list_flows()) == "database"


async def test_lists_can_be_read_while_the_database_is_away(pair: Pair) -> None:
    """How far it is behind is then the time since the last change that it knows."""
    with Proxy(pair.primary.url) as proxy:
        async with opened(proxy.url, pair.standby.url) as store:
            await store.reads.list_flows()
            proxy.refuse()
            proxy.cut()
            with noting_reads() as notes:
                await store.reads.list_flows()
            assert notes.source == "replica"
            assert notes.lag_seconds is not None


async def test_lists_do_not_wait_for_a_database_that_is_mute(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(pair.primary.url) as proxy:
        async with opened(proxy.url, pair.standby.url) as store:
            await store.reads.list_flows()
            monkeypatch.setattr(following, "_ANSWER_SECONDS", 0.05)
            proxy.mute()
            assert await source_of(store.reads.list_flows()) == "replica"


async def test_lists_that_are_under_way_when_the_replica_goes_all_have_answers(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(pair.standby.url) as proxy:
        async with opened(pair.primary.url, proxy.url) as store:
            await asyncio.gather(*(store.reads.list_flows() for _ in range(8)))
            proxy.swallow_answers()
            lists = [asyncio.create_task(store.reads.list_flows()) for _ in range(20)]
            await asyncio.sleep(0)
            proxy.refuse()
            proxy.cut()
            assert await asyncio.gather(*lists) == [[]] * 20
    assert len(warnings_of(caplog)) == 1


@pytest.fixture
def impatient(pair: Pair) -> Iterator[Pair]:
    """Replay waits for no query of the standby."""
    execute(pair.standby.url, "alter system set max_standby_streaming_delay = 0")
    execute(pair.standby.url, "select pg_reload_conf()")
    yield pair
    execute(pair.standby.url, "alter system reset max_standby_streaming_delay")
    execute(pair.standby.url, "select pg_reload_conf()")


async def test_a_list_during_the_close_does_not_open_the_replica_again(pair: Pair) -> None:
    """Fault: while the close waited for one list, another opened connections that nobody closed."""
    async with opened(pair.primary.url, pair.standby.url) as store:
        replica = store._following
        assert replica is not None
        slow = asyncio.create_task(replica._asked(lambda c: c.fetchval("select 7, pg_sleep(0.5)")))
        while replica._pool is None or not replica._pool._lent:
            await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        while replica._pool is not None:
            await asyncio.sleep(0)
        assert await source_of(store.reads.list_runs(RunFilter(limit=10))) == "database"
        assert await slow == 7
        await closing
        assert replica._pool is None
        await store.open()
        assert await source_of(store.reads.list_runs(RunFilter(limit=10))) == "replica"


async def test_a_list_that_replay_interrupts_is_read_from_the_database(
    store: PostgresStore, impatient: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """S15: the list is not told to be away."""
    pair = impatient
    await store.reads.list_flows()
    query = """
        select case when pg_is_in_recovery() then pg_sleep(600)::text else 'database' end
        from (select count(*) from holdfast.flows) as flows
    """
    database = store.reads._database
    listing = asyncio.create_task(database._call(lambda c: c.fetchval(query)))
    with psycopg.connect(pair.standby.url, autocommit=True) as connection:
        running = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        while connection.execute(running).fetchone() != (1,):
            await asyncio.sleep(0)  # until the query has its locks
    execute(pair.primary.url, "begin; lock holdfast.flows in access exclusive mode; commit")
    assert await listing == "database"
    assert await source_of(store.reads.list_flows()) == "replica"
    assert not warnings_of(caplog)


async def test_a_list_that_takes_too_long_on_the_replica_is_not_read_again(pair: Pair) -> None:
    """It would take as long on the database, which the replica is to spare."""
    slow = "create or replace function holdfast.list_runs_slowly() returns int"
    async with opened(pair.primary.url, pair.standby.url, query_seconds=0.05) as store:
        await store.reads.list_flows()
        execute(pair.primary.url, f"{slow} language sql as 'select pg_sleep(600); select 1'")
        pair.catch_up()
        with noting_reads() as notes, pytest.raises(Exception) as raised:
            await store.reads._database.rows("list_runs_slowly")
        assert isinstance(raised.value.__cause__, TimeoutError)
        assert notes.source is None
    execute(pair.primary.url, "drop function holdfast.list_runs_slowly")


async def test_a_replica_without_the_newest_migration_is_not_used(behind: Pair) -> None:
    """S15: a new release starts before the replica has what `holdfast migrate` did."""
    change = "update holdfast.schema_functions set checksum = reverse(checksum)"
    execute(behind.primary.url, change)
    try:
        async with opened(behind.primary.url, behind.standby.url, check=False) as store:
            assert await source_of(store.reads.list_flows()) == "database"
            check = await store.check_reads()
            assert check is not None
            assert check.trouble == "it has not replayed the migration of the schema yet"
            behind.resume()
            assert await source_of(store.reads.list_flows()) == "replica"
    finally:
        execute(behind.primary.url, change)


# One that is not a replica


async def test_another_database_is_refused(pair: Pair, embedded_server: EmbeddedServer) -> None:
    """S15."""
    for url, why in (
        (embedded_server.url, "it is not a copy of it"),
        (pair.standby.url.replace("/holdfast?", "/template1?"), "another database of the same"),
        (pair.primary.url.replace("/holdfast?", "/template1?"), "another database of the same"),
    ):
        async with opened(pair.primary.url, url) as store:
            with pytest.raises(ConfigurationError, match=why):
                await store.reads.list_flows()
            with pytest.raises(ConfigurationError, match="Correct --read-database"):
                await store.check_reads()
            [finding] = await doctor.check_reads(store)
            assert (finding.level, why in finding.message) == ("fail", True)
            assert await source_of(store.reads.list_flows()) == "database"


async def test_the_database_itself_may_be_named(pair: Pair) -> None:
    async with opened(pair.primary.url, pair.primary.url) as store:
        with noting_reads() as notes:
            await store.reads.list_flows()
        assert (notes.source, notes.lag_seconds) == ("replica", 0.0)
        check = await store.check_reads()
        assert check is not None
        assert not check.is_standby
        [finding] = await doctor.check_reads(store)
        assert finding.level == "ok"
        assert finding.message.endswith("is the database itself")


async def test_a_replica_that_was_promoted_is_not_used_any_more(homes: Homes) -> None:
    """S15: what is written to the database from then on would never be in its lists."""
    with streaming(homes) as pair, Proxy(pair.standby.url) as proxy:
        async with opened(pair.primary.url, proxy.url) as store:
            assert await source_of(store.reads.list_flows()) == "replica"
            execute(pair.standby.url, "select pg_promote()")
            await store.reads.list_flows()  # over a connection from before: seen after its answer
            assert await source_of(store.reads.list_flows()) == "database"
            with pytest.raises(ConfigurationError, match="it is not a standby"):
                await store.check_reads()


async def test_lists_of_a_replica_are_decoded(store: PostgresStore, pair: Pair) -> None:
    payloads = payloads_of(Zlib())
    async with Client(store=with_payloads(store, payloads)) as client:
        handle = await client.start("shop/checkout", "x" * 10_000, version=1)
        pair.catch_up()
        with noting_reads() as notes:
            page = await client.runs.list(limit=1, payloads=True)
    assert notes.source == "replica"
    assert [(run.run_id, run.input) for run in page.runs] == [(handle.run_id, "x" * 10_000)]


async def test_the_schema_may_have_another_name(pair: Pair) -> None:
    execute(pair.primary.url, render("elsewhere"))
    pair.catch_up()
    async with opened(pair.primary.url, pair.standby.url, schema="elsewhere") as store:
        assert await source_of(store.reads.list_flows()) == "replica"
    execute(pair.primary.url, "drop schema elsewhere cascade")


# How far it is behind


async def test_doctor_says_how_far_the_replica_is_behind(
    store: PostgresStore, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15."""
    [finding] = await doctor.check_reads(store)
    assert (finding.level, finding.message.endswith("behind")) == ("ok", True)
    monkeypatch.setattr(doctor, "_LAG_WARN_SECONDS", 0.0)
    pair.pause()
    async with Client(store=store) as client:
        await client.start("shop/checkout", version=1)
    [finding] = await doctor.check_reads(store)
    assert finding.level == "warn"
    assert finding.remedy == "look at pg_stat_replication"
    pair.resume()
    with Proxy(pair.standby.url) as proxy:
        proxy.refuse()
        async with opened(pair.primary.url, proxy.url) as other:
            [finding] = await doctor.check_reads(other)
    assert finding.level == "warn"
    assert "not from" in finding.message


async def test_a_change_on_its_way_is_no_lag_although_the_last_commit_was_long_ago(
    store: PostgresStore, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, look = FollowingDatabase._written, FollowingDatabase._look
    looks: list[float | None] = []

    async def an_hour_later(self: FollowingDatabase) -> Any:
        place, now = await written(self)
        return place, now + timedelta(hours=1)

    async def then_replay(self: FollowingDatabase, place: Any, now: Any) -> Any:
        found = await look(self, place, now)
        looks.append(found[1])
        pair.resume()
        return found

    monkeypatch.setattr(FollowingDatabase, "_written", an_hour_later)
    monkeypatch.setattr(FollowingDatabase, "_look", then_replay)
    await store.reads.list_flows()
    looks.clear()
    pair.pause()
    execute(pair.primary.url, "select pg_logical_emit_message(true, 'tests', '')")
    check = await store.check_reads()
    assert check is not None
    assert check.lag_seconds is not None
    assert looks[0] is not None
    assert check.lag_seconds < 3600 < looks[0]


async def test_a_replica_that_falls_behind_is_warned_of_once(
    store: PostgresStore,
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.database")
    await store.check_reads()
    monkeypatch.setattr(following, "_LATE_SECONDS", 0.0000001)
    pair.pause()
    async with Client(store=store) as client:
        await client.start("shop/checkout", version=1)
    for _ in range(3):
        await store.check_reads()
    pair.resume()
    [warning] = warnings_of(caplog)
    assert "behind" in warning


# The archive


async def test_ended_runs_are_archived_from_a_replica_that_has_them(
    store: PostgresStore, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: while it lags, they are read from the database. None is lost."""
    asked: list[bool] = []
    export = PostgresStore.export_runs

    async def noted(self: Any, afters: Any) -> Any:
        asked.append(self._database is not store._database)
        return await export(self, afters)

    monkeypatch.setattr(type(store).__mro__[1], "export_runs", noted)
    archive = Archive(tmp_path.as_uri())
    for catches_up in (True, False):
        async with Client(store=store) as client:
            handle = await client.start("shop/archived", version=1, retention=timedelta(0))
            await client.runs.terminate(handle.run_id)
        if not catches_up:
            monkeypatch.setattr(following, "_CATCH_UP_SECONDS", 0.0)
            pair.pause()
        asked.clear()
        async for _ in sweep_batches(store, archive):
            pass
        assert asked == [catches_up]
        assert handle.run_id in await archive.find([handle.run_id])
        assert handle.run_id not in await store.get_runs([handle.run_id])
    pair.resume()


async def test_what_a_promoted_replica_has_is_not_archived(homes: Homes, tmp_path: Path) -> None:
    """A key was used again since, so there is another run with this id."""
    archive = Archive(tmp_path.as_uri())

    async def end_one(client: Client, text: str) -> UUID:
        handle = await client.start(
            "shop/checkout", text, key="order-7", version=1, retention=timedelta(0)
        )
        await client.runs.terminate(handle.run_id)
        return handle.run_id

    with streaming(homes) as pair:
        async with (
            opened(pair.primary.url, pair.standby.url) as store,
            Client(store=store) as client,
        ):
            run_id = await end_one(client, "first")
            pair.catch_up()
            early = await store.fresh_reads()
            assert await source_of(early.export_runs({run_id: None})) == "replica"
            execute(pair.standby.url, "select pg_promote()")
            await store.sweep_runs()
            assert await end_one(client, "second") == run_id
            exported = await early.export_runs({run_id: None})
            assert '"input":"second"' in exported.lines[run_id]
            async for _ in sweep_batches(store, archive):
                pass
            [archived] = (await archive.find([run_id])).values()
            assert archived.record.input == '"second"'


async def test_each_call_for_the_archive_looks_whether_its_server_has_all(
    store: PostgresStore, pair: Pair
) -> None:
    """A name or a balancer may lead each connection to another replica."""
    fresh = await store.fresh_reads()
    following = fresh._database
    assert await source_of(fresh.export_runs({uuid4(): None})) == "replica"
    pair.pause()
    following._written = "FFFFFFFF/0"  # more than this server has
    with noting_reads() as notes:
        await fresh.export_runs({uuid4(): None})
    pair.resume()
    assert notes.source == "database"
    assert await source_of(store.reads.list_flows()) == "replica"  # it is not away for others


# Where it is named


def test_the_read_database_of_the_environment_belongs_to_its_database() -> None:
    read = "postgresql://replica/shop"
    environ = {"HOLDFAST_DATABASE_URL": "postgresql://db/shop", "HOLDFAST_READ_DATABASE_URL": read}
    assert resolve_database(environ=environ).connecting.read_url == read
    other = resolve_database("postgresql://db/other", environ=environ)
    assert other.connecting.read_url is None
    given = Connecting(read_url="postgresql://replica/other")
    chosen = resolve_database("postgresql://db/other", environ=environ, connecting=given)
    assert chosen.connecting.read_url == "postgresql://replica/other"


def test_the_embedded_database_has_no_replica(tmp_path: Path) -> None:
    """One that the environment names is that of the database that it names."""
    given = Connecting(read_url="postgresql://replica/shop")
    with pytest.raises(ConfigurationError, match="the embedded database has no replica"):
        resolve_database(home=tmp_path, environ={}, connecting=given)
    environ = {"HOLDFAST_READ_DATABASE_URL": "postgresql://replica/shop"}
    with pytest.raises(DatabaseUnavailable, match="no embedded database"):
        resolve_database(home=tmp_path, environ=environ, make=False)


async def test_a_client_reads_lists_from_the_database_that_it_is_given(pair: Pair) -> None:
    async with Client(pair.primary.url, read_database=pair.standby.url) as client:
        assert await source_of(client.runs.list()) == "replica"
        assert await source_of(client.schedules.list()) == "replica"
        assert await source_of(client.workers.list()) is None
