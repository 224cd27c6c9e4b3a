"""Plans made from statistics of a time when no run was open, used when many are."""

from __future__ import annotations

import pytest
from contract.actors import new_run
from scene import Scene
from test_postgres_plans import Meter, seed

from holdfast.store.postgres import start_statement
from holdfast.types import DeclaredRules, StartRules

pytestmark = pytest.mark.fresh_database

ENDED = """
    insert into holdfast.runs (run_id, name, version, queue, priority, status, input, created_at,
        completed_at)
    select gen_random_uuid(), 'old_' || n % 5, 1, 'default', 2, 'completed', '1', holdfast.now(),
        holdfast.now()
    from generate_series(1, 5000) as n
"""
DUE = """
    update holdfast.runs set delete_after = holdfast.now() - interval '1 day'
    where run_id in (select r.run_id from holdfast.runs r where r.name = 'old_1' limit 20)
"""
PAGES = "select pg_stat_get_xact_blocks_fetched('holdfast.runs_by_status'::regclass)"
FLOWS = "select holdfast.create_flow(name) from unnest('{old_1,old_2}'::text[]) as f (name)"


async def test_plans_made_while_no_run_was_open_stay_right(scene: Scene) -> None:
    """What an index scan passes over is in no count of rows, but its pages are."""
    connection = scene.watcher.connection
    rules = StartRules(singleton_conflict="refuse")
    await scene.store.declare_start_rules([DeclaredRules("one", 1, rules)])
    await connection.execute(FLOWS)
    await connection.execute(ENDED)
    await connection.execute(DUE)
    await connection.execute("vacuum analyze holdfast.runs")
    await connection.execute(seed(20_000))
    meter = Meter(await scene.session())
    read: dict[str, int] = {}

    async def note(call: str, *arguments: object) -> None:
        async with meter.session.transaction():
            before = await meter.session.connection.fetchval(PAGES)
            if call == "start":
                statement = start_statement([new_run(name="one")])
                await meter.session.connection.fetch(statement.text, *statement.arguments)
            else:
                await meter.session.call(call, *arguments)
            read[call] = await meter.session.connection.fetchval(PAGES) - before

    first = new_run(name="one")
    await scene.store.start_runs([first])
    await note("start")
    await note("start_wait", first.run_id)
    await note("read_gauges", 10_000)
    await note("list_flows")
    await note("sweep_runs", 1_000, 20_000, None)
    assert {call: pages for call, pages in read.items() if pages > 60} == {}
