"""Retries of all failed runs of a filter leave out children: over HTTP and on the pages."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from holdfast import App, Client, Context
from holdfast.server import Principal, Server
from holdfast.store.port import Store
from tests.runtime.desk import working
from tests.server.shop import HOST, KEY, Api

WHERE = {"status": ["failed"]}


@pytest.fixture(autouse=True)
async def family(server: Server, store: Store) -> None:
    """Provide a parent and its child, both of which failed."""
    app = App("families")

    @app.workflow
    async def ship(ctx: Context, order: str) -> None:
        raise ConnectionError("away")

    @app.workflow
    async def buy(ctx: Context, order: str) -> None:
        await ship(order)

    async with working(app, store), Client(app=app, store=store) as client:
        await client.start(buy, "o1")
        async with asyncio.timeout(60):
            while len((await client.runs.list(states="failed")).runs) < 2:
                await asyncio.sleep(0.02)


async def test_over_http(api: Api) -> None:
    for dry_run in (True, False):
        body = {"do": "retry", "where": WHERE, "dry_run": dry_run}
        answer = await api.http.post("/v1/bulk", json=body)
        expected = '"matched":2,"changed":1,"unchanged":1,"left_to_parents":1'
        assert f"event: done\ndata: {{{expected}}}" in answer.text


async def test_on_the_pages(server: Server) -> None:
    transport, url = httpx.ASGITransport(server), f"http://{HOST}"
    async with httpx.AsyncClient(transport=transport, base_url=url) as browser:
        await browser.get(f"/login?key={KEY}&next=/runs")
        html = (await browser.get("/bulk?do=retry&state=failed")).text
        assert "<b>1 run</b> would be changed, of 2 that match" in html
        assert "1 run left out, because other runs started them" in html
        form = {"do": "retry", "count": "1", "typed": "1", "job": "one"}
        here = {"Sec-Fetch-Site": "same-origin"}
        answer = await browser.post("/bulk?state=failed", data=form, headers=here)
        assert answer.status_code == 303, answer.text
        place = answer.headers["location"]
        async with asyncio.timeout(30):
            while "completed" not in (html := (await browser.get(place)).text):
                await asyncio.sleep(0.02)
        assert "<b>1</b> changed" in html
        assert "1 run left out" in html
        html = (await browser.get("/bulk?do=retry&state=failed")).text
        assert "Nothing would change: 2 runs match" in html
        assert "1 run left out" in html


@pytest.mark.parametrize("payloads", [True, False])
async def test_a_caller_who_does_not_see_the_parent_leaves_its_child(
    store: Store, payloads: bool
) -> None:
    """The parent is of another app, and those who see it may retry it."""
    shop, post = App("shop"), App("post")

    @post.workflow
    async def send(ctx: Context, order: str) -> None:
        raise ConnectionError("away")

    @shop.workflow
    async def sell(ctx: Context, order: str) -> None:
        await ctx.child("post/send", order)

    async with working(post, store), working(shop, store), Client(store=store, app=shop) as client:
        await client.start(sell, "o1")
        await client.start("post/send", "o2")
        async with asyncio.timeout(60):
            while len((await client.runs.list(states="failed", names="post/send")).runs) < 2:
                await asyncio.sleep(0.02)
    principal = Principal("ann", "admin", ("post",), payloads)
    served = Server(store=store, auth=lambda _: principal, app=shop, hosts=[HOST])
    transport, url = httpx.ASGITransport(served), f"http://{HOST}"
    async with served, httpx.AsyncClient(transport=transport, base_url=url) as http:
        for dry_run in (True, False):
            body = {"do": "retry", "where": WHERE, "dry_run": dry_run}
            answer = await http.post("/v1/bulk", json=body)
            expected = '"matched":2,"changed":1,"unchanged":1,"left_to_parents":1'
            assert f"event: done\ndata: {{{expected}}}" in answer.text
