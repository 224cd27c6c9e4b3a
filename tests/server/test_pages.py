"""The dashboard as HTML: what pages say, what forms do, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.server import Principal, Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages.table import TABLE
from holdfast.store.port import Store
from tests.server.desk import app, checkout
from tests.server.shop import HOST, KEY

HOSTILE = "<script>alert(1)</script>\"onload='x'\u202e"
HERE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    """Provide a server on the store, which knows the app."""
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as opened:
        yield opened


@pytest.fixture
async def browser(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a browser that has opened the link with the key."""
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        answer = await client.get(f"/login?key={KEY}&next=/runs")
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        yield client


async def page(browser: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:2000]}"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


async def send(
    browser: httpx.AsyncClient, path: str, status: int = 303, **fields: str
) -> httpx.Response:
    answer = await browser.post(path, data=fields, headers=HERE)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:2000]}"
    return answer


async def start(server: Server, input: object = 7, **options: Any) -> str:
    handle = await server.site.client.start(checkout, input, **options)
    return str(handle.run_id)


async def test_the_list_shows_runs_and_the_search_leads_to_one(
    server: Server, browser: httpx.AsyncClient
) -> None:
    assert "No run yet" in await page(browser, "/runs")
    run = await start(server, key="order-7")
    html = await page(browser, "/runs")
    assert "order-7" in html
    assert "queued" in html
    assert "order-7" in await page(browser, "/")
    filtered = "/runs?q=queued+workflow:checkout+input.a.b=1"
    assert "order-7" not in await page(browser, filtered)
    await start(server, {"a": {"b": 1}}, key="order-8")
    assert "order-8" in await page(browser, filtered)
    assert "No run fits" in await page(browser, "/runs?state=failed")
    for text in ("desk/checkout/order-7", "checkout/order-7", run, run[:13]):
        answer = await browser.get("/runs", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}"), text
    assert "no run was started as" in await page(browser, "/runs?q=checkout/nobody", 404)


async def test_pages_follow_each_other_by_cursor(
    server: Server, browser: httpx.AsyncClient
) -> None:
    for number in range(55):
        await start(server, number, key=f"order-{number}")
    first = await page(browser, "/runs")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    second = await page(browser, older[1].replace("&amp;", "&"))
    shown = re.findall(r'id="r-([0-9a-f]{32})"', first + second)
    assert len(shown) == len(set(shown)) == 55
    assert 'rel="next"' not in second


async def test_the_page_of_a_run_says_why_and_has_its_actions(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, {"n": 1}, key="order-7")
    why = await server.site.client.runs.get(run)
    assert why.state == "queued"
    html = await page(browser, f"/runs/{run}")
    assert "no live worker serves" in html
    assert "holdfast worker MODULE:APP" in html
    for tab in ("log", "data"):
        await page(browser, f"/runs/{run}?tab={tab}")
    assert "WorkflowStarted" in await page(browser, f"/runs/{run}?tab=log")
    await page(browser, f"/runs/{run}?tab=other", 404)
    await page(browser, "/runs/0198c0de-0000-7000-8000-000000000000", 404)
    await page(browser, "/runs/x", 404)
    whole = await browser.get(f"/runs/{run}/download/input")
    assert whole.json() == {"n": 1}
    assert whole.headers["content-disposition"].startswith("attachment")


async def test_forms_change_a_run_and_an_old_page_is_told_so(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server)
    await send(browser, f"/runs/{run}/do/pause", reason="a look")
    assert "it was paused" in await page(browser, f"/runs/{run}")
    await send(browser, f"/runs/{run}/do/resume")
    await send(browser, f"/runs/{run}/do/signal", name="go", payload='{"a": 1}', id="once")
    again = await send(browser, f"/runs/{run}/do/signal", name="go", payload='{"a": 1}', id="once")
    assert "done=" in again.headers["location"]
    log = await server.site.client.runs.log(run)
    assert [each.event.type for each in log].count("SignalReceived") == 1
    wrong = await send(browser, f"/runs/{run}/do/signal", 422, name="go", payload="{a")
    assert "not JSON" in wrong.text
    await send(browser, f"/runs/{run}/do/terminate", reason="enough")
    assert "it was terminated" in await page(browser, f"/runs/{run}")
    late = await send(browser, f"/runs/{run}/do/cancel", 409)
    assert "has ended (terminated)" in late.text
    retried = await send(browser, f"/runs/{run}/do/retry")
    assert run not in retried.headers["location"]


async def test_a_fork_takes_another_input_and_a_form_sent_twice_makes_one(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, 7)
    html = await page(browser, f"/runs/{run}/fork?index=1")
    new = re.search(r'name="run_id" value="([^"]+)"', html)
    assert new is not None
    for _ in range(2):
        answer = await send(browser, f"/runs/{run}/fork", run_id=new[1], index="1", input="8")
        assert answer.headers["location"] == f"/runs/{new[1]}?done=fork"
    assert (await server.site.client.runs.get(new[1])).input == 8


async def test_names_and_payloads_are_text(server: Server, browser: httpx.AsyncClient) -> None:
    run = await start(server, {HOSTILE: HOSTILE}, key=HOSTILE, tags=[HOSTILE])
    await server.site.client.runs.pause(run, HOSTILE)
    handle = server.site.client.handle(run)
    await handle.signal("go", {HOSTILE: HOSTILE})
    paths = ["/", "/runs", f"/runs/{run}", f"/runs/{run}/fork"]
    paths += [f"/runs/{run}?tab={tab}" for tab in ("log", "data", "children")]
    for path in paths:
        html = await page(browser, path)
        assert "<script>alert" not in html, path
        assert "'x'" not in html, path
        assert "style=" not in html, path
        assert not re.search(r"<script(?! src=)", html), path


async def test_each_row_of_the_table_needs_its_level(store: Store) -> None:
    given: list[Principal | None] = [None]
    async with Server(store=store, auth=lambda _: given[0], app=app, hosts=[HOST]) as server:
        run = await start(server)
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            for row in TABLE:
                path = re.sub(r"\{run[^}]*\}", run, row.path)
                path = re.sub(r"\{[^}]*\}", "input", path)
                for url in (path, f"{path}?live=1"):
                    given[0] = None
                    answer = await client.request(row.method, url, headers=HERE)
                    assert answer.status_code == 401, url
                if row.level != "read":
                    given[0] = Principal("ann", "read" if row.level == "write" else "write")
                    answer = await client.request(row.method, path, headers=HERE)
                    assert answer.status_code == 403, path
                if row.method == "POST":
                    given[0] = Principal("ann", "admin")
                    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {}):
                        answer = await client.post(path, headers=headers)
                        assert answer.status_code == 403, path
            log = await server.site.client.runs.log(run)
            assert [each.event.type for each in log] == ["WorkflowStarted"]


async def test_a_cookie_opens_pages_and_nothing_else(
    server: Server, browser: httpx.AsyncClient
) -> None:
    cookie = browser.cookies["holdfast"]
    assert (await browser.get("/v1/runs")).status_code == 401
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as other:
        answer = await other.get("/runs?state=failed")
        assert answer.headers["location"] == "/login?next=%2Fruns%3Fstate%3Dfailed"
        name, expiry, proof = cookie.split(".")
        forged = [
            f"{name}.{int(expiry) + 1}.{proof}",
            f"{name}.{expiry}.{proof[:-1]}",
            "a.b.c",
            "x",
            f"{name}.{'9' * 40}.{proof}",
        ]
        for text in forged:
            answer = await other.get("/runs", headers={"Cookie": f"holdfast={text}"})
            assert answer.status_code == 303, text
        assert (await other.get("/login?key=wrong")).status_code == 401
        for outside in ("//evil.test", "https://evil.test", "/\\evil.test"):
            answer = await other.get("/login", params={"key": KEY, "next": outside})
            assert answer.headers["location"] == "/", outside
    server.site.access = KeyAccess("another key")
    assert (await browser.get("/runs")).status_code == 303


async def test_a_stream_sends_the_parts_that_changed(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, key="order-7")
    server.site.stream_seconds = 0.2
    answer = await browser.get(f"/runs/{run}?live=1")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: bye" in answer.text
    assert 'hx-target="#why"' in answer.text
    assert (await browser.get("/runs/x?live=1")).status_code == 404
