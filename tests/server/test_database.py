"""A server whose database is slow, away, or not the one of this release; and a mounted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.client import Client
from holdfast.server import Server, site
from holdfast.server.access import KeyAccess
from tests.server.shop import HOST, KEY, Api, app

BLOCKED = """
select exists (select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock')
"""


@asynccontextmanager
async def on_database(url: str) -> AsyncIterator[Api]:
    """Ask a server on a database; it connects at the first request."""
    server = Server(url, auth=KeyAccess(KEY), app=app, hosts=[HOST])
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(server), base_url=f"http://{HOST}", headers=headers
    ) as http:
        yield Api(http)
    await server.site.close()


async def listed(api: Api) -> object:
    """List the runs; on a busy machine that may take too long, too."""
    async with asyncio.timeout(60):
        while (answer := await api.http.get("/v1/runs")).status_code == 503:
            await asyncio.sleep(0.1)
    return answer.json()["runs"]


@asynccontextmanager
async def living(server: Server) -> AsyncIterator[None]:
    """Run the lifespan of a server, as the program does that serves it, while the block lasts."""
    told, said = asyncio.Queue[dict[str, str]](), asyncio.Queue[MutableMapping[str, Any]]()
    running = asyncio.create_task(server({"type": "lifespan"}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    yield
    await told.put({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await running


async def test_a_server_connects_before_it_is_asked(database_url: str) -> None:
    """Fault: one that nobody had asked before a migration refused everything after it."""
    server = Server(database_url, auth=KeyAccess(KEY), app=app, hosts=[HOST])
    async with asyncio.timeout(60), living(server):
        while not server.site.is_open:
            await asyncio.sleep(0.01)
    assert not server.site.is_open


async def test_a_server_lives_without_its_database(caplog: pytest.LogCaptureFixture) -> None:
    away = "postgresql://nobody@127.0.0.1:1/none"
    async with asyncio.timeout(60), living(Server(away, auth=KeyAccess(KEY), hosts=[HOST])):
        while "the server connects when it is asked" not in caplog.text:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(60), living(Server(away, auth=KeyAccess(KEY), hosts=[HOST])):
        pass  # it stops while it connects


async def test_a_list_that_takes_too_long_is_narrowed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say that the database cannot be reached; starts do not wait for it."""
    monkeypatch.setattr(site, "READ_SECONDS", 0.3)
    connection = await asyncpg.connect(database_url)
    try:
        async with on_database(database_url) as api:
            assert await listed(api) == []
            async with connection.transaction():
                await connection.execute("lock table holdfast.runs in access exclusive mode")
                problem = await api.ask("GET", "/v1/runs", status=503)
            assert problem["type"] == "urn:holdfast:problem:query-too-slow"
            assert "narrow it" in problem["detail"]
            assert await listed(api) == []
    finally:
        await connection.close()


async def test_a_database_that_is_away_is_said(empty_database_url: str) -> None:
    async with on_database("postgresql://nobody:secret@127.0.0.1:1/none") as api:
        assert await api.ask("GET", "/live") == {"live": True}
        for path in ("/ready", "/v1/runs"):
            problem = await api.ask("GET", path, status=503)
            assert problem["type"] == "urn:holdfast:problem:database"
            assert problem["detail"].startswith("The database cannot be used now: try again")
            assert "127.0.0.1" not in str(problem)
            assert "secret" not in str(problem)
        answer = await api.http.get("/v1/runs")
        assert answer.headers["retry-after"] == "1"
    async with on_database(empty_database_url) as api:
        problem = await api.ask("GET", "/ready", status=503)
        assert "holdfast migrate" in problem["detail"]
        await api.ask("GET", "/v1/runs", status=503)


async def test_servers_are_mounted_in_another_program(database_url: str) -> None:
    """Below two prefixes, with no lifespan; what each answers is below its own."""
    servers = {
        prefix: Server(database_url, auth=KeyAccess(KEY), app=app, hosts=[])
        for prefix in ("/a/holdfast", "/b")
    }
    program = Starlette(routes=[Mount(prefix, each) for prefix, each in servers.items()])
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(program), base_url="http://any", headers=headers
    ) as http:
        for prefix in servers:
            answer = await http.post(f"{prefix}/v1/workflows/checkout/runs", json={"input": 7})
            assert answer.status_code == 201, answer.text
            place = answer.headers["location"]
            assert place.startswith(f"{prefix}/v1/runs/")
            assert (await http.get(place)).status_code == 200
            assert (await http.get(f"{prefix}/ready")).status_code == 200
            description = (await http.get(f"{prefix}/v1/openapi.json")).json()
            assert description["servers"] == [{"url": prefix}]
    for each in servers.values():
        await each.site.close()
    async with Client(database_url) as client:
        assert len((await client.runs.list()).runs) == 2


@pytest.mark.parametrize("path", ["cancel", "terminate", "signals/go", "pause"])
async def test_requests_that_wait_for_an_open_transaction_keep_no_other_waiting(
    database_url: str, path: str
) -> None:
    """More requests than the server has connections, about a run that a transaction has."""
    holder, watcher = [await asyncpg.connect(database_url) for _ in range(2)]
    async with on_database(database_url) as api:
        await listed(api)
        run_id = await api.start()
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(f"select holdfast._lock_turns(array['{run_id}'::uuid])")
        post = api.http.post
        waits = [asyncio.create_task(post(f"/v1/runs/{run_id}/{path}")) for _ in range(10)]
        while not await watcher.fetchval(BLOCKED):
            await asyncio.sleep(0.005)
        for _ in range(10):
            await asyncio.wait_for(api.start(), 10)
        assert not any(each.done() for each in waits)
        await transaction.rollback()
        assert {(await each).status_code for each in waits} <= {200, 202, 409}
    await holder.close()
    await watcher.close()
