"""Pages about many runs: how many ended and how, and changes of all that a search finds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from holdfast.client import Client
from holdfast.client.run import RunPage
from holdfast.errors import ConfigurationError
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages import counts, rows
from holdfast.server.pages.rows import Rows
from holdfast.store.port import Store
from holdfast.types import RunRecord
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


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("stat=failed", "stat: it is unknown; there are do, run, q, state, workflow"),
        ("state=failed&colour=red", "colour: it is unknown"),
        ("State=failed", "State: it is unknown"),
        ("state=failed&cursor=x", "cursor: it is unknown"),
        ("state=", "state: it is empty"),
        ("key=%20", "key: it is empty"),
        ("q=", "q: it is empty"),
        ("key=a&key=b", "key: it is given twice"),
        ("key=a&q=key:b", "key: it is given twice"),
        ("q=input.a=1+input.a.b=2", "input.a.b: it contradicts another filter"),
        ("q=input.1.2.3.4.5.6.7.8.9=1", "input.1.2.3.4.5.6.7.8.9: write input. and 1 to 8"),
    ],
)
async def test_a_change_of_many_runs_is_refused_if_a_filter_is_not_understood(
    server: Server, browser: httpx.AsyncClient, query: str, told: str
) -> None:
    """Fault: a misspelt or an empty filter was left out, and all runs were meant."""
    run_id = await start(server)
    for path in (f"/bulk?do=cancel&{query}", f"/bulk/{uuid4()}?do=cancel&{query}"):
        answer = await browser.get(path)
        if path.startswith("/bulk?") or "unknown" in told:
            assert answer.status_code == 400
            assert told in answer.text
    form = {"do": "cancel", "count": "1", "job": "one", "typed": "1"}
    answer = await send(browser, f"/bulk?do=cancel&{query}", 400, **form)
    assert told in answer.text
    assert (await server.site.client.runs.get(run_id)).status in ("pending", "running", "waiting")


async def test_forms_and_lists_refuse_names_that_they_do_not_have(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """Fault: `stat=failed` listed all runs, and a reason under a misspelt name was lost."""
    run_id = await start(server)
    assert "stat: it is unknown" in await page(browser, "/runs?stat=failed", 400)
    assert "sapn: it is unknown; there are span" in await page(browser, "/?sapn=1w", 400)
    assert "it is unknown; there are none" in await page(browser, "/workers?queue=mail", 400)
    answer = await send(browser, f"/runs/{run_id}/do/cancel", 400, reson="ordered twice")
    assert "reson: it is unknown; there are reason" in answer.text
    form = {"do": "cancel", "count": "1", "job": "two", "typed": "1", "dry_run": "true"}
    assert "dry_run: it is unknown" in (await send(browser, "/bulk?do=cancel", 400, **form)).text
    assert (await server.site.client.runs.get(run_id)).status in ("pending", "running", "waiting")
    given = {"name": "desk/checkout", "run_id": str(uuid4()), "f.nubmer": "7"}
    answer = await send(browser, "/workflows/start", 422, **given)
    assert "the form has no field &#39;nubmer&#39; (any more)" in answer.text
    assert len((await server.site.client.runs.list()).runs) == 1


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


async def test_what_many_look_at_is_read_once_for_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has other rows on the screen; a row that has gone is asked for no more often."""
    asked, get_runs = list[set[UUID]](), store.get_runs

    async def counted(run_ids: Sequence[UUID], *, payloads: bool = True) -> dict[UUID, RunRecord]:
        asked.append(set(run_ids))
        assert not payloads
        return await get_runs(run_ids, payloads=payloads)

    async with Client(store=store) as client:
        one, two, three = [(await client.start("shop/buy", n)).run_id for n in range(3)]
    gone, shown = uuid4(), Rows()
    monkeypatch.setattr(store, "get_runs", counted)
    monkeypatch.setattr(rows, "SECONDS", 3_600.0)
    found = await asyncio.gather(*(shown.read(store, [one, two, gone]) for _ in range(50)))
    assert asked == [{one, two, gone}]
    assert all(each.keys() == {one, two} for each in found)
    assert found[0][one].input is None
    assert (await shown.read(store, [two, three])).keys() == {two, three}
    assert asked[1:] == [{three}]
    monkeypatch.setattr(rows, "SECONDS", 0.0)
    assert (await shown.read(store, [one])).keys() == {one}
    assert asked[2:] == [{one, two, three, gone}]


async def test_a_list_that_many_look_at_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that leaves does not end it for the others, and a failure is not kept."""
    monkeypatch.setattr(rows, "SECONDS", 3_600.0)
    shown, answer, asked = Rows(), asyncio.Event(), list[int]()
    page = RunPage([], None)

    async def ask() -> RunPage:
        asked.append(1)
        await answer.wait()
        return page

    looking = [asyncio.create_task(shown.page("all", ask)) for _ in range(50)]
    while not asked:
        await asyncio.sleep(0)
    looking.pop(0).cancel()
    answer.set()
    assert await asyncio.gather(*looking) == [page] * 49
    assert len(asked) == 1
    await shown.page("failed", ask)
    assert len(asked) == 2

    async def fail() -> RunPage:
        asked.append(1)
        raise ConfigurationError("no such filter")

    for _ in range(2):
        with pytest.raises(ConfigurationError):
            await shown.page("wrong", fail)
    assert len(asked) == 4
