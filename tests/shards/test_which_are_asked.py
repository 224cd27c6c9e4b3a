"""A call reaches the shards that it is about, all of them at the same time, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import Members, Pass, sharded, shards_of
from holdfast.store.shards.homes import home_of
from holdfast.store.shards.merging import cut_short
from holdfast.store.shards.router import notices_of
from holdfast.types import Forward, NewEvent, NewRun, NewSignal, Notice, RecordPage, RunFilter
from holdfast.values.ids import keyed_run_id, uuid7
from tests.shards.conftest import COUNT
from tests.shards.engine import make_engine

Calls = list[tuple[int, str]]


@pytest.fixture
def members(store: Store) -> Members:
    return cast("Members", shards_of(store))


@pytest.fixture
def calls(members: Members, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Provide the calls to shards that are made from now on."""
    made: Calls = []
    call = members.call

    async def noted(number: int, name: str, *args: Any, **options: Any) -> Any:
        made.append((number, name))
        return await call(number, name, *args, **options)

    monkeypatch.setattr(members, "call", noted)
    return made


def meet(members: Members, monkeypatch: pytest.MonkeyPatch, name: str, parties: int) -> None:
    """Let calls of a name wait until there are so many of them at the same time."""
    barrier, call = asyncio.Barrier(parties), members.call

    async def waiting(number: int, called: str, *args: Any, **options: Any) -> Any:
        if called == name:
            async with asyncio.timeout(10):
                await barrier.wait()
        return await call(number, called, *args, **options)

    monkeypatch.setattr(members, "call", waiting)


def id_where(fits: Callable[[UUID], bool]) -> UUID:
    while not fits(run_id := uuid7()):
        pass
    return run_id


async def test_a_run_of_another_client_is_looked_for_where_its_id_belongs(
    stores: list[Store], store: Store, calls: Calls
) -> None:
    run_id = id_where(lambda each: home_of(each, range(COUNT)) == 1)
    await stores[1].start_runs([NewRun(run_id=run_id, name="spread/add_one")])
    assert [*await store.get_runs([run_id])] == [run_id]
    assert calls == [(1, "newest_runs"), (1, "get_runs")]


async def test_a_run_that_is_elsewhere_is_looked_for_in_all(
    stores: list[Store], store: Store, calls: Calls
) -> None:
    run_id = id_where(lambda each: home_of(each, range(COUNT)) == 1)
    await stores[2].start_runs([NewRun(run_id=run_id, name="spread/add_one")])
    assert [*await store.get_runs([run_id])] == [run_id]
    assert (2, "get_runs") in calls
    calls.clear()
    assert [*await store.get_runs([run_id])] == [run_id]
    assert calls == [(2, "get_runs")]


async def test_a_page_is_full_though_one_shard_has_all_its_runs(
    stores: list[Store], store: Store, calls: Calls
) -> None:
    """Of the newest 60 runs all are in one shard, which is asked for its share first."""
    for number, some in ((0, 30), (1, 60), (2, 30), (1, 60)):
        for _ in range(some):
            await stores[number].start_runs([NewRun(run_id=uuid7(), name="spread/add_one")])
    page = await store.list_runs(RunFilter(limit=60))
    whole = await stores[1].list_runs(RunFilter(limit=60))
    assert [each.run_id for each in page.runs] == [each.run_id for each in whole.runs]
    assert sorted(calls) == [(number, "list_runs") for number in (0, 1, 1, 2)]
    seen = list(page.runs)
    while page.cursor is not None:
        page = await store.list_runs(RunFilter(limit=60, cursor=page.cursor))
        seen += page.runs
    assert len({each.run_id for each in seen}) == len(seen) == 180
    moments = [each.created_at for each in seen]
    assert moments == sorted(moments, reverse=True)


async def test_only_a_shard_whose_share_ends_the_page_is_asked_again() -> None:
    """A shard that searched for some time and found little ends the page, whatever others have."""
    store = MemoryStore(wall_clock)
    await store.start_runs([NewRun(run_id=uuid7(), name="spread/add_one")])
    [run] = (await store.list_runs(RunFilter())).runs
    place = f"/{run.run_id}"
    pages = {
        0: RecordPage([run, run], f"30{place}"),
        1: RecordPage([run, run], f"10{place}"),
        2: RecordPage([run], f"20{place}"),
        3: RecordPage([run, run], None),
    }
    assert cut_short(pages, 2) == [0]
    assert cut_short({n: page for n, page in pages.items() if n != 2}, 2) == [0, 1]


async def test_a_wake_up_is_sent_in_the_shard_that_it_is_of(
    stores: list[Store], store: Store, calls: Calls
) -> None:
    heard: list[asyncio.Queue[str]] = [asyncio.Queue() for _ in stores]
    for each, queue in zip(stores, heard, strict=True):
        await each.listen("work", queue.put_nowait)
    run = NewRun(
        run_id=id_where(lambda each: home_of(each, range(COUNT)) == 2), name="spread/add_one"
    )
    _, notices = await store.start_runs([run])  # none of a database that no worker serves
    notices = notices or notices_of([2], [[Notice("work", "default")]])
    calls.clear()
    await store.notify([*notices, Notice("work", "all")])
    assert sorted(calls) == [(number, "notify") for number in range(COUNT)]
    async with asyncio.timeout(10):
        for queue in heard[:2]:
            assert await queue.get() == "all"
        assert {await heard[2].get() for _ in range(2)} == {"default", "all"}
    calls.clear()
    await store.notify(notices)
    assert calls == [(2, "notify")]


async def test_what_is_for_other_shards_is_sent_to_all_of_them_at_once(
    stores: list[Store], members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [NewRun(run_id=uuid7(), name="spread/gather_signals") for _ in stores]
    for each, run in zip(stores, runs, strict=True):
        await each.start_runs([run])
    meet(members, monkeypatch, "receive_signals", COUNT)
    meet(members, monkeypatch, "publish", COUNT)
    page = [
        *(Forward(n, signal=NewSignal(run.run_id, "tell", "1")) for n, run in enumerate(runs)),
        *(Forward(9 + n, shard=n, event=NewEvent(topic="news")) for n in range(COUNT)),
    ]
    assert sorted(await Pass(members).send(page)) == [0, 1, 2, 9, 10, 11]


async def test_keys_of_earlier_times_are_looked_for_in_all_their_shards_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine has had one shard, then two: a key may be in either."""
    stores = [MemoryStore(wall_clock) for _ in range(COUNT)]
    await make_engine(stores, (1, 2, COUNT))
    store = sharded(stores)
    await store.open()
    members = cast("Members", shards_of(store))
    keys = [next(key for key in map(str, range(99)) if _homes(key) == (2, n)) for n in (0, 1)]
    meet(members, monkeypatch, "newest_runs", 2)
    runs = [NewRun(run_id=uuid7(), name="spread/add_one", key=key) for key in keys]
    started, _ = await store.start_runs(runs)
    assert [each.created for each in started] == [True, True]


def _homes(key: str) -> tuple[int, int]:
    run_id = keyed_run_id("spread/add_one", key)
    return home_of(run_id, range(COUNT)), home_of(run_id, range(2))
