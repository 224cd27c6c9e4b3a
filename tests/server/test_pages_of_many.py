"""Pages about many runs: how many ended and how, and changes of all that a search finds."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages import counts
from holdfast.store.port import Store
from tests.server.desk import app, checkout
from tests.server.shop import HOST, KEY
from tests.server.test_pages import browser, page, send, server, start

__all__ = ["browser", "server"]  # fixtures


async def test_edge_24_many_runs_are_changed_without_the_browser_and_after_their_server(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    """A change continues when its page is closed; the page of one whose server is gone leads on."""
    for number in range(500):
        await server.site.client.runs.pause(
            (await server.site.client.start(checkout, number)).run_id
        )
    form = {"do": "resume", "count": "500", "job": "two", "typed": "500"}
    answer = await send(browser, "/bulk?workflow=desk/checkout&do=resume", 303, **form)
    place = answer.headers["location"]
    await browser.aclose()
    client = server.site.client
    async with asyncio.timeout(60):
        while (await client.runs.list(states="paused", limit=1)).runs:
            await asyncio.sleep(0.02)
    async with (
        Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as other,
        httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url=f"http://{HOST}") as again,
    ):
        await again.get(f"/login?key={KEY}&next=/runs")
        html = await page(again, place)
        assert "does not know how far the change is" in html
        link = re.search(r'href="(/bulk[^"]+)"', html)
        assert link is not None
        html = await page(again, link[1].replace("&amp;", "&"))
        assert "Nothing would change" in html


async def test_the_list_says_how_many_runs_ended_and_how(
    server: Server, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts stop at a limit, and those who look at the same time ask once."""
    monkeypatch.setattr(counts, "_MOST", 2)
    for number in range(3):
        await server.site.client.runs.terminate(await start(server, number))
    cancelled = await start(server)
    await server.site.client.runs.cancel(cancelled)
    asked: list[object] = []
    count_runs = server.site.store.count_runs

    async def counted(names: Any, limit: int) -> object:
        asked.append(names)
        return await count_runs(names, limit)

    monkeypatch.setattr(server.site.store, "count_runs", counted)
    for html in await asyncio.gather(*(page(browser, "/runs") for _ in range(5))):
        assert re.search(r">cancelled 1</a>", html)
        assert re.search(r">terminated 2\+</a>", html)
    assert asked == [None]
    assert ">cancelled 1</a>" in await page(browser, "/runs?workflow=desk/checkout&state=cancelled")
    assert ">cancelled</a>" in await page(browser, "/runs?queue=default")
    assert asked == [None, ["desk/checkout"]]
