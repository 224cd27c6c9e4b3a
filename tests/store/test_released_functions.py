"""The functions that workers, servers and clients of 0.1.0 call: they work on after a migration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest

from holdfast import App
from holdfast.database.resolve import resolve_database
from holdfast.errors import SchemaOutdated
from holdfast.local_worker import local
from holdfast.store.opening import make_store
from holdfast.worker import WorkerOptions

CALLED = Path(__file__).with_name("functions_of_0.1.0.txt")
FUNCTIONS = """
select p.proname as name, array(
        select a.type::regtype::text from unnest(p.proargtypes::oid[]) with ordinality a (type, n)
        order by a.n) as given,
    cardinality(p.proargtypes::oid[]) - p.pronargdefaults as least,
    array(
        select concat_ws(' ', nullif(a.name, ''), a.type::regtype::text)
        from unnest(coalesce(p.proargnames, '{}'), p.proallargtypes, p.proargmodes)
            as a (name, type, mode)
        where a.mode in ('o', 't')
        union all
        select p.prorettype::regtype::text where p.proallargtypes is null) as returned
from pg_proc p
where p.pronamespace = 'holdfast'::regnamespace and p.proname !~ '^_' order by 1, 2
"""


async def test_functions_take_and_return_what_those_of_the_release_did(database_url: str) -> None:
    """Fault: the charts of a server of 0.1.0 failed, once `read_stats` had no column `seconds`.

    More columns, and more parameters that have defaults, change nothing for them. `list_runs` has
    new parameters before two that clients of 0.1.0 do not pass.
    """
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "holdfast"})
    found = await connection.fetch(FUNCTIONS)
    await connection.close()
    lost: list[str] = []
    for line in CALLED.read_text(encoding="utf-8").splitlines():
        name, given, returned = (part.split(", ") if part else [] for part in line.split(" | "))
        if not any(
            each["name"] == name[0]
            and each["given"][: len(given)] == given
            and each["least"] <= len(given)
            and set(returned) <= set(each["returned"])
            for each in found
        ):
            lost.append(line)
    assert lost == []


async def test_a_worker_that_starts_during_a_migration_is_heard(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: its heartbeat was refused for ever, and it could not give back what it held."""
    app = App("shop")
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "holdfast"})

    @app.activity
    def pack(number: int) -> int:
        return number

    @app.lifespan
    async def migration() -> AsyncGenerator[None]:
        before = await connection.fetchval("select checksum from schema_functions limit 1")
        await connection.execute("update schema_functions set checksum = 'of another release'")
        yield
        await connection.execute("update schema_functions set checksum = $1", before)

    heard = "select count(*) from workers where heard_at > started_at"
    async with asyncio.timeout(120):
        async with local(app, database_url, options=WorkerOptions(heartbeat_seconds=0.05)):
            with pytest.raises(SchemaOutdated):
                await make_store(resolve_database(database_url), "holdfast").open()
            while not await connection.fetchval(heard):
                assert "heartbeat failed" not in caplog.text
                await asyncio.sleep(0.01)
    await connection.close()
