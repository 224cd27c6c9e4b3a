"""A database from before names had apps: nothing of it is lost, and no key is used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from holdfast import App, Client, Context
from holdfast.codec import fingerprint
from holdfast.database.migrate import migrate
from holdfast.database.scripts import load_scripts
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewRun
from holdfast.values.ids import child_run_id, keyed_run_id, uuid7
from holdfast.worker import Worker, WorkerOptions

PATIENCE = "2m"
DONE, WAITING, FAILED = keyed_run_id("checkout", "done"), keyed_run_id("checkout", "w"), uuid7()

app = App("shop")
packed: list[str] = []


@app.activity
async def pack(box: int) -> str:
    packed.append(f"box {box}")
    return f"box {box}"


@app.workflow
async def ship(ctx: Context) -> str:
    return "shipped"


@app.workflow
async def checkout(ctx: Context, order: int) -> list[str]:
    boxes = [await pack(1), await pack(2)]
    await ctx.wait_for_signal("packed")
    return [*boxes, await ship()]


@app.workflow
async def gift(ctx: Context, order: int) -> str:
    return f"gift {order}"


POLICY = '{"attempts":1,"backoff":"fixed","base":1.0,"max":1.0,"factor":2.0,"jitter":0.0}'


def scheduled(box: int, args: int) -> str:
    return (
        f'{{"activity_name":"pack","args":{args},"input":[{box}],"queue":"default","priority":2,'
        f'"retry":{POLICY},"start_to_close":null,"schedule_to_close":null,'
        '"heartbeat_timeout":null}'
    )


async def former(connection: asyncpg.Connection) -> None:
    """Write what a release without apps would have left: names are names alone."""

    for migration in load_scripts().migrations:
        if migration.name != "apps":
            await connection.execute(migration.text)
    run = """
        insert into holdfast.runs (run_id, name, version, key, queue, priority, status, input,
            output, error, created_at, completed_at)
        values ($1, 'checkout', 1, $2, 'default', 2, $3, '7', $4, $5, now(),
            case $3 when 'running' then null else now() end)
    """
    event = """
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        values ($1, $2, $3, $4, $5, now())
    """
    task = """
        insert into holdfast.tasks
            (run_id, key, kind, queue, handler, priority, visible_at, awaiting, payload)
        values ($1, $2, $3, 'default', $4, 2, $5, $6, $7)
    """
    await connection.execute(run, DONE, "done", "completed", '["once"]', None)
    error = '{"kind":"builtins.ValueError","message":"broken"}'
    await connection.execute(run, FAILED, None, "failed", None, error)
    for run_id, end in ((DONE, "WorkflowCompleted"), (FAILED, "WorkflowFailed")):
        await connection.execute(event, run_id, 0, "WorkflowStarted", None, None)
        await connection.execute(event, run_id, 1, end, None, None)
    # One box is packed, the other is to be.
    await connection.execute(run, WAITING, "w", "running", None, None)
    await connection.execute(event, WAITING, 0, "WorkflowStarted", None, None)
    first, second = (scheduled(box, fingerprint(f"[{box}]")) for box in (1, 2))
    await connection.execute(event, WAITING, 1, "ActivityScheduled", "pack", first)
    result = '{"activity_name":"pack","result":"the box of before","attempt":1}'
    await connection.execute(event, WAITING, 2, "ActivityCompleted", "pack", result)
    await connection.execute(event, WAITING, 3, "ActivityScheduled", "pack#2", second)
    later = "infinity"
    far = await connection.fetchval("select $1::text::timestamptz", later)
    await connection.execute(task, WAITING, "", "workflow", "checkout@1", far, [":end"], None)
    soon = await connection.fetchval("select now()")
    await connection.execute(task, WAITING, "pack#2", "activity", "pack@0", soon, None, second)
    await connection.execute(
        "insert into holdfast.pauses (scope, name, paused_at) values ('workflow', 'ship', now())"
    )


@pytest.fixture
async def store(empty_database_url: str) -> AsyncIterator[PostgresStore]:
    """A store on a database that was migrated with runs under way."""
    connection = await asyncpg.connect(empty_database_url)
    await former(connection)
    await migrate(connection, "holdfast")
    await connection.close()
    store = PostgresStore(empty_database_url)
    await store.open()
    yield store
    await store.close()


async def eventually(client: Client, run_id: UUID, name: str) -> None:
    async with asyncio.timeout(30):
        while (await client.runs.get(run_id)).full_name != name:
            await asyncio.sleep(0.01)


async def test_the_app_that_signs_on_takes_over_what_was_there(store: PostgresStore) -> None:
    """Live runs with their activities, ended ones, pauses; and what was recorded stays so."""
    packed.clear()
    options = WorkerOptions(poll_seconds=0.05, maintenance_seconds=0.1)
    worker = Worker(app, store, options)
    await worker.start()
    async with Client(store=store) as client:
        assert (await client.runs.get(WAITING)).full_name == "shop/checkout"
        await client.signal(("checkout", "w"), "packed")
        [pause] = await client.workflows.pauses()
        assert pause.name == "shop/ship"
        await client.workflows.resume("ship")
        handle = client.handle(WAITING)
        assert await handle.result(PATIENCE) == ["the box of before", "box 2", "shipped"]
        assert packed == ["box 2"]
        for ended in (DONE, FAILED):
            await eventually(client, ended, "shop/checkout")
        [child] = (await client.runs.list(parent=WAITING)).runs
        assert child.run_id == child_run_id(WAITING, "ship")
        retried = await client.runs.retry(FAILED)
        assert (await retried.get()).full_name == "shop/checkout"
    await worker.stop(0)


async def test_runs_that_a_program_of_before_starts_after_the_migration_are_taken_over(
    store: PostgresStore,
) -> None:
    """It has been connected since; and no run of the workflow was there at the migration."""
    worker = Worker(app, store, WorkerOptions(maintenance_seconds=1e6))
    await worker.start()
    late = NewRun(run_id=keyed_run_id("gift", "late"), name="gift", key="late", input="7")
    await store.start_runs([late])
    async with Client(store=store) as client:
        await worker.maintain()
        again = await client.start(gift, 7, key="late")
        assert (again.run_id, again.already_existed) == (late.run_id, True)
        assert await again.result(PATIENCE) == "gift 7"
        assert (await client.runs.get(late.run_id)).full_name == "shop/gift"
    await worker.stop(0)


async def test_a_workflow_that_is_paused_under_both_names_is_paused_once(
    store: PostgresStore,
) -> None:
    """Before the first worker with apps came, it was paused again with its app."""
    async with Client(store=store) as client:
        await client.workflows.pause("shop/ship", reason="the new one")
        worker = Worker(app, store)
        await worker.start()
        await worker.stop(0)
        [pause] = await client.workflows.pauses()
        assert (pause.name, pause.reason) == ("shop/ship", "the new one")


async def test_a_key_from_before_apps_starts_no_second_run(store: PostgresStore) -> None:
    """For each caller: the client, SQL, or one that waits for the result."""
    async with Client(store=store) as client:
        again = await client.start(checkout, 7, key="done")
        assert (again.run_id, again.already_existed, again.status_at_start) == (
            DONE,
            True,
            "completed",
        )
        assert await client.run("shop/checkout", 7, key="done", wait=PATIENCE) == ["once"]
        many = await client.start_many(checkout, [7, 8], keys=["w", "new"])
        assert [each.already_existed for each in many] == [True, False]
        assert many[0].run_id == WAITING
        assert many[1].run_id == keyed_run_id("shop/checkout", "new")
        assert (await client.runs.get((checkout, "done"))).run_id == DONE
        assert await store.find_run("shop/checkout", "w") == WAITING


async def test_another_apps_key_is_different_from_a_key_from_before_apps(
    store: PostgresStore,
) -> None:
    """Once an app has taken the run over."""
    worker = Worker(app, store)
    await worker.start()
    await worker.maintain()
    await worker.stop(0)
    async with Client(store=store) as client:
        other = await client.start("other/checkout", 7, key="done")
        assert not other.already_existed
        assert (await client.start(checkout, 7, key="done")).already_existed
