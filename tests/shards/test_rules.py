"""A workflow gets a rule for starts while clients are open that do not know it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from holdfast.store.port import Store
from holdfast.types import DeclaredRules, NewRun, StartRules
from holdfast.worker import Worker
from holdfast.worker.shard import Shard
from tests.shards.app import app
from tests.shards.engine import client_of, engine_of, id_of, opened

NAME = "spread/alone"
RULES = [DeclaredRules(NAME, 1, StartRules(singleton_conflict="return"))]
NO_RULES = [DeclaredRules(NAME, 1, None)]


def run_of(shard: int) -> NewRun:
    return NewRun(run_id=id_of(shard), name=NAME)


async def open_runs(stores: Sequence[Store]) -> list[int]:
    """Return how many runs are open, by shard."""
    found = [(await each.count_runs([NAME], 100)).get(NAME, {}) for each in stores]
    return [each.get("running", 0) for each in found]


async def test_its_next_starts_are_those_of_the_rule(store: Store, stores: list[Store]) -> None:
    """Fault: for 5 s they began without it, or each shard had a singleton of its own."""
    await store.start_runs([NewRun(run_id=id_of(0), name="spread/add_one")])
    for each in reversed(stores):
        await each.declare_start_rules(RULES)
    started = [(await store.start_runs([run_of(number)]))[0][0] for number in (2, 1, 0)]
    assert [each.created for each in started] == [True, False, False]
    assert await open_runs(stores) == [1, 0, 0]


async def test_a_rule_is_in_force_once_all_shards_have_it(
    store: Store, stores: list[Store]
) -> None:
    """Before, one client could start a key in shard 0, and another one where it belongs."""
    await store.start_runs([NewRun(run_id=id_of(0), name="spread/add_one")])
    for each in (stores[2], stores[0]):
        await each.declare_start_rules(RULES)
    await store.start_runs([run_of(1)])
    assert await open_runs(stores) == [0, 1, 0]
    await stores[1].declare_start_rules(RULES)
    await store.start_runs([run_of(1), run_of(2)])
    assert await open_runs(stores) == [1, 1, 0]


async def test_a_worker_declares_its_rules_in_all_shards(store: Store, stores: list[Store]) -> None:
    """Those of the others may come minutes later."""
    worker = Worker(app, stores[1], shard=Shard(1, store))
    await worker.start()
    await worker.stop(0)
    for each in stores:
        assert [rules.name for rules in await each.list_start_rules()] == [NAME]


async def test_a_start_that_is_repeated_after_the_rule_came_is_one_run(
    store: Store, stores: list[Store]
) -> None:
    run = run_of(1)
    await store.start_runs([run])
    for each in stores:
        await each.declare_start_rules(RULES)
    [[again], _] = await store.start_runs([run])
    assert not again.created
    assert await open_runs(stores) == [0, 1, 0]


async def test_what_some_shards_began_is_not_said_to_be_old(
    store: Store, stores: list[Store]
) -> None:
    """Shard 2 refuses the start of one that does not know its rules, after 0 and 1 have begun."""
    await store.start_runs([NewRun(run_id=id_of(0), name="spread/add_one")])
    await stores[2].declare_start_rules([DeclaredRules("spread/other", 1, RULES[0].rules)])
    started, _ = await store.start_runs([run_of(number) for number in (0, 1, 2, 1, 0)])
    assert [each.created for each in started] == [True] * 5
    assert await open_runs(stores) == [2, 2, 1]


async def test_without_the_rule_starts_are_spread_again(store: Store, stores: list[Store]) -> None:
    for each in stores:
        await each.declare_start_rules(RULES)
    await store.start_runs([run_of(1)])
    for each in stores:
        await each.declare_start_rules(NO_RULES)
    await store.start_runs([run_of(1), run_of(2)])
    assert await open_runs(stores) == [1, 1, 1]


async def test_the_rule_waits_for_starts_that_do_not_know_it(urls: list[str]) -> None:
    """Else such a start could be checked before, and begin after: in its shard, by the rule."""
    async with engine_of(stores := opened(urls)), client_of(None, urls) as client:
        await contest(client._session.store, stores, urls[1])


async def contest(store: Store, stores: Sequence[Store], url: str) -> None:
    """Declare the rule while a start waits in its shard."""
    await store.start_runs([NewRun(run_id=id_of(0), name="spread/add_one")])
    blocker = await asyncpg.connect(url)
    try:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("lock table holdfast.runs in exclusive mode")
        starting = asyncio.create_task(store.start_runs([run_of(1)]))
        await asyncio.sleep(0.5)
        declaring = asyncio.create_task(stores[1].declare_start_rules(RULES))
        await asyncio.sleep(0.5)
        assert not declaring.done()
        assert not starting.done()
        await transaction.rollback()
    finally:
        await blocker.close()
    async with asyncio.timeout(20):
        [[started], _] = await starting
        await declaring
    assert started.created
    for each in stores:
        await each.declare_start_rules(RULES)
    [[later], _] = await store.start_runs([run_of(1)])
    assert later.created
    assert (await open_runs(stores))[0] == 1
