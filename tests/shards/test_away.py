"""A shard is away for a while: the others continue, and nothing for it is lost or overtakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast import Client
from holdfast.client import bulk
from holdfast.client.bulk import BulkOutcome
from holdfast.client.naming import RunRef
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    ResultTimeout,
    RunActive,
    SchemaMissing,
    UnknownWorkflow,
)
from holdfast.insight.check import Check
from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.store.port.shards import MayBeAway
from holdfast.store.shards.homes import home_of
from holdfast.types import DeclaredRules, NewRun, StartRules
from holdfast.values.ids import keyed_run_id
from tests.databases import execute
from tests.entities import carts
from tests.shards.app import add_one, app, fail, gather_signals, tell
from tests.shards.engine import Workers, away, client_of, engine_of, id_of, opened


def add_one_id(key: str) -> UUID:
    return keyed_run_id("spread/add_one", key)


def gather_id(key: str) -> UUID:
    return keyed_run_id("spread/gather_signals", key)


def key_of(make_id: Callable[[str], UUID], shard: int) -> str:
    """Return a key that belongs to a shard."""
    return next(f"k{n}" for n in range(99) if home_of(make_id(f"k{n}"), range(3)) == shard)


@pytest.fixture
async def stores(urls: list[str]) -> AsyncIterator[list[Store]]:
    """Provide open stores of the shards of an engine."""
    async with engine_of(found := opened(urls)):
        yield found


@pytest.fixture
async def client(urls: list[str], stores: list[Store]) -> AsyncIterator[Client]:
    """Provide a client of an engine whose workers run."""
    workers = Workers(app, stores, urls)
    await workers.start()
    async with client_of(app, urls) as client:
        yield client
    await workers.stop()


async def test_without_shard_0_runs_are_listed_all_the_same(
    client: Client, urls: list[str]
) -> None:
    here = await client.start(gather_signals, 1, run_id=id_of(2))
    async with away(urls[0]), client_of(app, urls) as new:
        with noting_reads() as notes:
            assert [each.run_id for each in (await new.runs.list()).runs] == [here.run_id]
            assert (await new.why(here.run_id)).because
        assert notes.away == {0}


async def test_a_run_with_a_key_in_another_shard_is_found_and_retried(
    client: Client, urls: list[str]
) -> None:
    """It may have been retried: what its shard does not have, no other one has."""
    key = key_of(add_one_id, 0)
    handle = await client.start(gather_signals, 1, key=key_of(gather_id, 2))
    waiting = asyncio.create_task(handle.result(timeout=60))
    await asyncio.sleep(0.2)
    async with away(urls[1]):
        done = await client.start(add_one, 1, key=key)
        assert await done.result(timeout=20) == 2
        assert (await client.runs.get(("add_one", key))).run_id == done.run_id
        await handle.signal("tell", 1)
        await waiting


async def test_a_build_is_not_safe_to_stop_while_a_shard_is_away(
    client: Client, store: Store, stores: list[Store], urls: list[str]
) -> None:
    for each in stores:
        for build in ("b1", "b2"):
            await each.declare_build("shop", build, ["shop/buy@1"])
        await each.promote_build("shop", "b2")
    async with away(urls[1]):
        [b1] = [each for each in await client.builds.list(app="shop") if each.build == "b1"]
        assert (b1.needed_for, b1.safe_to_stop) == (("shard 1, which is away",), False)
        check = Check(app)
        await check.add_open_runs(store)
        assert [each.where for each in check.report().unchecked] == ["shard 1"]


async def test_a_webhook_of_a_shard_that_is_away_is_not_said_to_be_unknown(
    store: Store, urls: list[str]
) -> None:
    """A sender that hears so never sends it again."""
    assert await store.find_webhook("digest") is None
    async with away(urls[1]):
        with pytest.raises(DatabaseUnavailable, match="shard 1 is away, and may have"):
            await store.find_webhook("digest")


async def test_a_filter_by_a_name_that_a_shard_that_is_away_may_have_is_not_refused(
    client: Client, store: Store, urls: list[str]
) -> None:
    """Runs of a release without apps have a name that no worker has signed on with."""
    await store.start_runs([NewRun(run_id=id_of(1), name="old")])
    with pytest.raises(UnknownWorkflow):
        await client.runs.list(names="odl")
    async with Client(store=store) as other, away(urls[1]):
        for each in (client, other):
            with noting_reads() as notes:
                assert (await each.runs.list(names="old")).runs == []
            assert notes.away == {1}
            with pytest.raises(MayBeAway, match="shard 1 is away"):
                await each.runs.cancel_all({"names": "old"})


async def test_the_others_continue(client: Client, urls: list[str]) -> None:
    there = await client.start(gather_signals, 1, run_id=id_of(1))
    async with away(urls[1]):
        for shard in (0, 2):
            handle = await client.start(add_one, shard, run_id=id_of(shard))
            assert await handle.result(timeout=20) == shard + 1
        with pytest.raises(DatabaseUnavailable, match="shard 1"):
            await client.start(add_one, 1, run_id=id_of(1))
        with pytest.raises(DatabaseUnavailable, match="shard 1"):
            await there.signal("tell")
        with pytest.raises(DatabaseUnavailable, match="shard 1 is away, and may have run"):
            await client.handle(uuid4()).signal("tell")
        with noting_reads() as notes:
            assert len((await client.runs.list()).runs) == 2
        assert notes.away == {1}
        with pytest.raises(ResultTimeout):
            await there.result(timeout=1.5)
        async with client_of(app, urls) as new:  # which does not know where any run is
            waiting = asyncio.create_task(new.handle(there.run_id).result(timeout=60))
            await asyncio.sleep(0.5)
            here = await client.start(gather_signals, 1, run_id=id_of(2))
            asking = asyncio.create_task(new.handle(here.run_id).result(timeout=20))
            await asyncio.sleep(1.5)
            await here.signal("tell", "x")
            assert await asking == ["x"]
    async with asyncio.timeout(60):
        while True:
            try:
                await there.signal("tell", "back")
                break
            except DatabaseUnavailable:
                await asyncio.sleep(0.1)
        assert await there.result() == ["back"]
    waiting.cancel()


async def test_a_database_that_takes_no_connections_is_away(
    client: Client, urls: list[str]
) -> None:
    place = urlsplit(urls[1])
    name = place.path[1:]
    server = await asyncpg.connect(place._replace(path="/postgres").geturl())
    await server.execute(f'alter database "{name}" allow_connections false')
    await server.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
    )
    async with client_of(app, urls) as new:
        handle = await new.start(add_one, 2, run_id=id_of(2))
        assert await handle.result(timeout=20) == 3
        with pytest.raises(DatabaseUnavailable, match="shard 1"):
            await new.start(add_one, 1, run_id=id_of(1))
    await server.execute(f'alter database "{name}" allow_connections true')
    await server.close()


async def test_signals_for_it_wait_and_keep_their_order(client: Client, urls: list[str]) -> None:
    there = await client.start(gather_signals, 20, run_id=id_of(1))
    here = await client.start(gather_signals, 20, run_id=id_of(2))
    async with away(urls[1]):
        for handle in (there, here):
            sender = await client.start(tell, str(handle.run_id), run_id=id_of(0))
            await sender.result(timeout=30)
            told = (await client.why(sender.run_id)).details  # fault: it failed, and so did pages
            lost = [each for each in told if "may be in shard 1, which is away" in each]
            assert len(lost) == (20 if handle is there else 0)
        assert await here.result(timeout=30) == list(range(20))
    async with asyncio.timeout(60):
        assert await there.result() == list(range(20))


async def test_a_rule_holds_while_the_shard_that_keeps_it_is_away(
    client: Client, urls: list[str]
) -> None:
    """The workers of all shards declare it; a client that is new asks those that answer."""
    await client.start("spread/alone")
    async with away(urls[0]), client_of(None, urls) as new:
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable, match="shard 0"):
                await new.start("spread/alone")
    async with asyncio.timeout(30):
        while True:
            try:
                with pytest.raises(RunActive):
                    await client.start("spread/alone")
                break
            except DatabaseUnavailable:
                await asyncio.sleep(0.1)


async def test_a_start_fails_of_its_own_shard_alone(client: Client, urls: list[str]) -> None:
    """Fault: those of one moment became one call, and all failed with the one that did."""
    ids = [id_of(shard) for shard in (0, 1, 2) for _ in range(4)]
    waiting = [await client.start(gather_signals, 1, run_id=id_of(n)) for n in (0, 1, 2)]
    async with away(urls[1]):
        starts = (client.start(add_one, 1, run_id=run_id) for run_id in ids)
        found = await asyncio.gather(*starts, return_exceptions=True)
        assert [isinstance(each, DatabaseUnavailable) for each in found] == [
            home_of(run_id, range(3)) == 1 for run_id in ids
        ]
        for each in found:
            if not isinstance(each, BaseException):
                assert await each.result(timeout=30) == 2
        told = await asyncio.gather(
            *(each.signal("tell", "x") for each in waiting), return_exceptions=True
        )
        assert [isinstance(each, DatabaseUnavailable) for each in told] == [False, True, False]
        for number in (0, 2):
            assert await waiting[number].result(timeout=30) == ["x"]


async def test_results_come_while_the_shard_of_another_wake_up_is_away(
    client: Client, urls: list[str]
) -> None:
    there, here = [await client.start(gather_signals, 1, run_id=id_of(n)) for n in (1, 2)]
    results = [asyncio.create_task(each.result(timeout=20)) for each in (there, here)]
    await asyncio.sleep(0.5)
    async with away(urls[1]):
        client._session.ends._named.add(there.run_id)  # told just before its shard went away
        await here.terminate()
        with pytest.raises(HoldfastError, match="terminated"):
            await results[1]
    results[0].cancel()


async def test_a_key_whose_run_has_ended_starts_again(client: Client, urls: list[str]) -> None:
    first = await client.start(add_one, 1, key=key_of(add_one_id, 0))
    assert await first.result(timeout=20) == 2
    async with away(urls[1]), client_of(app, urls) as new:
        for value in (2, 3):
            again = await new.start(add_one, value, key=key_of(add_one_id, 0), if_ended="start")
            assert await again.result(timeout=20) == value + 1
        with pytest.raises(DatabaseUnavailable, match="shard 1"):
            await new.start(add_one, 1, key=key_of(add_one_id, 1), if_ended="start")


async def test_an_entity_begins_and_is_deleted(stores: list[Store], urls: list[str]) -> None:
    """Whether another shard has it needs no look: its key says where it begins."""
    workers = Workers(carts.app, stores, urls)
    await workers.start()
    async with away(urls[1]), client_of(carts.app, urls) as client:
        for name in (f"c{n}" for n in range(9)):
            cart = client.entity(carts.Cart, name)
            if home_of(keyed_run_id("carts/Cart", name), range(3)) == 1:
                with pytest.raises(DatabaseUnavailable, match="shard 1"):
                    await cart.add("lamp")
                continue
            assert await cart.add("lamp") == 1
            assert await client.entities.delete(carts.Cart, name)
            assert await cart.add("desk") == 1
    await workers.stop()


async def test_a_change_of_all_runs_says_that_it_lacks_a_shard(
    client: Client, urls: list[str]
) -> None:
    for shard in (0, 1, 2):
        await client.start(gather_signals, 1, run_id=id_of(shard))
    async with away(urls[1]):
        assert (await client.runs.cancel_all({}, dry_run=True)).changed == 2
        with pytest.raises(DatabaseUnavailable, match=r"shard 1 is away.* 2 have changed"):
            await client.runs.cancel_all({})
    assert (await once_back(lambda: client.runs.cancel_all({}))).changed == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("knows", [True, False])
async def test_a_change_of_given_runs_changes_those_of_the_others(
    client: Client, urls: list[str], when: str, knows: bool
) -> None:
    runs: list[RunRef] = [
        (await client.start(gather_signals, 1, run_id=id_of(n))).run_id for n in (0, 1, 2)
    ]
    for shard in (0, 1, 2):
        runs.append((gather_signals, key_of(gather_id, shard)))
        await client.start(gather_signals, 1, key=key_of(gather_id, shard))
    other = client_of(app, urls)
    async with AsyncExitStack() as stack:
        if when == "before":
            await stack.enter_async_context(away(urls[1]))
        who = client if knows else await stack.enter_async_context(other)
        if when == "meanwhile":
            go_away_in(who, "cancel_runs", stack, urls[1])
        noted: list[BulkOutcome] = []
        with noting_reads() as notes:
            dry = await who.runs.cancel_all(runs, dry_run=True)
        assert (dry.changed, notes.away) == ((4, {1}) if when == "before" else (6, set()))
        with pytest.raises(DatabaseUnavailable, match=r"shard 1 .* 4 have changed; the same"):
            await who.runs.cancel_all(runs, progress=noted.append)
        assert noted[-1].changed == 4
    assert (await once_back(lambda: client.runs.cancel_all(runs))).changed == 2


async def test_a_shard_that_goes_away_meanwhile_stops_no_change_of_the_others(
    client: Client, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the change ended with the first page that met it."""
    monkeypatch.setattr(bulk, "PAGE", 4)
    for shard in (0, 1, 2) * 5:
        await client.start(gather_signals, 1, run_id=id_of(shard))
    async with AsyncExitStack() as stack:
        go_away_in(client, "signal_runs", stack, urls[1])
        with pytest.raises(DatabaseUnavailable, match=r"1[0-4] have changed; .*signal_id=") as told:
            await client.runs.signal_all({}, "tell", 1)
    signal_id = str(told.value).split("'")[1]
    again = partial(client.runs.signal_all, {}, "tell", 1, signal_id=signal_id)
    assert (await once_back(again)).changed <= 5


async def test_a_retry_of_all_runs_goes_past_a_shard_that_goes_away(
    client: Client, urls: list[str]
) -> None:
    for shard in (0, 1, 2) * 3:
        with pytest.raises(HoldfastError):
            await (await client.start(fail, run_id=id_of(shard))).result()
    async with AsyncExitStack() as stack:
        go_away_in(client, "fork_run", stack, urls[1])
        with pytest.raises(DatabaseUnavailable, match=r"shard 1 .* \d have changed"):
            await client.runs.retry_all({"names": "fail"})
        assert len((await client.runs.list(names="fail")).runs) == 2 * 6
    await once_back(lambda: client.runs.retry_all({"names": "fail"}))


def go_away_in(client: Client, call: str, stack: AsyncExitStack, url: str) -> None:
    """Take a shard away when the client's store makes a call for the first time."""
    store: Any = client._session.store
    real, lock = getattr(store, call), asyncio.Lock()
    gone: list[str] = []

    async def go_first(*args: object, **options: object) -> object:
        async with lock:
            if not gone:
                gone.append(url)
                await stack.enter_async_context(away(url))
        return await real(*args, **options)

    setattr(store, call, go_first)
    stack.callback(delattr, store, call)


async def once_back(change: Callable[[], Awaitable[BulkOutcome]]) -> BulkOutcome:
    """Make a change as soon as all shards answer."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await change()
            except DatabaseUnavailable:
                await asyncio.sleep(0.1)


async def test_entities_begin_in_one_batch_with_calls_of_the_shard_that_is_away(
    stores: list[Store], urls: list[str]
) -> None:
    """Fault: with a call id, those that had not begun failed with the error of the others."""
    workers = Workers(carts.app, stores, urls)
    await workers.start()
    homes = {f"c{n}": home_of(keyed_run_id("carts/Cart", f"c{n}"), range(3)) for n in range(12)}
    async with client_of(carts.app, urls) as client:
        for name, home in homes.items():
            if home == 1:
                await client.entity(carts.Cart, name).add("lamp")
        async with away(urls[1]):
            calls = (client.entity(carts.Cart, name, call_id="c").add("lamp") for name in homes)
            found = await asyncio.gather(*calls, return_exceptions=True)
        for home, answer in zip(homes.values(), found, strict=True):
            assert isinstance(answer, DatabaseUnavailable) if home == 1 else answer == 1
    await workers.stop()


async def test_starts_after_a_new_rule_do_not_fail_with_the_shard_that_is_away(
    client: Client, stores: list[Store], urls: list[str]
) -> None:
    """Fault: the others, which had refused them, were not asked again."""
    await client.start(add_one, 1, run_id=id_of(0))
    rules = StartRules(singleton_conflict="return")
    for each in stores:
        await each.declare_start_rules([DeclaredRules("spread/other", 1, rules)])
    ids = [id_of(shard) for shard in (1, 0, 2) for _ in range(3)]
    async with away(urls[1]):
        starts = (client.start(add_one, 1, run_id=run_id) for run_id in ids)
        found = await asyncio.gather(*starts, return_exceptions=True)
    assert [isinstance(each, DatabaseUnavailable) for each in found] == [True] * 3 + [False] * 6


@pytest.mark.parametrize(
    "lacks",
    [
        "delete from holdfast.schema_migrations where version > 50",
        "update holdfast.schema_migrations set version = version + 1000 where version > 50",
    ],
    ids=["older", "newer"],
)
async def test_a_shard_of_another_release_is_left_out_of_lists(
    stores: list[Store], urls: list[str], lacks: str
) -> None:
    """What the others have is listed, and runs of them start. Its own calls say what is wrong."""
    async with client_of(app, urls) as client:
        here = await client.start(gather_signals, 1, run_id=id_of(2))
    await stores[1].close()
    execute(urls[1], lacks)
    await _check_without_shard_1(urls, here.run_id)


async def test_a_shard_without_a_schema_is_left_out_of_lists(
    stores: list[Store], urls: list[str]
) -> None:
    async with client_of(app, urls) as client:
        here = await client.start(gather_signals, 1, run_id=id_of(2))
    execute(urls[1], "alter schema holdfast rename to other")
    try:
        await _check_without_shard_1(urls, here.run_id)
    finally:
        execute(urls[1], "alter schema other rename to holdfast")


async def _check_without_shard_1(urls: list[str], listed: UUID) -> None:
    async with client_of(app, urls) as client:
        with noting_reads() as notes:
            assert [each.run_id for each in (await client.runs.list()).runs] == [listed]
            assert await client.runs.count("state")
        assert notes.away == {1}
        await client.start(gather_signals, 1, run_id=id_of(0))
        with pytest.raises(DatabaseError, match=r"holdfast migrate|upgrade holdfast"):
            await client.start(gather_signals, 1, run_id=id_of(1))


async def test_a_shard_that_becomes_unusable_is_left_out_of_lists(
    client: Client, urls: list[str]
) -> None:
    here = await client.start(gather_signals, 1, run_id=id_of(2))
    execute(urls[1], "alter schema holdfast rename to other")
    try:
        with noting_reads() as notes:
            assert [each.run_id for each in (await client.runs.list()).runs] == [here.run_id]
        assert notes.away == {1}
        with pytest.raises(MayBeAway, match="shard 1 is away"):
            await client.runs.get(id_of(1))
        with pytest.raises(SchemaMissing, match="holdfast migrate"):
            await client.start(gather_signals, 1, run_id=id_of(1))
    finally:
        execute(urls[1], "alter schema other rename to holdfast")
    assert [each.run_id for each in (await client.runs.list()).runs] == [here.run_id]
