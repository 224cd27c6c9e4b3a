"""What the transactions of a shard leave for others: kept, sent, sent again, and taken once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import asyncpg
import psycopg
import pytest

from holdfast import Client
from holdfast.errors import ConfigurationError, DatabaseUnavailable, InvalidInput
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import Members, Pass, shards_of
from holdfast.types import (
    Forward,
    NewEvent,
    NewRun,
    NewSignal,
    NewSubscription,
    RunFilter,
    RunTarget,
    ShardState,
    target_of,
)
from holdfast.values.ids import uuid7
from tests.databases import execute
from tests.shards.app import app, continue_with, gather_signals, tell
from tests.shards.conftest import Make
from tests.shards.engine import opened

End: TypeAlias = Callable[[Sequence[int]], Awaitable[None]]


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client."""
    async with Client(store=store, app=app) as client:
        yield client


@pytest.fixture
def members(store: Store) -> Members:
    """Provide the shards of the client's store."""
    return cast("Members", shards_of(store))


async def started(store: Store) -> NewRun:
    """Start a run in one shard."""
    run = NewRun(run_id=uuid7(), name="spread/gather_signals")
    await store.start_runs([run])
    return run


def signals_to(run: NewRun, numbers: range) -> list[Forward]:
    return [Forward(n, signal=NewSignal(run.run_id, "tell", str(n), f"id-{n}")) for n in numbers]


async def told(store: Store, run: NewRun) -> list[str | None]:
    events = (await store.read_events([(run.run_id, 0)]))[run.run_id]
    return [each.key for each in events if each.type == "SignalReceived"]


async def test_what_is_sent_twice_arrives_once(stores: list[Store], members: Members) -> None:
    run = await started(stores[1])
    for page in (range(3), range(2, 5), range(5)):
        assert sorted(await Pass(members).send(signals_to(run, page))) == [*page]
    assert await told(stores[1], run) == [f"id-{n}" for n in range(5)]


async def test_what_is_sent_twice_arrives_once_though_the_run_continues(
    client: Client, members: Members, make_workers: Make
) -> None:
    async with make_workers(app):
        handle = await client.start(continue_with, [])
        run = NewRun(run_id=handle.run_id, name="spread/continue_with")
        for number in (1, 2):
            for _ in range(2):  # as if the sender was killed before it knew
                assert await Pass(members).send(signals_to(run, range(number, number + 1)))
                await asyncio.sleep(0.2)
        assert await Pass(members).send(signals_to(run, range(5)))
        async with asyncio.timeout(20):
            assert await handle.result() == [1, 2, 0, 3, 4]


async def test_nothing_overtakes_what_was_held(
    stores: list[Store], members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = await started(stores[1]), await started(stores[2])
    call, is_away = members.call, True

    async def some_away(number: int, name: str, *args: object, **options: object) -> object:
        if number == 1 and is_away and name == "receive_signals":
            raise DatabaseUnavailable("away")
        return await call(number, name, *args, **options)

    monkeypatch.setattr(members, "call", some_away)
    sending = Pass(members)
    assert await sending.send(signals_to(run, range(2))) == []
    is_away = False
    assert await sending.send(signals_to(run, range(2, 4)) + signals_to(other, range(9, 10))) == [9]
    assert await told(stores[1], run) == []
    assert await Pass(members).send(signals_to(run, range(4))) == [0, 1, 2, 3]
    assert await told(stores[1], run) == [f"id-{n}" for n in range(4)]


async def test_a_signal_that_is_refused_holds_up_no_other(
    stores: list[Store],
    members: Members,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a value may be that is nested more deeply than the other server allows."""
    run, call = await started(stores[1]), members.call

    async def refuse(number: int, name: str, *args: object, **options: object) -> object:
        if name == "receive_signals":
            signals = cast("Sequence[NewSignal]", args[0])
            if any(each.signal_id == "id-2" for each in signals):
                raise InvalidInput("too deeply nested")
        return await call(number, name, *args, **options)

    monkeypatch.setattr(members, "call", refuse)
    assert await Pass(members).send(signals_to(run, range(5))) == [0, 1, 2, 3, 4]
    assert await told(stores[1], run) == ["id-0", "id-1", "id-3", "id-4"]
    assert "a signal is refused by shard 1, and is dropped there" in caplog.text


async def test_a_database_that_is_another_shard_now_is_sent_nothing(
    stores: list[Store], members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is for it waits until the address leads to the shard again."""
    run, call = await started(stores[1]), members.call

    async def refuse(number: int, name: str, *args: object, **options: object) -> object:
        if name in ("receive_signals", "publish"):
            raise ConfigurationError("database 2 of those that are named is shard 0")
        return await call(number, name, *args, **options)

    monkeypatch.setattr(members, "call", refuse)
    event = NewEvent(topic="news", payload="1", event_id="event")
    page = [*signals_to(run, range(2)), Forward(2, event=event, shard=1)]
    assert await Pass(members).send(page) == []
    monkeypatch.undo()
    assert sorted(await Pass(members).send(page)) == [0, 1, 2]


async def test_what_nobody_can_have_any_more_is_dropped(
    stores: list[Store], members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    ended, missing = await started(stores[2]), NewRun(run_id=uuid7(), name="a/b")
    await stores[2].terminate_runs([ended.run_id])
    page = [*signals_to(ended, range(1)), *signals_to(missing, range(1, 2))]
    assert sorted(await Pass(members).send(page)) == [0, 1]
    assert f"run {ended.run_id} has ended" in caplog.text
    assert f"run {missing.run_id} does not exist" in caplog.text


async def test_one_worker_at_a_time_is_given_what_is_to_be_sent(stores: list[Store]) -> None:
    await stores[0].publish(NewEvent(topic="news", payload="1"))
    assert [each.shard for each in await stores[0].take_forwards("one")] == [1, 2]
    assert await stores[0].take_forwards("two") == []
    first, second = await stores[0].take_forwards("one")
    assert await stores[0].take_forwards("one", held={1}) == [second]
    assert await stores[0].take_forwards("one", limit=1) == [first]
    await stores[0].end_forwards([first.forward_id, second.forward_id])
    assert await stores[0].take_forwards("one") == []


async def test_large_payloads_are_sent_a_few_at_a_time(
    stores: list[Store], members: Members
) -> None:
    """All in one call would take more time than a call has, again and again."""
    large = f'"{"x" * (3 << 20)}"'
    for number in range(3):
        await stores[0].publish(NewEvent(topic="news", payload=large, event_id=f"event-{number}"))
    pages: list[int] = []
    while page := await stores[0].take_forwards("one"):
        done = await Pass(members).send(page)
        await stores[0].end_forwards(done)
        pages.append(len(done))
    assert pages == [3, 3]
    assert len(await stores[0].take_forwards("one", limit=0)) == 0


def test_what_is_held_is_not_compared_one_by_one(database_url: str) -> None:
    """While a shard is away, each page leaves out all that waits for runs of it."""
    plans: list[str] = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into holdfast.shard (engine, number, counts) values ('x', 0, '{2}')"
        )
        connection.execute("""
            insert into holdfast.forwards (target_run_id, details, created_at)
            select gen_random_uuid(), '{"name":"tell","payload":"1","signal_id":"x"}', now()
            from generate_series(1, 100)
        """)
        connection.add_notice_handler(lambda told: plans.append(told.message_primary or ""))
        connection.execute(
            "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_level"
            " = notice; set auto_explain.log_nested_statements = on"
        )
        taken = connection.execute("""
            select count(*) from holdfast.take_forwards('one', array(
                select f.target_run_id from holdfast.forwards f limit 99), '{1}', 500)
        """).fetchone()
    assert taken == (1,)
    [plan] = [each for each in plans if "order by f.forward_id" in each]
    assert "Scan" in plan
    assert "Nested Loop" not in plan


async def test_who_sent_before_the_clock_was_set_back_keeps_nobody_from_it(
    stores: list[Store], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    [home, *_] = stores
    await home.publish(NewEvent(topic="news", payload="1"))
    if isinstance(home, MemoryStore):
        with monkeypatch.context() as ahead:
            ahead.setattr(home, "_clock", lambda: wall_clock() + 3_600_000_000)
            assert len(await home.take_forwards("one")) == 2
    else:
        assert len(await home.take_forwards("one")) == 2
        set_back = "update holdfast.shard set forwarder_until = forwarder_until + interval '1 hour'"
        execute(request.getfixturevalue("urls")[0], set_back)
    assert len(await home.take_forwards("two")) == 2
    assert await home.take_forwards("one") == []


async def test_what_was_committed_late_is_given_before_what_its_sender_left_later(
    urls: list[str],
) -> None:
    """Its number was drawn before that of another run's signal, which is given first."""
    insert = """
        insert into holdfast.forwards (target_run_id, details, created_at)
        values ($1, '{"name":"tell","payload":"1","signal_id":"x"}', now())
    """
    [store, *_] = opened(urls)
    await store.open()
    await store.set_shard_state(ShardState("engine", 0, (3,)))
    sender, other = await asyncpg.connect(urls[0]), await asyncpg.connect(urls[0])
    run_id, another = uuid7(), uuid7()
    async with sender.transaction():
        await sender.execute(insert, run_id)
        await other.execute(insert, another)
        [given] = await store.take_forwards("one")
        assert target_of(given) == another
    await sender.execute(insert, run_id)
    for held in ((), {another}):
        page = await store.take_forwards("one", held=held)
        assert [target_of(each) for each in page if target_of(each) == run_id] == [run_id] * 2
        assert page[0].forward_id < given.forward_id
    await asyncio.gather(sender.close(), other.close(), store.close())


async def test_an_event_starts_a_run_once_and_comes_to_each_shard_once(
    stores: list[Store], members: Members, store: Store
) -> None:
    for each in stores:  # as if each shard had the subscription
        await each.subscribe(NewSubscription(pattern="news", target=RunTarget(name="spread/fail")))
    published, _ = await store.publish(NewEvent(topic="news", event_id="e1"))
    assert (published.is_new, published.workflows) == (True, 1)
    for _ in range(2):
        page = await stores[0].take_forwards("one")
        assert sorted(await Pass(members).send(page)) == [each.forward_id for each in page]
    pages = [await each.list_runs(RunFilter()) for each in stores]
    assert [len(page.runs) for page in pages] == [1, 1, 1]
    assert [await each.take_forwards("x") for each in stores[1:]] == [[], []]


async def test_a_database_alone_keeps_nothing(alone: Store) -> None:
    await alone.publish(NewEvent(topic="news"))
    assert await alone.shard_state() is None
    assert await alone.take_forwards("one") == []


async def test_a_sender_that_was_cut_off_sends_again(
    stores: list[Store], client: Client, make_workers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived and was not forgotten, as if the worker was killed in between."""
    cut: Counter[int] = Counter()
    for number, each in enumerate(stores):
        original = each.end_forwards

        async def end(ids: Sequence[int], number: int, original: End) -> None:
            cut[number] += 1
            if cut[number] % 2:
                raise DatabaseUnavailable("cut off")
            await original(ids)

        monkeypatch.setattr(each, "end_forwards", partial(end, number=number, original=original))
    monkeypatch.setattr("holdfast.worker.services.forwarder._INTERVAL_SECONDS", 0.2)
    async with make_workers(app):
        waiting = [await client.start(gather_signals, 20) for _ in range(6)]
        for handle in waiting:
            await client.start(tell, str(handle.run_id))
        async with asyncio.timeout(60):
            for handle in waiting:
                assert await handle.result() == list(range(20))
            while sum(cut.values()) < 2:  # the first answer of a shard is cut off
                await asyncio.sleep(0.05)
