"""One caller that waits for an open transaction keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from uuid import UUID

import asyncpg
import pytest
from contract.actors import ManualWorker, log_types
from contract.commands import RESIZE, activity, ordered
from scene import Scene, Session

from holdfast import App, Context, Limit, current_message
from holdfast.client import Client
from holdfast.errors import LockTimeout
from holdfast.store import shared_calls
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import ActivityEnd, Notice, Release
from holdfast.values.ids import keyed_run_id
from holdfast.worker import Worker, WorkerOptions, giving_back, releases
from holdfast.worker.activities import Reporter
from holdfast.worker.claimer import Room
from holdfast.worker.clock import EngineClock

app = App("shop")


@app.workflow
async def order(ctx: Context, number: int) -> int:
    return number


mill = App("mill")
grind = mill.flow("grind", input=int)


@grind.step
async def milled(run: int) -> int:
    return run


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, connections=4) as scene:
        yield scene


@pytest.fixture
async def client(scene: Scene) -> AsyncIterator[Client]:
    async with Client(store=scene.store, app=app) as client:
        yield client


async def stays_open(session: Session, hold: Callable[[], Awaitable[object]]) -> None:
    """Begin a transaction that holds something until the session's connection is closed."""
    await session.connection.execute("begin")
    await hold()


async def met_a_lock(coalescer: shared_calls.Coalescer[object, object]) -> None:
    """Wait until something has left its batch."""
    async with asyncio.timeout(60):
        while not coalescer._beside:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("together", [False, True], ids=["one-after-the-other", "one-batch"])
async def test_a_start_whose_key_an_open_transaction_has(
    scene: Scene, client: Client, together: bool
) -> None:
    session = await scene.session()
    run_id = keyed_run_id("shop/order", "7")
    await stays_open(session, lambda: session.call("start_one", run_id, "shop/order", "7", 1, "7"))
    waits = asyncio.create_task(client.start(order, 0, key="7"))
    if not together:
        await met_a_lock(client._session.starts("workflow"))
    others = await asyncio.gather(*(client.start(order, number) for number in range(60)))
    assert len({handle.run_id for handle in others}) == 60
    assert not waits.done()
    await session.connection.execute("commit")
    handle = await waits
    assert (handle.run_id, handle.already_existed) == (run_id, True)


async def test_many_starts_that_wait_leave_connections_to_others(
    scene: Scene, client: Client
) -> None:
    """More than the client has connections, each for a transaction of its own."""
    sessions = [await scene.session() for _ in range(6)]
    for number, session in enumerate(sessions):
        run_id, key = keyed_run_id("shop/order", f"{number}"), f"{number}"
        await session.connection.execute("begin")
        await session.call("start_one", run_id, "shop/order", "7", 1, key)
    waits = [asyncio.create_task(client.start(order, 0, key=f"{number}")) for number in range(6)]
    await met_a_lock(client._session.starts("workflow"))
    for number in range(20):
        await client.start(order, number)
    assert not any(each.done() for each in waits)
    for session in sessions:
        await session.connection.execute("rollback")
    assert [(await each).already_existed for each in waits] == [False] * 6


async def test_a_send_whose_deduplication_id_an_open_transaction_has(
    scene: Scene, client: Client
) -> None:
    await client.queues.create("mail")
    session = await scene.session()
    await session.connection.execute("begin")
    await session.connection.execute("select holdfast.send('mail', '1'::json, p_dedup_id => 'a')")
    waits = asyncio.create_task(client.queues.send("mail", 2, dedup_id="a"))
    await met_a_lock(client._session.sends("mail"))
    sent = await asyncio.gather(*(client.queues.send("mail", number) for number in range(20)))
    assert len(set(sent)) == 20
    assert not waits.done()
    await session.connection.execute("commit")
    assert await waits not in sent


async def test_a_signal_to_a_run_that_an_open_transaction_has(scene: Scene, client: Client) -> None:
    held, free = [(await client.start(order, number)).run_id for number in range(2)]
    session = await scene.session()
    await stays_open(session, lambda: session.call("_lock_turns", [held]))
    waits = asyncio.create_task(client.signal(held, "paid"))
    await met_a_lock(client._session.signals)
    await asyncio.gather(*(client.signal(free, "paid", number) for number in range(20)))
    assert not waits.done()
    await session.connection.execute("commit")
    await waits
    assert (await log_types(scene.store, held)).count("SignalReceived") == 1
    assert (await log_types(scene.store, free)).count("SignalReceived") == 20


async def test_a_start_of_a_flow_that_is_being_changed(scene: Scene, client: Client) -> None:
    for name in ("mill/held", "mill/free"):
        await scene.watcher.connection.execute("select holdfast.create_flow($1)", name)
        await scene.watcher.connection.execute("select holdfast.add_step($1, 'one')", name)
    session = await scene.session()
    await stays_open(session, lambda: session.call("_block_starts", "mill/held"))
    waits = asyncio.create_task(client.start("mill/held", {}))
    await met_a_lock(client._session.starts("flow"))
    await asyncio.gather(*(client.start("mill/free", {}) for _ in range(10)))
    assert not waits.done()
    await session.connection.execute("commit")
    assert not (await waits).already_existed


async def test_what_waits_too_long_is_told_so(
    scene: Scene, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_calls, "LOCKED_SECONDS", 0.2)
    session = await scene.session()
    run_id = keyed_run_id("shop/order", "7")
    await stays_open(session, lambda: session.call("start_one", run_id, "shop/order", "7", 1, "7"))
    with pytest.raises(LockTimeout, match="another transaction holds what the call needs"):
        await client.start(order, 0, key="7")


SEEN = "select pg_catalog.current_setting('lock_timeout')"


@pytest.mark.parametrize(
    "definition",
    [
        f"seen() returns text language plpgsql as $$ begin return ({SEEN}); end $$",
        f"seen() returns text language sql stable as $$ {SEEN} $$",
        f"seen() returns setof text language sql stable as $$ {SEEN} $$",
        f"seen(p int[], out a int, out seen text) language sql as $$ select p[1], ({SEEN}) $$",
    ],
)
async def test_a_call_of_any_function_begins_with_its_limit_for_locks(
    scene: Scene, definition: str
) -> None:
    """Also one without parameters, and one that the planner puts into the statement."""
    await scene.watcher.connection.execute(f"create function holdfast.{definition}")
    arguments = [[1]] if "int[]" in definition else []
    database = scene.store._database
    for millis in (None, 50, 7):
        limited = nullcontext() if millis is None else BriefLocks(millis)
        with limited:
            row = await database.row("seen", *arguments)
        assert row["seen"] == ("0" if millis is None else f"{millis}ms")


async def test_a_batch_costs_one_statement(
    scene: Scene, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit for locks costs neither a statement nor a round trip."""
    await client.start(order, 0)
    await client.queues.create("mail")
    texts: list[str] = []

    def counted(name: str) -> None:
        plain = getattr(asyncpg.Connection, name)

        async def call(
            self: asyncpg.Connection, text: str, *rest: object, **more: object
        ) -> object:
            texts.append(text)
            return await plain(self, text, *rest, **more)

        monkeypatch.setattr(asyncpg.Connection, name, call)

    for name in ("fetch", "fetchrow", "fetchval", "execute", "executemany"):
        counted(name)
    handle = await client.start(order, 1)
    await client.signal(handle.run_id, "paid")
    await client.queues.send("mail", 1)
    while client._session.busy:
        await asyncio.sleep(0)
    called = [text for text in texts if ".notify(" not in text]
    assert len(called) == 3
    assert all("lock_timeout" in text for text in called)
    assert not any(" join " in text for text in called)  # which costs the server more
    assert not any("lock_timeout" in text for text in texts if ".notify(" in text)


async def test_an_end_of_an_activity_whose_run_an_open_transaction_has(scene: Scene) -> None:
    ann = ManualWorker(scene.store, "ann")
    for _ in range(4):
        await ordered(scene.store, ann, activity())
    ends = [(task.run_id, task.lease_no) for task in (await ann.claim(handlers=RESIZE)).tasks]
    session = await scene.session()
    held = ends[1][0]
    await stays_open(session, lambda: session.call("_lock_turns", [held]))
    lending = Room(10).lending
    reporter = Reporter(scene.store, "ann", EngineClock(), list[Notice]().extend, lending)
    outcomes: dict[UUID, str] = {}
    for run_id, lease_no in ends:
        end = ActivityEnd(run_id=run_id, key="resize", lease_no=lease_no, result="1")
        reporter.submit(end, lambda outcome, run_id=run_id: outcomes.__setitem__(run_id, outcome))
    async with asyncio.timeout(60):
        while len(outcomes) < 3:
            await asyncio.sleep(0.005)
    assert held not in outcomes
    await session.connection.execute("commit")
    await reporter.flush()
    assert outcomes == {run_id: "recorded" for run_id, _ in ends}


async def test_a_start_of_a_consumer_whose_key_an_open_transaction_has(
    scene: Scene, client: Client
) -> None:
    """The messages after it are received, and acknowledged."""
    shop = App("shop")

    @shop.workflow(name="order")
    async def ordered_by_mail(ctx: Context, number: int) -> int:
        return number

    @shop.consumer("mail", concurrency=2)
    def book(number: int) -> None:
        current_message().start(ordered_by_mail, number, key=f"{number}")

    await client.queues.create("mail")
    session = await scene.session()
    run_id = keyed_run_id("shop/order", "0")
    await stays_open(session, lambda: session.call("start_one", run_id, "shop/order", "7", 1, "0"))
    worker = Worker(shop, scene.store, WorkerOptions())
    await worker.start()
    try:
        for number in range(20):
            await client.queues.send("mail", number)
        ended = "select count(*) from holdfast.runs where status = 'completed'"
        await scene.until(ended, lambda count: count == 19)
        await session.connection.execute("commit")
        await scene.until(ended, lambda count: count == 20)
        left = "select count(*) from holdfast.deliveries"
        await scene.until(left, lambda count: count == 0)
    finally:
        await worker.stop(grace=0)


@pytest.mark.parametrize("blocked", [False, True], ids=["a-drain", "a-blocked-worker"])
async def test_leases_of_a_worker_that_stops_beside_a_row_that_a_transaction_has(
    scene: Scene, blocked: bool
) -> None:
    """All others are free for other workers at once."""
    ann = ManualWorker(scene.store, "ann")
    for _ in range(8):
        await ordered(scene.store, ann, activity())
    tasks = (await ann.claim(handlers=RESIZE)).tasks
    session = await scene.session()
    await session.connection.execute("begin")
    hold = "select from holdfast.tasks where run_id = $1 for update"
    await session.connection.execute(hold, tasks[1].run_id)
    given_up = [Release(each.run_id, each.key, each.lease_no) for each in tasks]
    if blocked:
        gives = giving_back.give_back(scene.store, "ann", [*map(giving_back.GivenUp, given_up)])
    else:
        calls = releases.LastCalls()
        gives = releases.Releases(scene.store, "ann", list[Notice]().extend, calls).send(given_up)
    giving = asyncio.create_task(gives)
    left = "select count(*) from holdfast.tasks where worker = 'ann'"
    await scene.until(left, lambda count: count == 1)
    assert not giving.done()
    await session.connection.execute("commit")
    await giving
    assert await scene.value(left) == 0


CALLS: dict[str, tuple[str, Callable[[Client, UUID, int], Awaitable[object]]]] = {
    "publish": ("publish", lambda client, _, n: client.topics.publish("paid", n, event_id="7")),
    "cancel": ("run", lambda client, run_id, _: client.runs.cancel(run_id)),
    "terminate": ("run", lambda client, run_id, _: client.runs.terminate(run_id)),
    "pause": ("run", lambda client, run_id, _: client.runs.pause(run_id)),
    "bulk": ("run", lambda client, run_id, _: client.runs.cancel_all([run_id])),
    "signal": ("run", lambda client, run_id, _: client.signal(run_id, "paid")),
    "update": ("run", lambda client, run_id, _: client.update(run_id, "add", 1)),
    "result": ("ended", lambda client, run_id, _: client.result(run_id)),
    "fork": ("ended", lambda client, run_id, _: client.runs.fork(run_id, index=1)),
    "send": ("send", lambda client, _, n: client.queues.send("mail", n, dedup_id="7")),
    "start": ("start", lambda client, _, n: client.start(order, n, key="7")),
    "start-many": ("start", lambda client, _, n: client.start_many(order, [n], keys=["7"])),
    "delete-queue": ("send", lambda client, _, __: client.queues.delete("mail")),
    "compile": ("flow", lambda client, _, __: client.flows.compile(mill, replace=True)),
    "delete-flow": ("flow", lambda client, _, __: client.flows.delete("mill/grind")),
    "limit": ("limit", lambda client, _, n: client.limits.set(Limit(5 + n), queue="mail")),
    "pause-queue": ("pauses", lambda client, _, __: client.queues.pause("mail")),
}
"""Calls, and what an open transaction has that they need."""
HELD = {
    "publish": "select holdfast.publish('paid', '0'::json, '7')",
    "run": "select holdfast._lock_turns(array['{run_id}'::uuid])",
    "ended": "select from holdfast.runs where run_id = '{run_id}' for update",
    "send": "select holdfast.send('mail', '1'::json, p_dedup_id => '7')",
    "start": "select holdfast.start_run('shop/order', '1', '7')",
    "flow": "select holdfast.start_flow('mill/grind', '{{}}')",
    "limit": "lock table holdfast.limits in exclusive mode",
    "pauses": "lock table holdfast.pauses in exclusive mode",
}


@pytest.mark.parametrize("kind", CALLS)
async def test_calls_that_wait_leave_connections_to_others(
    scene: Scene, client: Client, kind: str
) -> None:
    """More of them than the client has connections."""
    await client.queues.create("mail")
    await scene.watcher.connection.execute("select holdfast.create_flow('mill/grind')")
    await scene.watcher.connection.execute("select holdfast.add_step('mill/grind', 'one')")
    run_id = (await client.start(order, 0)).run_id
    what, call = CALLS[kind]
    session = await scene.session()
    await session.connection.execute("begin")
    await session.connection.execute(HELD[what].format(run_id=run_id))
    waits = [asyncio.ensure_future(call(client, run_id, number)) for number in range(6)]
    await scene.until_blocked()
    for number in range(10):  # through all of its connections, one after the other
        await asyncio.wait_for(client.start(order, number), 10)
    assert not any(each.done() for each in waits)
    await session.connection.execute("rollback")
    if kind in ("update", "result"):  # nobody executes the run
        for each in waits:
            each.cancel()
    await asyncio.wait(waits)
