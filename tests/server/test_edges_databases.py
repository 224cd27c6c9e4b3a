"""Servers whose database is gone for a while, or of another release, or has several schemas."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.database.migrate import migrate
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from tests.proxy import Proxy
from tests.server.shop import HOST, KEY, app
from tests.server.test_attach import attached
from tests.server.test_database import on_database
from tests.server.test_operations import until


async def test_edge_7_a_proxy_strips_the_prefix(database_url: str) -> None:
    """Edge case 7. Links, redirects, files, the cookie and streams are below the prefix."""
    server = Server(database_url, auth=KeyAccess(KEY), app=app, hosts=[HOST], stream_seconds=0.2)
    transport = httpx.ASGITransport(server, root_path="/ops")  # as uvicorn's --root-path does
    async with server, httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as browser:
        refused = await browser.get("/ops/runs?state=failed")
        assert refused.status_code == 303, refused.text
        assert refused.headers["location"] == "/ops/login?next=%2Fruns%3Fstate%3Dfailed"
        entered = await browser.get("/ops/login", params={"key": KEY, "next": "/runs"})
        assert entered.headers["location"] == "/ops/runs"
        assert "Path=/ops;" in entered.headers["set-cookie"] + ";"
        html = (await browser.get("/ops/runs")).text
        assert 'data-connect="/ops/runs?ids=&amp;live=1"' in html
        run_id = (await server.site.client.start("shop/checkout", 7)).run_id
        html = (await browser.get(f"/ops/runs/{run_id}")).text
        assert f'data-connect="/ops/runs/{run_id}?live=1"' in html
        stream = await browser.get(f"/ops/runs/{run_id}?live=1")
        assert f'action="/ops/runs/{run_id}/do/pause"' in stream.text
        headers = {"Authorization": f"Bearer {KEY}", "Sec-Fetch-Site": "same-origin"}
        started = await browser.post(
            "/ops/v1/workflows/checkout/runs", json={"input": 1}, headers=headers
        )
        assert started.headers["location"].startswith("/ops/v1/runs/")
        out = await browser.post("/ops/logout", headers={"Sec-Fetch-Site": "same-origin"})
        assert out.headers["location"] == "/ops/login"
        assert (await browser.get("/ops/runs")).status_code == 303


@pytest.mark.fresh_database
async def test_edge_8_two_servers_are_mounted_on_two_schemas(database_url: str) -> None:
    """Edge case 8. In a program that runs no lifespan; neither sees the runs of the other."""
    connection = await asyncpg.connect(database_url)
    await migrate(connection, "second")
    await connection.close()
    servers = {
        schema: Server(database_url, auth=KeyAccess(KEY), app=app, hosts=[], schema=schema)
        for schema in ("holdfast", "second")
    }
    program = Starlette(routes=[Mount(f"/{name}", each) for name, each in servers.items()])
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(program), base_url="http://any", headers=headers
    ) as http:
        places: dict[str, str] = {}
        for schema in servers:
            started = await http.post(f"/{schema}/v1/workflows/checkout/runs", json={"input": 7})
            assert started.status_code == 201, started.text
            places[schema] = started.headers["location"].removeprefix(f"/{schema}")
        for schema, other in (("holdfast", "second"), ("second", "holdfast")):
            assert (await http.get(f"/{schema}{places[schema]}")).status_code == 200
            assert (await http.get(f"/{schema}{places[other]}")).status_code == 404
            assert len((await http.get(f"/{schema}/v1/runs")).json()["runs"]) == 1
    for each in servers.values():
        await each.site.close()


async def test_edge_9_streams_and_pages_outlive_the_database(database_url: str) -> None:
    """Edge case 9. The server is not ready meanwhile, and says so; then its streams continue."""
    with Proxy(database_url) as proxy:
        server = Server(proxy.url, auth=KeyAccess(KEY), app=app, hosts=[HOST], stream_seconds=60)
        headers = {"Authorization": f"Bearer {KEY}"}
        transport = httpx.ASGITransport(server)
        async with (
            server,
            httpx.AsyncClient(
                transport=transport, base_url=f"http://{HOST}", headers=headers
            ) as http,
        ):
            run_id = (await server.site.client.start("shop/checkout", 7)).run_id
            async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
                assert await stream.begin() == 200
                assert (await stream.event() or ("",))[0] == "WorkflowStarted"
                proxy.refuse()
                proxy.cut()

                async def status(code: int) -> bool:
                    return (await http.get("/ready")).status_code == code

                await until(lambda: status(503))
                assert (await http.get("/live")).status_code == 200
                page = await http.get("/runs")
                assert page.status_code == 503
                assert page.headers["content-type"].startswith("text/html")
                assert "The database cannot be used now" in page.text
                proxy.refuse(False)
                await until(lambda: status(200))
                assert (await http.get("/runs")).status_code == 200
                await server.site.client.signal(run_id, "go", 1)
                assert (await stream.event() or ("",))[0] == "SignalReceived"


@pytest.mark.fresh_database
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("drop schema holdfast cascade", "holdfast migrate"),
        (
            "delete from holdfast.schema_migrations where version = "
            "(select max(version) from holdfast.schema_migrations)",
            "holdfast migrate",
        ),
        ("update holdfast.schema_functions set checksum = 'other'", "holdfast migrate"),
        (
            "insert into holdfast.schema_migrations (version, name) values (9999, 'later')",
            "upgrade holdfast",
        ),
    ],
    ids=["missing", "older", "other functions", "newer"],
)
async def test_edge_10_a_schema_of_another_release(
    database_url: str, change: str, said: str
) -> None:
    """Edge case 10. The API, the pages and their streams say what to do, in a 503."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    await connection.execute(change)
    await connection.close()
    async with on_database(database_url) as api:
        for path in ("/ready", "/v1/runs"):
            problem = await api.ask("GET", path, status=503)
            assert problem["type"] == "urn:holdfast:problem:database"
            assert said in problem["detail"]
        started = await api.ask("POST", "/v1/workflows/checkout/runs", {"input": 7}, status=503)
        assert said in started["detail"]
        assert (await api.ask("GET", "/live")) == {"live": True}
        page = await api.http.get("/runs")
        assert (page.status_code, page.headers["retry-after"]) == (503, "1")
        assert page.headers["content-type"].startswith("text/html")
        assert said in page.text
        assert said in (await api.http.get("/runs?live=1")).text
